"""The worker groups of the legacy trainer: which worker serves which role, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf

from compat.single_controller.actors import RayClassWithInitArgs, create_colocated_worker_cls
from compat.single_controller.pools import RayResourcePool, ResourcePoolManager
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from legacy.model_workers import ActorRolloutRefWorker, CriticWorker
from runtime.cluster import Placement, reserve
from runtime.config import uses_critic, uses_reference
from runtime.errors import ConfigError
from runtime.trainer.policy_weights import PolicyWeights
from runtime.trainer.rollout_actors import RolloutActors
from runtime.trainer.workers import ACTOR_CPUS, Workers
from runtime.workers.group import WorkerGroup

POOL = "global_pool"


def default_workers(config: DictConfig) -> dict[Role, Any]:
    """The Ray actor class of each role that ``config`` needs, as verl's ``TaskRunner`` maps them."""
    actor = Role.ActorRolloutRef if uses_reference(config) else Role.ActorRollout
    workers: dict[Role, Any] = {actor: ray.remote(ActorRolloutRefWorker)}
    if uses_critic(config):
        workers[Role.Critic] = ray.remote(CriticWorker)
    return workers


def default_pools(config: DictConfig, workers: Mapping[Role, Any]) -> ResourcePoolManager:
    """One pool of ``nnodes * n_gpus_per_node`` ranks that all roles share."""
    spec = {POOL: [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
    return ResourcePoolManager(resource_pool_spec=spec, mapping=dict.fromkeys(workers, POOL))


@dataclass
class ModelGroups:
    """The groups of a trainer and what gives their resources back.

    reference: the actor's group where it holds the reference too. reward_model: where the recipe maps its role.
    """

    config: DictConfig
    actor: RayWorkerGroup
    critic: RayWorkerGroup | None
    reference: RayWorkerGroup | None
    reward_model: RayWorkerGroup | None
    manager: ResourcePoolManager
    _placements: list[Placement] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        config: DictConfig,
        workers: Mapping[Role, Any],
        manager: ResourcePoolManager,
        group_class: type[RayWorkerGroup],
    ) -> ModelGroups:
        """Start one actor a role and rank, whose models are not loaded yet.

        ``ConfigError`` names a role that the config needs and nobody serves.
        """
        arguments = _worker_arguments(config, workers)
        if not manager.resource_pool_dict:
            manager.create_resource_pool()
        by_pool: dict[RayResourcePool, dict[str, RayClassWithInitArgs]] = {}
        for role, worker in arguments.items():
            by_pool.setdefault(manager.get_resource_pool(role), {})[str(role)] = worker
        groups: dict[str, RayWorkerGroup] = {}
        try:
            for pool, of_pool in by_pool.items():
                pool.timeout_s = config.runtime.schedule_timeout_s
                classes = create_colocated_worker_cls(of_pool)
                together = group_class(resource_pool=pool, ray_cls_with_init=classes, device_name=config.trainer.device)
                groups |= together.spawn(prefix_set=of_pool.keys())
        except BaseException:
            release(manager)
            raise
        actor_role = _actor_role(workers)
        actor = groups[str(actor_role)]
        shared = actor if actor_role is Role.ActorRolloutRef else None
        reference = groups.get(str(Role.RefPolicy), shared) if uses_reference(config) else None
        critic, reward_model = groups.get(str(Role.Critic)), groups.get(str(Role.RewardModel))
        return cls(config, actor, critic, reference, reward_model, manager)

    def load_models(self) -> None:
        """Load the model of every group; the groups wait for each other."""
        for group in dict.fromkeys((self.actor, self.critic, self.reference, self.reward_model)):
            if group is not None:
                group.init_model()

    def with_rollout(self, agent_loop_class: type, load: Callable[[], None] = lambda: None) -> Workers:
        """Start the rollout beside rank 0 of the actor and, while it starts, ``load`` the models; wait for all."""
        config = self.config
        agents = reserve(
            [{"CPU": ACTOR_CPUS}] * config.actor_rollout_ref.rollout.agent.num_workers,
            config.runtime.schedule_timeout_s,
        )
        self._placements.append(agents)
        rollout = RolloutActors(
            config,
            agent_loop_class,
            self._beside_the_actor(),
            [agents.options(bundle, ACTOR_CPUS) for bundle in range(len(agents.group.bundle_specs))],
        )
        load()
        rollout.wait()
        if hasattr(self.actor, "use_rollout"):
            self.actor.use_rollout(rollout)
        critic = None if self.critic is None else _handles("CriticWorker", self.critic)
        return Workers(_handles("ActorRolloutRefWorker", self.actor), critic, rollout, self.release)

    def _beside_the_actor(self) -> dict[str, Any]:
        """Where the rollout server stands: with rank 0 of the actor, in a bundle of its own where that has no pool."""
        if self.actor.resource_pool is not None:
            return self.actor.resource_pool.options(0)
        place = reserve([{"CPU": ACTOR_CPUS}], self.config.runtime.schedule_timeout_s)
        self._placements.append(place)
        return place.options(0, ACTOR_CPUS)

    def release(self) -> None:
        """End every actor and give their resources back."""
        for placement in self._placements:
            placement.release()
        release(self.manager)


def release(manager: ResourcePoolManager) -> None:
    """Give back every pool; the actors in them end."""
    for pool in manager.resource_pool_dict.values():
        pool.release()
    manager.resource_pool_dict.clear()


class CheckpointManager:
    """verl's ``checkpoint_manager``: what a recipe's loop calls around rollout and after an update."""

    def __init__(self, weights: PolicyWeights) -> None:
        self.weights = weights

    def update_weights(self, global_steps: int | None = None) -> None:  # noqa: ARG002
        """Bring the policy's weights to the rollout server, which wakes up for them."""
        self.weights.bring_newest()

    def sleep_replicas(self) -> None:
        """Let the rollout server give its device memory back until the next weights or sessions."""
        self.weights.sleep()


def _worker_arguments(config: DictConfig, workers: Mapping[Role, Any]) -> dict[Role, RayClassWithInitArgs]:
    """The workers that ``config`` needs, with the arguments that verl gives them."""
    actor = _actor_role(workers)
    needed: dict[Role, dict[str, Any]] = {actor: {"config": config.actor_rollout_ref, "role": str(actor)}}
    if uses_critic(config):
        needed[Role.Critic] = {"config": config.critic}
    if uses_reference(config) and actor is Role.ActorRollout:
        needed[Role.RefPolicy] = {"config": config.actor_rollout_ref, "role": "ref"}
    if Role.RewardModel in workers:
        # Its settings under the name of the version that the recipe was written for.
        given = OmegaConf.select(config, "reward_model")
        needed[Role.RewardModel] = {"config": config.reward.reward_model if given is None else given}
    if missing := [role for role in needed if role not in workers]:
        raise ConfigError(
            f"role_worker_mapping has no worker for {', '.join(map(str, missing))}, which the config needs; it has "
            f"{', '.join(map(str, workers))}"
        )
    return {role: RayClassWithInitArgs(cls=workers[role], **arguments) for role, arguments in needed.items()}


def _actor_role(workers: Mapping[Role, Any]) -> Role:
    for role in (Role.ActorRolloutRef, Role.ActorRollout):
        if role in workers:
            return role
    raise ConfigError("role_worker_mapping has neither Role.ActorRollout nor Role.ActorRolloutRef")


def _handles(name: str, group: RayWorkerGroup) -> WorkerGroup:
    return WorkerGroup(name, group.workers)
