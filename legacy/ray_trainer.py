"""``RayPPOTrainer``: the legacy trainer as the base class that recipes know from ``verl.trainer.ppo.ray_trainer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset, Sampler

from compat.data.loading import create_rl_dataset
from compat.protocol import DataProto
from compat.reward.adapters import token_rewards
from compat.reward.helpers import compute_reward, extract_reward
from compat.reward.rows import reward_columns
from compat.single_controller.pools import ResourcePoolManager
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from legacy.agent_loop import AgentLoopWorker
from legacy.generations import GenerationLogs
from legacy.groups import ModelGroups
from legacy.trainer import LegacyTrainer
from runtime.arrays import object_array
from runtime.balance import balanced_order
from runtime.config import settle_config, uses_critic, uses_reference
from runtime.data import build_dataloader
from runtime.data.dataset import numbered
from runtime.errors import ConfigError
from runtime.generations import Generations
from runtime.recipe import import_modules, with_modules_of_algorithms
from runtime.reward import RewardStage
from runtime.trainer.base import Series
from runtime.trainer.prompts import PromptLoaders, PromptSource
from runtime.trainer.workers import Workers

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

    # What verl's trainer has and this one need not set: recipes read them.
    hybrid_engine = async_rollout_mode = True
    ref_in_actor = use_teacher_policy = use_prefix_grouper = use_rm = False
    reward_loop_manager = teacher_model_manager = distillation_config = llm_server_manager = None
    processor = train_dataset = val_dataset = None
    reward_fn: Callable[..., Any] | None = None
    val_reward_fn: Callable[..., Any] | None = None
    max_steps_duration = 0.0
    total_training_steps: int

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
        self.config = config
        self._validate_config()
        self.device_name = device_name or self.config.trainer.device
        self.use_critic, self.use_reference_policy = uses_critic(self.config), uses_reference(self.config)
        self.use_rm = Role.RewardModel in role_worker_mapping
        self._create_dataloader(train_dataset, val_dataset, collate_fn, train_sampler)
        self._settle()

    def _validate_config(self) -> None:
        """Read ``self.config`` as ``load_config`` reads one; a second call does nothing.

        Raises ``ConfigError``, a ``ValueError``, where verl's own check asserts.
        """
        if "_config_settled" not in vars(self):
            self.config = settle_config(self.config, use_v1=False)
            self._config_settled = True

    def _settle(self) -> None:
        """Everything that follows from the config and the loaders, once.

        A recipe that never calls our constructor has it done when groups or a loop first need it.
        """
        if "prompts" in vars(self):
            return
        self._validate_config()
        import_modules(self.config)
        loaders = PromptLoaders(self.tokenizer, self.train_dataloader, lambda: self.val_dataloader)
        config = with_modules_of_algorithms(self.config)
        prompts = PromptSource(config, loaders)
        if type(self).fit is not RayPPOTrainer.fit:
            # A loop of the recipe's own takes a batch of the loader a step, whatever the size of such a batch.
            prompts.total_steps = self.total_training_steps
        self._prepare(config, prompts)
        self.total_training_steps = self.total_steps
        OmegaConf.set_readonly(self.config, False)
        self.kl_ctrl_in_reward = self.kl_controller

    def _create_dataloader(
        self,
        train_dataset: Dataset | None,
        val_dataset: Dataset | None,
        collate_fn: Callable[..., Any] | None = None,
        train_sampler: Sampler | None = None,
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

    def _dataset(self, files: Any, max_samples: int) -> Dataset:
        return create_rl_dataset(files, self.config.data, self.tokenizer, self.processor, max_samples=max_samples)

    def init_workers(self) -> None:
        """Start the worker groups (``actor_rollout_wg``, ``critic_wg``, ``ref_policy_wg``, ``rm_wg``) and the rollout.

        A recipe that starts its groups itself, as verl's method does, gets the rollout around them at its first use.
        """
        self._settle()
        self._start()

    @cached_property
    def workers(self) -> Workers:  # type: ignore[override]
        """The groups as the shared loop sees them; made here where ``init_workers`` is the recipe's own."""
        if self.actor_rollout_wg is None:
            raise ConfigError("call trainer.init_workers() first: there is no actor_rollout_wg yet")
        self._settle()
        reference = self.ref_policy_wg
        if reference is None and uses_reference(self.config):
            reference = self.ref_policy_wg = self.actor_rollout_wg
        groups = ModelGroups(
            self.config, self.actor_rollout_wg, self.critic_wg, reference, self.rm_wg, self.resource_pool_manager
        )
        return groups.with_rollout(AgentLoopWorker)

    def fit(self) -> None:
        """Train for ``total_training_steps`` steps; ``init_workers`` comes first."""
        self.workers  # noqa: B018  raises where there are none
        try:
            super().fit()
        finally:
            self._shutdown_dump_executor()

    # Stages that a reward function in the driver, or a reward model, changes.

    def scores_in_rollout(self, validate: bool) -> bool:
        by_driver = self._reward_function(validate) is not None or self.use_rm
        return not by_driver and super().scores_in_rollout(validate)

    @cached_property
    def reward_stage(self) -> RewardStage:
        """The stage ``reward``, which only checks what the driver has scored."""
        return RewardStage(None) if self.reward_fn is not None else RewardStage.from_config(self.config)

    def reward(self, batch: DataProto) -> tuple[DataProto, Series]:
        if "rm_scores" not in batch.batch.keys():  # type: ignore[union-attr]  # noqa: SIM118
            if self.rm_wg is not None:
                batch = batch.union(self._compute_reward_colocate(batch))
            reward_fn = self._reward_function(batch.meta_info.get("validate", False))
            batch = batch if reward_fn is None else self._scored(batch, reward_fn)
        return super().reward(batch)

    def balance(self, batch: DataProto) -> tuple[DataProto, Series]:
        self._balance_batch(batch, metrics={})
        return batch, {}

    def _reward_function(self, validate: bool) -> Callable[..., Any] | None:
        return (self.val_reward_fn or self.reward_fn) if validate else self.reward_fn

    def _scored(self, batch: DataProto, reward_fn: Callable[..., Any]) -> DataProto:
        """``batch`` with ``rm_scores`` and the function's other results; those win over a column of their name.

        As verl does, results that are not one a row are left out. RewardError where it gives no ``[B, R]``.
        """
        scores, infos = compute_reward(batch, reward_fn)
        columns = reward_columns(infos, len(batch))
        assert batch.batch is not None
        name = f"reward function {getattr(reward_fn, '__qualname__', type(reward_fn).__qualname__)}"
        batch.batch["rm_scores"] = token_rewards(scores, batch, name)
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        batch.non_tensor_batch.update({**columns, "reward_extra_info": object_array(list(rows) or [{}] * len(batch))})
        batch.meta_info["reward_extra_keys"] = list(columns)
        return batch

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

    def _compute_reward_colocate(self, batch: DataProto) -> DataProto:
        """``rm_scores`` ``[B, R]`` of the reward model's group."""
        if self.rm_wg is None:
            raise ConfigError(
                "no reward model runs: map Role.RewardModel to a worker, or score with a reward function "
                "(reward.custom_reward_function.path)"
            )
        return self.rm_wg.compute_rm_score(batch)

    def _validate(self, merged: bool = False) -> dict[str, Any]:
        """Play every validation prompt; its figures, or with ``merged`` what ``_merge_validation_results`` takes."""
        played = self._play_validation()
        if not merged:
            return played.figures()
        return {
            "data_sources": [played.data_sources],
            "sample_uids": played.uids,
            "sample_turns": [np.array(played.turns)],
            "reward_extra_infos_dict": played.variables,
        }

    def _write(self, played: Generations, folder: str) -> None:
        self._dump_generations(
            played.inputs, played.outputs, played.ground_truths, played.scores, played.variables, folder
        )

    def _show(self, played: Generations) -> None:
        self._maybe_log_val_generations(played.inputs, played.outputs, played.scores)

    def _get_dp_size(self, worker_group: Any, role: str) -> int:  # noqa: ARG002
        """Data-parallel ranks of a group: all of them."""
        return worker_group.world_size

    def _start_profiling(self, do_profile: bool) -> None:
        """Nothing is profiled: ``global_profiler.*`` has no effect here."""

    def _stop_profiling(self, do_profile: bool, run_command: bool = False) -> None:
        """Nothing is profiled."""
