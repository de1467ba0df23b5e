"""The training loop of both trainers. A subclass holds only what differs: the container and how it moves."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from runtime import containers
from runtime.agent_loop import Submission
from runtime.cluster import start_ray
from runtime.config import bypasses_old_log_prob
from runtime.fields import REARRANGING
from runtime.generations import Generations, samples_to_show, write_generations
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.metrics import READS
from runtime.pf_ppo import Resampling
from runtime.recipe import import_modules, with_modules_of_algorithms
from runtime.reward import build_reward_manager, scores_batches
from runtime.tracking import Tracking
from runtime.trainer.checkpoints import Checkpoints
from runtime.trainer.dynamic_sampling import play_until_full
from runtime.trainer.hooks import INITIAL_STAGE, StageHook
from runtime.trainer.kl import kl_controller
from runtime.trainer.prompts import PromptSource
from runtime.trainer.stages import configured_stages, updates_actor
from runtime.trainer.workers import Workers
from runtime.workers.group import rank_order

Series = Mapping[str, Sequence[float]]
"""Figures of one stage: one value for the whole stage, or one a mini-batch."""


class Trainer(ABC):
    """Runs the stages of ``runtime.fields.STAGES`` step by step.

    Each stage is a method of the same name that takes the batch (a ``DataProto`` in the legacy trainer, a
    ``KVBatchMeta`` in V1) and returns it, with the figures it made. ``hooks`` are called after each stage with what
    the stage wrote.
    """

    def __init__(self, config: DictConfig, hooks: Sequence[StageHook] = ()) -> None:
        import_modules(config)
        config = with_modules_of_algorithms(config)
        self._prepare(config, PromptSource(config), hooks)
        self._start()

    def _prepare(self, config: DictConfig, prompts: PromptSource, hooks: Sequence[StageHook] = ()) -> None:
        """Settle what training needs to know. Starts nothing, and raises for what cannot be trained."""
        self.config = config
        self.hooks = tuple(hooks)
        self.global_steps = 0
        self._positions: dict[str, int] = {}
        self.prompts = prompts
        if self.scores_in_rollout(validate=False):
            # Agent-loop workers build their own; a function that is not there is told before anything is started.
            build_reward_manager(config, prompts.tokenizer)
        self.total_steps = prompts.total_steps
        self.config = config = with_schedule_length(config, self.total_steps)
        self.kl_controller = kl_controller(config)
        self.stage_names = configured_stages(config)
        self.group_filter = GroupFilter.from_config(config)
        self.checkpoints = Checkpoints(config)
        self.tracking: Tracking | None = None

    def _start(self) -> None:
        """Start the actors."""
        start_ray(self.config)
        self.workers = self._start_workers()

    def _open_tracking(self) -> Tracking:
        config = self.config
        return Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            backends=list(config.trainer.logger),
            config=config,
            directory=config.trainer.default_local_dir,
            total_steps=self.total_steps,
        )

    # What differs between the trainers.

    @abstractmethod
    def _start_workers(self) -> Workers:
        """Start the model workers, the rollout server and this trainer's own actors."""

    @abstractmethod
    def play(self, prompts: list[Submission]) -> Any:
        """Play n sessions of every prompt; the batch has its P*n trajectories in canonical order."""

    @abstractmethod
    def kept_rows(self, batch: Any, group_filter: GroupFilter) -> list[int]:
        """The rows of ``batch`` whose group ``group_filter`` keeps."""

    def discard(self, batch: Any, rows: Sequence[int]) -> None:  # noqa: B027
        """Let go of what is held outside the controller for ``rows``, which are not trained on."""

    @abstractmethod
    def reward(self, batch: Any) -> tuple[Any, Series]:
        """Check ``rm_scores``, or make them where the manager scores whole batches; file as ``token_level_scores``."""

    @abstractmethod
    def balance(self, batch: Any) -> tuple[Any, Series]:
        """Reorder rows inside each mini-batch so that every rank gets as many tokens."""

    @abstractmethod
    def old_log_prob(self, batch: Any) -> tuple[Any, Series]:
        """Log-probs and entropy of the policy that is about to be updated."""

    @abstractmethod
    def ref_log_prob(self, batch: Any) -> tuple[Any, Series]:
        """Log-probs of the reference policy."""

    @abstractmethod
    def values(self, batch: Any) -> tuple[Any, Series]:
        """The critic's values."""

    @abstractmethod
    def advantage(self, batch: Any) -> tuple[Any, Series]:
        """Token-level rewards (with their KL penalty, when configured), advantages and returns."""

    @abstractmethod
    def drawn_rows(self, batch: Any, resampling: Resampling) -> list[int]:
        """The rows with which ``resampling`` fills the places of ``batch``, which is in canonical order."""

    @abstractmethod
    def update_critic(self, batch: Any) -> tuple[Any, Series]:
        """Fit the critic to the returns."""

    @abstractmethod
    def update_actor(self, batch: Any) -> tuple[Any, Series]:
        """Update the policy by the advantages."""

    @abstractmethod
    def batch_metrics(self, batch: Any) -> dict[str, float]:
        """The figures of a finished batch (``runtime.metrics.batch_metrics``)."""

    @abstractmethod
    def whole_batch(self, batch: Any) -> Any:
        """A finished batch as a legacy one, a ``DataProto``, for a sampler that learns from it."""

    @abstractmethod
    def generations(self, batch: Any) -> Generations:
        """Texts and scores of a scored batch, one a session."""

    @abstractmethod
    def validation_generations(self, prompts: list[Submission]) -> Generations:
        """Play and score validation prompts."""

    @abstractmethod
    def record(self, batch: Any | None, stage: str, series: Series, digests: Mapping[str, str]) -> None:
        """Call the hooks with what ``stage`` wrote, rows in canonical order; without a batch, with figures alone."""

    @abstractmethod
    def keys_of(self, batch: Any) -> list[TrajectoryKey]:
        """The trajectory keys of a batch, in its row order."""

    def finish_step(self, batch: Any) -> None:  # noqa: B027
        """Let go of what the step held outside the controller."""

    # Stages that do not differ.

    def scored_for_filter(self, batch: Any) -> Any:
        """``batch``, scored already where the filter of groups would find no scores of rollout.

        The stage ``reward`` leaves scores that are there as they are.
        """
        scored_later = self.group_filter is not None and not self.scores_in_rollout(validate=False)
        return self.reward(batch)[0] if scored_later else batch

    def scores_in_rollout(self, validate: bool) -> bool:  # noqa: ARG002
        """Whether sessions are scored as they are played, and not later, a whole batch at once."""
        return not scores_batches(self.config)

    def rollout(self, prompts: list[Submission]) -> tuple[Any, Series]:
        """Play n sessions of every prompt, and of further prompts where groups that teach nothing are dropped."""
        if self.group_filter is None:
            return self.play(prompts), {}
        return play_until_full(self, prompts, self.group_filter)

    def resample(self, batch: Any) -> tuple[Any, Series]:
        """Draw whole rows anew, every column, uid and key with them, and balance what was drawn."""
        canonical = containers.select_rows(batch, torch.tensor(self.canonical_places(batch)).argsort())
        rows = self.drawn_rows(canonical, Resampling.from_config(self.config))
        drawn = containers.select_rows(canonical, torch.tensor(rows))
        return self.balance(drawn) if "balance" in self.stage_names else (drawn, {})

    # The loop.

    def fit(self) -> None:
        """Train for ``total_training_steps`` steps."""
        if self.config.trainer.save_freq > 0:
            self.prompts.check_resumable()
        self.tracking = self._open_tracking()
        self._load_checkpoint()
        self.workers.policy_weights.bring_newest()
        if self.hooks:
            self.record(None, INITIAL_STAGE, {}, self.workers.digests("actor", "critic"))
        if self.config.trainer.val_before_train:
            self.tracking.log(self._validate(), self.global_steps)
        if self.config.trainer.val_only:
            return
        for prompts in self.prompts.batches(after=self.global_steps):
            self.global_steps += 1
            metrics = self.step(prompts)
            if self._is_due(self.config.trainer.save_freq):
                with timer(metrics, "save_checkpoint"):
                    self._save_checkpoint()
            self.tracking.log(metrics, self.global_steps)
            if self._is_due(self.config.trainer.test_freq):
                self.tracking.log(self._validate(), self.global_steps)

    def step(self, prompts: list[Submission]) -> dict[str, float]:
        """Run one training step on a batch of prompts; its metrics."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        batch: Any = prompts
        self._positions = {}
        self.expect(prompts)
        for stage in self.stage_names:
            if stage == "update_actor" and not updates_actor(self.config, self.global_steps):
                continue
            with timer(metrics, stage):
                after, series = getattr(self, stage)(batch)
            metrics |= {name: sum(values) / len(values) for name, values in series.items() if values}
            self.tell_hooks(stage, batch, after, series)
            batch = after
        with timer(metrics, "update_weights"):
            self.workers.policy_weights.bring_newest()
        metrics |= self.batch_metrics(batch)
        if self.prompts.curriculum is not None:
            self.prompts.curriculum.update(batch=self.whole_batch(batch))
        if self.config.trainer.rollout_data_dir:
            self._write(self.generations(batch), self.config.trainer.rollout_data_dir)
        self.finish_step(batch)
        seconds = time.perf_counter() - started
        metrics["timing_s/step"] = metrics["perf/time_per_step"] = seconds
        metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds / self.workers.world_size
        return metrics | self.prompts.progress()

    def tell_hooks(self, stage: str, before: Any, after: Any, series: Series) -> None:
        """Let the hooks see what ``stage`` made of the batch ``before``."""
        if not self.hooks:
            return
        if stage in REARRANGING:
            # Records are in canonical order, which would hide what the stage did.
            series = {**series, "row_order": self.canonical_places(after, among=before)}
        self.record(after, stage, series, self._digests_after(stage))

    def close(self) -> None:
        """End this trainer's actors and trackers; Ray stays up for the next one."""
        if self.tracking is not None:
            self.tracking.finish()
        self.workers.close()

    def export_weights(self, path: str) -> None:
        """Write the weights of the policy, and of the critic if there is one, to a safetensors file."""
        self.workers.export_weights(path)

    # What the stages of both trainers share.

    @property
    def rollout_n(self) -> int:
        """Sessions of each training prompt."""
        return self.config.actor_rollout_ref.rollout.n

    @property
    def metric_fields(self) -> list[str]:
        """The fields that ``runtime.metrics.batch_metrics`` reads under this config."""
        optional = {"values": "values" in self.stage_names, "entropy": not bypasses_old_log_prob(self.config)}
        return [*READS, *(name for name, there in optional.items() if there)]

    def mini_batch_rows(self, role: str) -> int:
        """Rows of a global mini-batch: ``ppo_mini_batch_size`` counts prompts, each has n trajectories."""
        settings = self.config.critic if role == "critic" else self.config.actor_rollout_ref.actor
        return settings.ppo_mini_batch_size * self.rollout_n

    def rank_order(self, role: str, num_rows: int) -> Tensor:
        """The order in which ranks take rows, so that each has its share of every mini-batch of ``role``."""
        return rank_order(num_rows, self.mini_batch_rows(role), self.workers.world_size)

    def expect(self, prompts: list[Submission]) -> None:
        """Remember the places of prompts that are about to be played: canonical order goes by them."""
        self._positions |= {submission.uid: submission.position for submission in prompts}

    def canonical_places(self, batch: Any, among: Any = None) -> list[int]:
        """The place of each row of ``batch`` in canonical order: (position of its prompt, session_id, index).

        among: the batch whose rows are counted, ``batch`` itself when ``None``. A key that comes again has one place.
        """
        counted = self._canonical_keys(batch if among is None else among)
        place = {key: number for number, key in enumerate(sorted(set(counted)))}
        return [place[key] for key in self._canonical_keys(batch)]

    def _canonical_keys(self, batch: Any) -> list[tuple[int, int, int]]:
        return [(self._positions[key.uid], key.session_id, key.index) for key in self.keys_of(batch)]

    def update_kl(self, scalars: Mapping[str, float], num_rows: int) -> None:
        """Let the controller of the KL coefficient see the KL that the advantage stage measured."""
        if "actor/reward_kl_penalty" in scalars:
            self.kl_controller.update(scalars["actor/reward_kl_penalty"], num_rows)

    def _digests_after(self, stage: str) -> dict[str, str]:
        role = {"update_actor": "actor", "update_critic": "critic"}.get(stage)
        return self.workers.digests(role) if role else {}

    def _is_due(self, frequency: int) -> bool:
        return frequency > 0 and (self.global_steps % frequency == 0 or self.global_steps == self.total_steps)

    def _save_checkpoint(self) -> None:
        """Write everything that a resumed run needs, so that its results are those of an uninterrupted one."""
        state = {"kl_coef": self.kl_controller.value, "prompts": self.prompts.state_dict()}
        self.checkpoints.save(self.global_steps, self.workers.groups, state)

    def _load_checkpoint(self) -> int:
        """Go on from a checkpoint as ``trainer.resume_mode`` says; the step it was written in, 0 from scratch."""
        self.global_steps, state = self.checkpoints.load(self.workers.groups)
        if state:
            self.kl_controller.value = state["kl_coef"]
            self.prompts.load_state_dict(state["prompts"])
        return self.global_steps

    def _validate(self) -> dict[str, float]:
        """Play every validation prompt; figures under verl's names (``val-core/SOURCE/VARIABLE/mean@N``, ...)."""
        return self._play_validation().figures()

    def _play_validation(self) -> Generations:
        """Play and score every validation prompt; written and shown as ``trainer`` says."""
        batches = self.prompts.validation_batches(self.global_steps)
        played = Generations.together([self.validation_generations(prompts) for prompts in batches])
        settings = self.config.trainer
        if played.scores and settings.validation_data_dir:
            self._write(played, settings.validation_data_dir)
        if played.scores and settings.log_val_generations:
            self._show(played)
        return played

    def _show(self, played: Generations) -> None:
        assert self.tracking is not None
        wanted = self.config.trainer.log_val_generations
        samples = samples_to_show(played.inputs, played.outputs, played.scores, wanted)
        self.tracking.log_samples(samples, self.global_steps)

    def _write(self, played: Generations, folder: str) -> None:
        write_generations(Path(folder) / f"{self.global_steps}.jsonl", played.columns(self.global_steps))


def with_schedule_length(config: DictConfig, total_steps: int) -> DictConfig:
    """``optim.total_training_steps`` of actor and critic filled in where it is not positive, as verl's trainer does."""
    changes: dict[str, Any] = {}
    for key in ("actor_rollout_ref.actor.optim", "critic.optim"):
        if OmegaConf.select(config, f"{key}.total_training_steps") <= 0:
            changes[f"{key}.total_training_steps"] = total_steps
    filled = OmegaConf.merge(config, OmegaConf.from_dotlist([f"{key}={value}" for key, value in changes.items()]))
    OmegaConf.set_readonly(filled, True)
    return filled  # type: ignore[return-value]


@contextmanager
def timer(metrics: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the block to ``metrics`` as ``timing_s/NAME``."""
    started = time.perf_counter()
    yield
    metrics[f"timing_s/{name}"] = time.perf_counter() - started
