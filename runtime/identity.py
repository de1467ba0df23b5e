"""Names and seeds that do not depend on where or when a trajectory is computed."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_UID_NAMESPACE = uuid.UUID("8c0d6c0e-6a53-5d0a-9b2e-8b4cf5b0b0a1")


class PromptIdentity(NamedTuple):
    """What makes one submission of one prompt unlike any other.

    seed: the global seed. partition: ``train`` or ``val``. step: the training step it was submitted in.
    row: row number in the concatenated file, before filtering. occurrence: 0, 1, ... when a row comes again in a step.
    """

    seed: int
    partition: str
    step: int
    row: int
    occurrence: int = 0

    @property
    def uid(self) -> str:
        """A uuid5 of the five parts: the same prompt has the same uid in both trainers."""
        return str(uuid.uuid5(_UID_NAMESPACE, "/".join(map(str, self))))

    def request_seed(self, session_id: int, turn: int = 0) -> int:
        """The sampling seed of one turn of one session, a non-negative 63-bit integer.

        A hash of identity, session and turn, never of a place in a batch or chunk, so any chunking gives the same
        seeds and no two requests share one.
        """
        text = "/".join(map(str, (*self, session_id, turn)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def mixed_seed(*numbers: int) -> int:
    """One seed of several numbers, so that (42, 1) and (43, 0) are unrelated; a non-negative 63-bit integer."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


@dataclass(frozen=True, order=True, slots=True)
class TrajectoryKey:
    """``{uid}_{session_id}_{index}``, the name of one output of one session of one prompt."""

    uid: str
    session_id: int
    index: int

    def __str__(self) -> str:
        return f"{self.uid}_{self.session_id}_{self.index}"

    @classmethod
    def parse(cls, key: str) -> TrajectoryKey:
        """Read a key from the right, because a uid may contain ``_``.

        >>> TrajectoryKey.parse("my_uid_3_0")
        TrajectoryKey(uid='my_uid', session_id=3, index=0)
        """
        parts = key.rsplit("_", 2)
        if len(parts) != 3 or not parts[0] or not (parts[1].isdecimal() and parts[2].isdecimal()):
            raise ValueError(f"{key!r} is not a trajectory key: expected uid_session_index, such as 'a1b2_0_0'")
        return cls(parts[0], int(parts[1]), int(parts[2]))
