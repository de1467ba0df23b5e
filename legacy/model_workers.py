"""The workers that verl's recipes put into ``role_worker_mapping``, over ``runtime.workers.model_workers``.

Methods take and return ``DataProto``, as up to verl 0.7, or ``TensorDict``, as since; they answer in kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.single_controller.decorator import Dispatch, register
from compat.single_controller.worker import Worker
from compat.tensordict_utils import get
from compat.tensordicts import get_tensordict
from legacy.agent_loop import AgentLoopManager, AgentLoopWorker
from legacy.dispatch import GENERATE, INFER, UPDATE, plan_of
from legacy.gen_batch import is_repeated
from legacy.settings import whole_config
from runtime.cluster import reserve
from runtime.data.chat import load_tokenizer
from runtime.errors import CheckpointError, ConfigError
from runtime.trainer.rollout_actors import RolloutActors
from runtime.trainer.workers import ACTOR_CPUS
from runtime.workers.model_workers import ActorWorker, ModelWorker
from runtime.workers.model_workers import CriticWorker as RuntimeCriticWorker


class ModelEngineWorker(Worker):
    """What a rank of any model does for a recipe: start, give weights away, save and load."""

    model: ModelWorker
    """The rank behind this one, once ``init_model`` has run."""

    def __init__(self, config: DictConfig, **_unused: Any) -> None:
        """config: ``config.actor_rollout_ref`` or ``config.critic``, still part of the whole config."""
        super().__init__()
        self.config = config
        self.settings = whole_config(config)
        self._saved: list[str] = []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Meet the other ranks and load the model; collective."""
        address, port = self.get_master_addr_port()
        self.model = self.build_model()
        self.model.setup(f"tcp://{address}:{port}")

    def build_model(self) -> ModelWorker:
        """The rank of the runtime that does the work."""
        raise NotImplementedError

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def full_weights(self) -> Any:
        """See ``ModelWorker.full_weights``."""
        return self.model.full_weights()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def digests(self) -> dict[str, str]:
        """See ``ModelWorker.digests``."""
        return self.model.digests()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fingerprint(self) -> int:
        """See ``ModelWorker.fingerprint``."""
        return self.model.fingerprint()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,  # noqa: ARG002  the path names it
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Write weights, optimizer, schedule and random state to the folder ``local_path``; collective.

        max_ckpt_to_keep: of the checkpoints that this group has written, how many of the newest stay (all by default).
        """
        _refuse_remote(hdfs_path)
        self.model.save_checkpoint(local_path)
        # A path that is written again is the newest one, and must not be dropped for its age.
        self._saved = [*(path for path in self._saved if path != local_path), local_path]
        while max_ckpt_to_keep and len(self._saved) > max_ckpt_to_keep:
            oldest = self._saved.pop(0)
            if self.rank == 0:
                shutil.rmtree(oldest, ignore_errors=True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Read what ``save_checkpoint`` wrote; collective. ``CheckpointError`` names a folder that does not serve."""
        _refuse_remote(hdfs_path)
        self.model.load_checkpoint(local_path)
        if del_local_after_load and self.rank == 0:
            shutil.rmtree(local_path)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_profile(self, **_unused: Any) -> None:
        """Nothing is profiled: ``global_profiler.*`` has no effect here."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stop_profile(self, **_unused: Any) -> None:
        """Nothing is profiled."""

    def _update(self, update: Callable[..., Any], data: Any, settings: DictConfig) -> Any:
        plan = plan_of(data, self.model.plan(settings), self.world_size)
        return update(data, self.step_of(data), plan)

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer; each call reads it."""
        return load_tokenizer(self.settings.actor_rollout_ref.model)

    # What workers of recipes up to verl 0.8 reach into.

    @property
    def _module(self) -> Any:
        return self.model.engine.model

    @property
    def _optimizer(self) -> Any:
        return self.model.engine.optimizer

    @property
    def _schedule(self) -> Any:
        return self.model.engine.schedule

    def step_of(self, data: Any) -> int:
        """The training step of an update: what the batch says, or the number of this update."""
        shared = data.meta_info if isinstance(data, DataProto) else {"global_steps": get(data, "global_steps")}
        step = shared.get("global_steps")
        return self.model.updates + 1 if step is None else int(step)


