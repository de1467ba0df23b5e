"""The standing trainers of every number of ranks, started when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from omegaconf import DictConfig

from parity_tests.isolated.standing import Standing, StandingLegacy, StandingV1
from parity_tests.run import for_parity
from runtime.cluster import start_ray
from runtime.config import load_config, num_ranks
from runtime.trainer.hooks import StageHook

SIDES: Mapping[str, type[Standing]] = {"legacy": StandingLegacy, "v1": StandingV1}
"""The trainers by the names that reports give them."""

# A critic and a reference are started for whoever asks. One thread a rank, so that both sides compute at once on two
# cores without a word of their threads in the results.
_EVERYONE = ("algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true", "runtime.torch_threads=1")


class Bench:
    """Both trainers for any config of the ``tiny`` model; a context manager that ends their actors."""

    def __init__(self) -> None:
        self._standing: dict[tuple[str, int], Standing] = {}
        self._folder = TemporaryDirectory(prefix="verlift-bench-")
        # Both sides start at once, and Ray is not to be started twice.
        start_ray(load_config("tiny").config)

    def trainer(self, side: str, config: DictConfig, hooks: Sequence[StageHook] = (), plays: bool = False) -> Standing:
        """The trainer ``legacy`` or ``v1``, serving ``config`` from fresh weights. plays: see ``Standing.serve``."""
        standing = self.standing(side, num_ranks(config))
        standing.serve(config, hooks, plays)
        return standing

    def standing(self, side: str, ranks: int) -> Standing:
        """The trainer as it stands, whatever it served last."""
        if (side, ranks) not in self._standing:
            config = load_config("tiny", [*_EVERYONE, f"trainer.n_gpus_per_node={ranks}"]).config
            started = SIDES[side](for_parity(config, side, 1, Path(self._folder.name) / side))
            self._standing[side, ranks] = started
        return self._standing[side, ranks]

    def player(self, side: str) -> Callable[..., Standing]:
        """What ``run.capture_run`` takes for a trainer's class: it starts nothing, and its sessions are played."""
        return lambda config, hooks=(): self.trainer(side, config, hooks, plays=True)

    def close(self) -> None:
        """End every actor."""
        for standing in self._standing.values():
            standing.end()
        self._standing.clear()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
