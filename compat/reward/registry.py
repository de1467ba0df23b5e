"""verl's two registries of reward managers, over the one of ``runtime.reward``.

A name that is built in stands for a manager of its own kind in each: on a ``DataProto`` batch in
``verl.workers.reward_manager``, on one response in ``verl.experimental.reward_loop.reward_manager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from compat.reward import managers, response_managers
from runtime.errors import ConfigError
from runtime.reward import registry
from runtime.reward.registry import register_reward_manager

ManagerClass = TypeVar("ManagerClass", bound=type)

BATCH_LEVEL: dict[str, type] = {
    "naive": managers.NaiveRewardManager,
    "dapo": managers.DAPORewardManager,
    "prime": managers.PrimeRewardManager,
    "batch": managers.BatchRewardManager,
    "rate_limited": response_managers.RateLimitedRewardManager,
}
ONE_RESPONSE: dict[str, type] = {
    "naive": response_managers.NaiveRewardManager,
    "dapo": response_managers.DAPORewardManager,
    "gdpo": response_managers.GDPORewardManager,
    "rate_limited": response_managers.RateLimitedRewardManager,
    "remote": response_managers.RemoteRewardManager,
}


class UnknownManagerError(ConfigError, ValueError):
    """No reward manager has that name; verl raises ValueError."""


def register(name: str) -> Callable[[ManagerClass], ManagerClass]:
    """Class decorator that files a manager of either kind for ``reward.reward_manager.name``.

    A built-in name may be taken over, with a warning; another class under a recipe's name raises ConfigError.
    """
    return register_reward_manager(name, replace=True)


def get_reward_manager_cls(name: str) -> type:
    """The manager ``name`` of ``verl.workers.reward_manager``; UnknownManagerError lists the names there are."""
    return REWARD_MANAGER_REGISTRY[name]


def get_response_manager_cls(name: str) -> type:
    """The manager ``name`` of ``verl.experimental.reward_loop.reward_manager``; UnknownManagerError as above."""
    return REWARD_MANAGER[name]


class Registered(Mapping[str, type]):
    """A live view: what recipes registered, and under each other name the built-in one of this kind."""

    def __init__(self, built_in: Mapping[str, type]) -> None:
        self._built_in = built_in

    def __getitem__(self, name: str) -> type:
        found = registry.registered().get(name)
        if found is None or found is registry.BUILT_IN.get(name):
            found = self._built_in.get(name) or ONE_RESPONSE.get(name)
        if found is None:
            raise UnknownManagerError(f"unknown reward manager {name!r}; there are {sorted(self)}")
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in registry.registered()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._built_in, **registry.registered()})

    def __len__(self) -> int:
        return len({**self._built_in, **registry.registered()})


REWARD_MANAGER_REGISTRY = Registered(BATCH_LEVEL)
REWARD_MANAGER = Registered(ONE_RESPONSE)
