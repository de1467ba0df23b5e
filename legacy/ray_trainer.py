"""``RayPPOTrainer``: the legacy trainer as the base class that recipes know from ``verl.trainer.ppo.ray_trainer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from torch.utils.data import Dataset, Sampler

from compat.data.loading import create_rl_dataset
from compat.protocol import DataProto
from compat.reward.helpers import compute_reward, extract_reward
from compat.single_controller.pools import ResourcePoolManager
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from compat.utils.tracking import ValidationGenerationsLogger
from legacy.generations import GenerationLogs
from legacy.trainer import LegacyTrainer
from runtime.balance import balanced_order
from runtime.config import settle_config, uses_critic, uses_reference
from runtime.data import build_dataloader
from runtime.data.dataset import numbered
from runtime.errors import ConfigError
from runtime.recipe import import_modules, with_modules_of_algorithms
from runtime.trainer.base import Series
from runtime.trainer.prompts import PromptLoaders, PromptSource

_TOKENS = ("input_ids", "attention_mask", "position_ids")
"""Columns of a prompt's tokens, which a batch of prompts must not keep: its trajectories have their own."""

_REWARD_COLUMNS = ("data_source", "reward_model", "extra_info", "uid")
"""Columns that stay with a batch of prompts, and are given to rollout too."""


