"""The way of the policy's weights from its ranks to the rollout server."""

from __future__ import annotations

from runtime.trainer.rollout_actors import RolloutActors
from runtime.workers.group import WorkerGroup


class PolicyWeights:
    """Brings weights to the server.

    Ranks tell a fingerprint of theirs, and the server which one it has, so that weights travel once, whoever asks for
    them, whatever code trained, and whoever brought the last ones.
    """

    def __init__(self, actor: WorkerGroup, rollout: RolloutActors) -> None:
        self.actor, self.rollout = actor, rollout

    def bring_newest(self) -> None:
        """Give the server the weights as they are now, unless it has them; it wakes up for them."""
        version = tuple(self.actor.call_all("fingerprint"))
        if version != self.rollout.held_version():
            self.rollout.update_weights(self.actor.call_all("full_weights")[0], version)

    def sleep(self) -> None:
        """Give the server's device memory back until the next ``bring_newest``."""
        self.rollout.sleep()