class ActorRolloutRefWorker(ModelEngineWorker):
    """One rank of the policy, of its reference, or of both (verl's worker of that name).

    role: ``actor``, ``rollout`` and ``ref`` joined by ``_``, as verl writes them. ``generate_sequences`` asks the
    rollout server, which is an actor of its own: the one of the trainer, or one that rank 0 starts when there is none.
    """

    def __init__(self, config: DictConfig, role: str = "actor_rollout", **unused: Any) -> None:
        super().__init__(config, **unused)
        self.role = role
        parts = set(role.split("_"))
        if not parts & {"actor", "rollout", "ref"}:
            raise ConfigError(f"role {role!r} is not known: expected actor, rollout and ref joined by '_'")
        self._is_actor, self._is_ref = bool(parts & {"actor", "rollout"}), "ref" in parts
        self._rollout: RolloutActors | None = None
        self._manager: AgentLoopManager | None = None

    model: ActorWorker

    actor_module = actor_module_fsdp = ModelEngineWorker._module
    actor_optimizer, actor_lr_scheduler = ModelEngineWorker._optimizer, ModelEngineWorker._schedule

    def build_model(self) -> ActorWorker:
        return ActorWorker(self.rank, self.world_size, self.settings, policy=self._is_actor, reference=self._is_ref)

    @register(dispatch_mode=INFER)
    def compute_log_prob(self, data: Any) -> Any:
        """``old_log_probs`` and ``entropys`` ``[B, R]`` of the policy; ``sum_pi_squared`` where it is needed."""
        answer = self.model.compute_log_prob(data)
        return answer.rename("entropy", "entropys") if isinstance(answer, DataProto) else answer

    @register(dispatch_mode=INFER)
    def compute_ref_log_prob(self, data: Any) -> Any:
        """``ref_log_prob`` ``[B, R]`` of the reference."""
        return self.model.compute_ref_log_prob(data)

    @register(dispatch_mode=UPDATE)
    def update_actor(self, data: Any) -> Any:
        """Train on the batch; metrics a mini-batch in ``meta_info["metrics"]``."""
        return trained(
            data, self._update(self.model.update_actor, data, self.settings.actor_rollout_ref.actor), "actor/"
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def use_rollout(self, rollout: RolloutActors) -> None:
        """Let ``generate_sequences`` ask the server of ``rollout`` instead of starting one."""
        self._rollout = rollout

    @register(dispatch_mode=GENERATE)
    def generate_sequences(self, prompts: DataProto | None) -> DataProto | None:
        """B trajectories of B rows of prompts, from the policy as it is now; see ``AgentLoopManager``.

        Up to verl 0.4 this method itself played ``rollout.n`` sessions a prompt: prompts that are not repeated yet are
        repeated here.
        """
        weights = self.model.full_weights()
        if prompts is None:
            return None
        n = self.settings.actor_rollout_ref.rollout.n
        sampling = prompts.meta_info.get("do_sample", True) and not prompts.meta_info.get("validate", False)
        data = self.settings.data
        if sampling and not is_repeated(prompts, n, data.gen_batch_size or data.train_batch_size):
            prompts = prompts.repeat(n, interleave=True)
        if self._manager is None:
            self._source = WeightsAtHand(self._rollout or self._start_rollout())
            # Of a loop that does not tell its step, the updates so far are one: they are saved with the model.
            self._manager = AgentLoopManager(
                self.settings, self._source, scores=lambda _: False, step=lambda: self.model.updates
            )
        self._source.weights = weights
        return self._manager.generate_sequences(prompts)

    def _start_rollout(self) -> RolloutActors:
        agents = self.settings.actor_rollout_ref.rollout.agent.num_workers
        bundles = [{"CPU": ACTOR_CPUS}] * (agents + 1)
        placement = reserve(bundles, self.settings.runtime.schedule_timeout_s)
        options = [placement.options(bundle, ACTOR_CPUS) for bundle in range(len(bundles))]
        rollout = RolloutActors(self.settings, AgentLoopWorker, options[0], options[1:])
        rollout.wait()
        return rollout


class WeightsAtHand:
    """Weights that the caller has gathered already, for an ``AgentLoopManager`` inside one of the ranks."""

    def __init__(self, rollout: RolloutActors) -> None:
        self.rollout = rollout
        self.weights: Any = None

    def bring_newest(self) -> None:
        """Give the server the weights, whose version only the ranks together could tell."""
        self.rollout.update_weights(self.weights)

    def sleep(self) -> None:
        """Let the server give its device memory back until the next sessions."""
        self.rollout.sleep()


class CriticWorker(ModelEngineWorker):
    """One rank of the critic (verl's worker of that name)."""

    model: RuntimeCriticWorker

    critic_module = ModelEngineWorker._module
    critic_optimizer, critic_lr_scheduler = ModelEngineWorker._optimizer, ModelEngineWorker._schedule

    def build_model(self) -> RuntimeCriticWorker:
        return RuntimeCriticWorker(self.rank, self.world_size, self.settings)

    @register(dispatch_mode=INFER)
    def compute_values(self, data: Any) -> Any:
        """``values`` ``[B, R]`` of the critic as it is now."""
        return self.model.compute_values(data)

    @register(dispatch_mode=UPDATE)
    def update_critic(self, data: Any) -> Any:
        """Train on the batch; metrics a mini-batch in ``meta_info["metrics"]``."""
        return trained(data, self._update(self.model.update_critic, data, self.settings.critic), "critic/")

    @register(dispatch_mode=INFER, blocking=False)
    def infer_batch(self, data: Any) -> Any:
        """``compute_values`` by the name of verl 0.9, whose caller waits with ``get``."""
        return self.model.compute_values(data)

    @register(dispatch_mode=UPDATE, blocking=False)
    def train_mini_batch(self, data: Any) -> Any:
        """``update_critic`` by the name of verl 0.9, whose caller waits with ``get``."""
        return trained(data, self._update(self.model.update_critic, data, self.settings.critic), "critic/")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset(self) -> None:
        """``init_model`` by the name of verl 0.9."""
        ModelEngineWorker.init_model(self)


def trained(data: Any, metrics: dict[str, list[float]], prefix: str) -> Any:
    """The answer to an update: no columns, and the metrics of each mini-batch.

    A ``DataProto`` has them in ``meta_info["metrics"]``; a ``TensorDict``, as in verl 0.9, without their ``prefix``
    and with ``mfu``, which is not measured here.
    """
    if isinstance(data, DataProto):
        return DataProto(meta_info={"metrics": metrics})
    return get_tensordict({}, {"metrics": {**{k.removeprefix(prefix): v for k, v in metrics.items()}, "mfu": [0.0]}})


def _refuse_remote(hdfs_path: str | None) -> None:
    if hdfs_path is not None:
        raise CheckpointError(f"checkpoints are not copied to {hdfs_path}; leave hdfs_path out and copy the folder")