class RayPPOTrainer(GenerationLogs, LegacyTrainer):
    """verl's legacy trainer: constructor, attributes and seams of verl 0.2 to 0.9.

    Subclass it and override ``fit`` or any seam (``_get_gen_batch``, ``_compute_old_log_prob``,
    ``_compute_ref_log_prob``, ``_compute_values``, ``_balance_batch``, ``_update_critic``, ``_update_actor``,
    ``_validate``, ``_save_checkpoint``, ``_load_checkpoint``, ``init_workers``). Without an override, ``fit`` is the
    loop of ``verlift train trainer.use_v1=false``, with the same results bit by bit.

    config: as hydra composed it; read as ``load_config`` reads one. ``self.config`` then holds the keys that were
    given and their present names. reward_fn, val_reward_fn: callables on a ``DataProto`` (``load_reward_manager``);
    where they are given, workers do not score.

    Raises ``ConfigError`` for a config that cannot be trained.
    """

    def __init__(
        self,
        config: DictConfig,
        tokenizer: Any,
        role_worker_mapping: Mapping[Any, Any],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[RayWorkerGroup] = RayWorkerGroup,
        processor: Any = None,
        reward_fn: Callable[..., Any] | None = None,
        val_reward_fn: Callable[..., Any] | None = None,
        train_dataset: Dataset | None = None,
        val_dataset: Dataset | None = None,
        collate_fn: Callable[..., Any] | None = None,
        train_sampler: Sampler | None = None,
        device_name: str | None = None,
    ) -> None:
        self.tokenizer, self.processor = tokenizer, processor
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn
        self.role_worker_mapping, self.resource_pool_manager = role_worker_mapping, resource_pool_manager
        self.ray_worker_group_cls = ray_worker_group_cls
        self.config = settle_config(config, use_v1=False)
        if reward_fn is not None:
            _let_driver_score(self.config)
        self.device_name = device_name or self.config.trainer.device
        self.hybrid_engine, self.async_rollout_mode = True, True
        self.use_critic, self.use_reference_policy = uses_critic(self.config), uses_reference(self.config)
        self.use_rm, self.ref_in_actor = Role.RewardModel in role_worker_mapping, False
        self._create_dataloader(train_dataset, val_dataset, collate_fn, train_sampler)
        import_modules(self.config)
        loaders = PromptLoaders(tokenizer, self.train_dataloader, lambda: self.val_dataloader)
        config = with_modules_of_algorithms(self.config)
        self._prepare(config, PromptSource(config, loaders))
        OmegaConf.set_readonly(self.config, False)
        self.kl_ctrl_in_reward = self.kl_controller
        self.validation_generations_logger = ValidationGenerationsLogger(
            self.config.trainer.project_name, self.config.trainer.experiment_name
        )
        self._init_dump_executor()

    def _create_dataloader(
        self,
        train_dataset: Dataset | None,
        val_dataset: Dataset | None,
        collate_fn: Callable[..., Any] | None,
        train_sampler: Sampler | None,
    ) -> None:
        """Make ``train_dataloader`` and ``val_dataloader`` (``None`` without ``data.val_files``) of what is given."""
        data = self.config.data
        self.train_dataset = train_dataset
        if train_dataset is None:
            self.train_dataset = self._dataset(data.train_files, data.train_max_samples)
        self.val_dataset = val_dataset
        if val_dataset is None and data.val_files:
            self.val_dataset = self._dataset(data.val_files, data.val_max_samples)
        seed = self.config.runtime.seed
        self.train_dataloader = build_dataloader(
            numbered(self.train_dataset), data, seed, sampler=train_sampler, collate=collate_fn
        )
        self.val_dataloader = None
        if self.val_dataset is not None:
            self.val_dataloader = build_dataloader(
                numbered(self.val_dataset), data, seed, validation=True, collate=collate_fn
            )
        total = len(self.train_dataloader) * self.config.trainer.total_epochs
        self.total_training_steps = self.config.trainer.total_training_steps or total
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = self.total_training_steps
            self.config.critic.optim.total_training_steps = self.total_training_steps

    def _dataset(self, files: Any, max_samples: int) -> Dataset:
        return create_rl_dataset(files, self.config.data, self.tokenizer, self.processor, max_samples=max_samples)

    def init_workers(self) -> None:
        """Start the worker groups (``actor_rollout_wg``, ``critic_wg``, ``ref_policy_wg``) and the rollout."""
        self._start()
        self.async_rollout_manager.scores = self.reward_fn is None

    def fit(self) -> None:
        """Train for ``total_training_steps`` steps; ``init_workers`` comes first."""
        if not hasattr(self, "workers"):
            raise ConfigError("call trainer.init_workers() before trainer.fit()")
        super().fit()
        self._shutdown_dump_executor()

    # Stages that a reward function in the driver changes.

    def reward(self, batch: DataProto) -> tuple[DataProto, Series]:
        reward_fn = self.reward_fn
        if batch.meta_info.get("validate", False):
            reward_fn = self.val_reward_fn or reward_fn
        return super().reward(batch if reward_fn is None else self._scored(batch, reward_fn))

    def balance(self, batch: DataProto) -> tuple[DataProto, Series]:
        self._balance_batch(batch, metrics={})
        return batch, {}

    def _scored(self, batch: DataProto, reward_fn: Callable[..., Any]) -> DataProto:
        scores, infos = compute_reward(batch, reward_fn)
        return batch.union(DataProto.from_dict({"rm_scores": scores}, infos))

    # verl's seams that the shared loop does not have.

    def _get_gen_batch(self, batch: DataProto) -> DataProto:
        """Take from P prompts what rollout needs: all object columns, of which the reward's stay with ``batch`` too."""
        objects = batch.non_tensor_batch.keys()
        there = () if batch.batch is None else batch.batch.keys()
        gen_batch = batch.pop(
            batch_keys=[name for name in _TOKENS if name in there],
            non_tensor_batch_keys=[name for name in objects if name not in _REWARD_COLUMNS],
        )
        gen_batch.non_tensor_batch.update(batch.non_tensor_batch)
        return gen_batch

    def _balance_batch(
        self,
        batch: DataProto,
        metrics: dict[str, Any],
        logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,  # noqa: ARG002  rows always stay in their mini-batch
    ) -> None:
        """Reorder ``batch`` in place, inside each mini-batch, so that ranks get as many tokens; figures to ``metrics``.

        Rows that do not divide into mini-batches are balanced as one.
        """
        lengths = batch["attention_mask"].sum(1).tolist()
        rows, ranks = self.mini_batch_rows("actor"), self.workers.world_size
        if len(lengths) % ranks:
            return
        order = balanced_order(lengths, rows if len(lengths) % rows == 0 else len(lengths), ranks)
        batch.reorder(order)
        pieces = [sum(lengths[row] for row in piece) for piece in order.view(ranks, -1).tolist()]
        metrics |= {
            f"{logging_prefix}/min": min(pieces),
            f"{logging_prefix}/max": max(pieces),
            f"{logging_prefix}/minmax_diff": max(pieces) - min(pieces),
            f"{logging_prefix}/mean": sum(pieces) / ranks,
        }

    def _compute_or_extract_reward(
        self, batch: DataProto, reward_fn: Callable[..., Any] | None = None, **_unused: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Scores ``[B, R]`` and the reward function's other results: of ``reward_fn``, or what rollout wrote."""
        score = reward_fn or self.reward_fn
        return extract_reward(batch) if score is None else compute_reward(batch, score)

    def _get_dp_size(self, worker_group: Any, role: str) -> int:  # noqa: ARG002
        """Data-parallel ranks of a group: all of them."""
        return worker_group.world_size

    def _start_profiling(self, do_profile: bool) -> None:
        """Nothing is profiled: ``global_profiler.*`` has no effect here."""

    def _stop_profiling(self, do_profile: bool, run_command: bool = False) -> None:
        """Nothing is profiled."""


def _let_driver_score(config: DictConfig) -> None:
    """Ask nothing of a reward manager in workers: what the driver scores with may not even exist there."""
    config.reward.custom_reward_function.path = None
    config.reward.reward_kwargs = {}
    config.reward.reward_manager.source, config.reward.reward_manager.name = "register", "naive"
