"""Tasks on whole batches that run near the data, so that no token passes through the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.reward.adapters import pad_token_id, padded
from runtime import metrics
from runtime.advantage import AdvantageStage
from runtime.data.chat import load_tokenizer
from runtime.generations import Generations
from runtime.group_filter import GroupFilter
from runtime.pf_ppo import Resampling
from runtime.recipe import import_modules
from runtime.reward import RewardStage
from runtime.trainer.hooks import StageHook, StageRecord
from runtime.trainer.stages import written_fields
from v1 import data_plane
from v1.data_plane import KVBatchMeta, Rows


class DataWorker:
    """A stateless Ray actor: it is given keys, fetches what it needs, writes results back and returns scalars."""

    def __init__(self, config: DictConfig, hooks: Sequence[StageHook] = ()) -> None:
        self.config = config
        self.hooks = tuple(hooks)
        self.advantage_stage = AdvantageStage.from_config(config)

    def start(self) -> None:
        """Import what registers the estimator and the reward manager, and attach to TransferQueue."""
        import_modules(self.config)
        self.reward_stage = RewardStage.from_config(self.config)
        data_plane.connect()

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return load_tokenizer(self.config.actor_rollout_ref.model)

    def compute_rewards(self, batch: KVBatchMeta) -> None:
        """Run the reward stage."""
        trajectories = data_plane.read(batch, self.reward_stage.reads(data_plane.field_names(batch)))
        rewarded = self.reward_stage(trajectories)
        data_plane.write(batch, trajectories, rewarded.columns, rewarded.objects)

    def kept_rows(self, batch: KVBatchMeta, group_filter: GroupFilter) -> list[int]:
        """The rows whose group ``group_filter`` keeps."""
        return group_filter.kept_rows(data_plane.read(batch, group_filter.reads))

    def drawn_rows(self, batch: KVBatchMeta, resampling: Resampling, step: int) -> list[int]:
        """The rows with which ``resampling`` fills the places of ``batch``, which is in canonical order."""
        return resampling.drawn_rows(data_plane.read(batch, resampling.reads), step)

    def take_rollout_log_probs(self, batch: KVBatchMeta) -> None:
        """File ``rollout_log_probs`` as ``old_log_probs`` (bypass mode)."""
        trajectories = data_plane.read(batch, ["rollout_log_probs"])
        data_plane.write(batch, trajectories, {"old_log_probs": trajectories["rollout_log_probs"]})

    def compute_advantage(self, batch: KVBatchMeta) -> dict[str, float]:
        """Run the advantage stage; ``batch.extra_info`` brings the KL coefficient."""
        fields = self.advantage_stage.reads(data_plane.field_names(batch))
        trajectories = data_plane.read(batch, fields)
        columns, scalars = self.advantage_stage(trajectories, batch.extra_info["kl_coef"])
        data_plane.write(batch, trajectories, columns)
        return scalars

    def batch_metrics(self, batch: Rows, fields: Sequence[str]) -> dict[str, float]:
        """The figures of a finished batch."""
        data = self.config.data
        return metrics.batch_metrics(data_plane.read(batch, fields), data.max_response_length, data.max_prompt_length)

    def whole_batch(self, batch: Rows) -> DataProto:
        """All fields, padded as the legacy trainer pads them."""
        data = self.config.data
        trajectories = data_plane.read(batch, data_plane.field_names(batch))
        return padded(trajectories, (data.max_prompt_length, data.max_response_length), pad_token_id(self.tokenizer))

    def generations(self, batch: Rows) -> Generations:
        """Texts and scores, one a session: what people read comes to the controller, tokens do not."""
        trajectories = data_plane.read(batch, Generations.reads(data_plane.field_names(batch)))
        return Generations.of(trajectories, self.tokenizer)

    def run_hooks(
        self,
        batch: Rows | None,
        step: int,
        stage: str,
        series: Mapping[str, Sequence[float]],
        digests: Mapping[str, str],
    ) -> None:
        """Call the hooks with what ``stage`` wrote, in the batch's order; without a batch, with figures alone."""
        fields = () if batch is None else written_fields(stage, self.config, data_plane.field_names(batch))
        written = data_plane.read(batch, fields) if batch is not None and fields else None
        record = StageRecord(step, stage, written, {name: tuple(values) for name, values in series.items()}, digests)
        for hook in self.hooks:
            hook(record)
