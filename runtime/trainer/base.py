"""The training loop of both trainers. A subclass holds only what differs: the container and how it moves."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from omegaconf import DictConfig

from runtime.agent_loop import Submission
from runtime.cluster import start_ray
from runtime.fields import STAGE_NAMES
from runtime.trainer.hooks import INITIAL_STAGE, StageHook, StageRecord
from runtime.trainer.kl import kl_controller
from runtime.trainer.prompts import PromptSource
from runtime.trainer.workers import Workers
from runtime.tracking import Tracking

Series = Mapping[str, Sequence[float]]
"""Figures of one stage: one value for the whole stage, or one a mini-batch."""


class Trainer(ABC):
    """Runs the stages of ``runtime.fields.STAGES`` step by step.

    Each stage is a method of the same name that takes the batch (``DataProto`` in the legacy trainer, ``KVBatchMeta`` in V1)
    and returns it, with the figures it made. ``hooks`` are called after each stage with what the stage wrote.
    """

    name: ClassVar[str]

    def __init__(self, config: DictConfig, hooks: Sequence[StageHook] = ()) -> None:
        self.config = config
        self.hooks = tuple(hooks)
        self.global_steps = 0
        self.prompts = PromptSource(config)
        self.total_steps = self.prompts.total_steps
        self.kl_controller = kl_controller(config)
        self.stage_names = self._configured_stages()
        start_ray(config)
        self.workers = self._start_workers()
        self.tracking = Tracking(
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
    def rollout(self, prompts: list[Submission]) -> tuple[Any, Series]:
        """Play n sessions of every prompt; the batch has its P*n trajectories in canonical order."""

    @abstractmethod
    def reward(self, batch: Any) -> tuple[Any, Series]:
        """Check that every trajectory has its ``rm_scores`` and file them as ``token_level_scores``."""

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
    def update_critic(self, batch: Any) -> tuple[Any, Series]:
        """Fit the critic to the returns."""

    @abstractmethod
    def update_actor(self, batch: Any) -> tuple[Any, Series]:
        """Update the policy by the advantages."""

    @abstractmethod
    def batch_metrics(self, batch: Any) -> dict[str, float]:
        """The figures of a finished batch (``runtime.metrics.batch_metrics``)."""

    @abstractmethod
    def mean_score(self, prompts: list[Submission]) -> dict[str, list[float]]:
        """Play validation prompts; the outcome of every trajectory by ``data_source``."""

    @abstractmethod
    def record(self, batch: Any, stage: str, series: Series, digests: Mapping[str, str]) -> None:
        """Call the hooks with what ``stage`` wrote, rows in canonical order."""

    def finish_step(self, batch: Any) -> None:
        """Let go of what the step held outside the controller."""

    # The loop.

    def fit(self) -> None:
        """Train for ``total_training_steps`` steps."""
        self.workers.push_weights()
        if self.hooks:
            self._call_hooks(StageRecord(0, INITIAL_STAGE, digests=self.workers.digests("actor", "critic")))
        if self.config.trainer.val_before_train:
            self._validate()
        for prompts in self.prompts.batches():
            self.global_steps += 1
            self.tracking.log(self.step(prompts), self.global_steps)
            if self._is_due(self.config.trainer.test_freq):
                self._validate()

    def step(self, prompts: list[Submission]) -> dict[str, float]:
        """Run one training step on a batch of prompts; its metrics."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        batch: Any = prompts
        for stage in self.stage_names:
            if stage == "update_actor" and self.global_steps <= self.config.trainer.critic_warmup:
                continue
            with timer(metrics, stage):
                batch, series = getattr(self, stage)(batch)
            metrics |= {name: sum(values) / len(values) for name, values in series.items() if values}
            if self.hooks:
                self.record(batch, stage, series, self._digests_after(stage))
        with timer(metrics, "update_weights"):
            self.workers.push_weights()
        metrics |= self.batch_metrics(batch)
        self.finish_step(batch)
        seconds = time.perf_counter() - started
        metrics["timing_s/step"] = seconds
        metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds / self.workers.world_size
        return metrics | self.prompts.progress()

    def close(self) -> None:
        """End this trainer's actors and trackers; Ray stays up for the next one."""
        self.tracking.finish()
        self.workers.close()

    def export_weights(self, path: str) -> None:
        """Write the weights of the policy, and of the critic if there is one, to a safetensors file."""
        self.workers.export_weights(path)

    def _configured_stages(self) -> tuple[str, ...]:
        config = self.config
        left_out = set()
        if not config.trainer.balance_batch:
            left_out.add("balance")
        if not (config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward):
            left_out.add("ref_log_prob")
        if not uses_critic(config):
            left_out |= {"values", "update_critic"}
        return tuple(stage for stage in STAGE_NAMES if stage not in left_out)

    def _digests_after(self, stage: str) -> dict[str, str]:
        role = {"update_actor": "actor", "update_critic": "critic"}.get(stage)
        return self.workers.digests(role) if role else {}

    def _call_hooks(self, record: StageRecord) -> None:
        for hook in self.hooks:
            hook(record)

    def _is_due(self, frequency: int) -> bool:
        return frequency > 0 and (self.global_steps % frequency == 0 or self.global_steps == self.total_steps)

    def _validate(self) -> None:
        scores: dict[str, list[float]] = {}
        for prompts in self.prompts.validation_batches(self.global_steps):
            for source, values in self.mean_score(prompts).items():
                scores.setdefault(source, []).extend(values)
        means = {f"val-core/{source}/reward/mean": sum(values) / len(values) for source, values in scores.items()}
        self.tracking.log(means, self.global_steps)


def uses_critic(config: DictConfig) -> bool:
    """Whether a critic runs: ``critic.enable``, or when that is null, whether the estimator is ``gae`` (as in verl)."""
    return config.algorithm.adv_estimator == "gae" if config.critic.enable is None else bool(config.critic.enable)


@contextmanager
def timer(metrics: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the block to ``metrics`` as ``timing_s/NAME``."""
    started = time.perf_counter()
    yield
    metrics[f"timing_s/{name}"] = time.perf_counter() - started
