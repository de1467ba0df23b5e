"""The way of the policy's weights from its ranks to the rollout server."""

from __future__ import annotations

from runtime.trainer.rollout_actors import RolloutActors
from runtime.workers.group import WorkerGroup, get


class PolicyWeights:
    """Brings weights to the server and knows which ones it has.

    Ranks tell a fingerprint of theirs, so that weights travel once, whoever asks for them and whatever code trained.
    """

    def __init__(self, actor: WorkerGroup, rollout: RolloutActors) -> None:
        self.actor, self.rollout = actor, rollout
        self._brought: list[int] | None = None
        self._asleep = False

    def bring_newest(self) -> None:
        """Wake the server and give it the weights as they are now, unless it has them."""
        if self._asleep:
            get(self.rollout.server.wake_up.remote(), "rollout")
            self._asleep = False
        fingerprints = self.actor.call_all("fingerprint")
        if fingerprints != self._brought:
            self.rollout.update_weights(self.actor.call_all("full_weights")[0])
            self._brought = fingerprints

    def sleep(self) -> None:
        """Give the server's device memory back until the next ``bring_newest``."""
        if not self._asleep:
            get(self.rollout.server.sleep.remote(), "rollout")
            self._asleep = True
