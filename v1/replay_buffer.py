"""Which trajectories make a training batch: whole prompt groups, by their tags, without touching a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from runtime import errors
from runtime.agent_loop.runner import unfinished
from runtime.identity import TrajectoryKey
from v1 import data_plane
from v1.agent_loop import FAILURE, SUCCESS
from v1.data_plane import DrawnBatch, KVBatchMeta, Rows

_POLL_SECONDS = 0.02


class ReplayBuffer:
    """Collects the prompt groups of a partition (verl's ``ReplayBuffer``, mode ``sync``)."""

    def __init__(self, partition_id: str, config: DictConfig) -> None:
        self.partition_id = partition_id
        self.config = config

    def sample(self, uids: Sequence[str], check_producers: Callable[[], None] = lambda: None) -> KVBatchMeta:
        """Wait until every prompt of ``uids`` has settled; keys in canonical order (place in ``uids``, session, index).

        check_producers: called while waiting; raises when what fills the buffer has died.
        Raises the typed error of a session that failed, and ``RolloutError`` with the uids that have not settled
        after ``runtime.rollout_timeout_s``.
        """
        deadline = time.monotonic() + self.config.runtime.rollout_timeout_s
        while True:
            tags = data_plane.list_tags(self.partition_id)
            for uid in uids:
                if tags.get(uid, {}).get("status") == FAILURE:
                    raise _failure(uid, tags[uid])
            waiting = [uid for uid in uids if uid not in tags]
            if not waiting:
                return self._materialize(uids, tags)
            if time.monotonic() > deadline:
                raise unfinished(waiting, len(uids), self.config)
            check_producers()
            time.sleep(_POLL_SECONDS)

    def clear(self, batch: Rows) -> None:
        """Remove a used batch, also its rows that were not drawn, and the prompts' own keys."""
        keys = batch.drawn_from.keys if isinstance(batch, DrawnBatch) else batch.keys
        uids = {TrajectoryKey.parse(key).uid for key in keys}
        data_plane.clear([*keys, *sorted(uids)], self.partition_id)

    def _materialize(self, uids: Sequence[str], tags: Mapping[str, Mapping[str, Any]]) -> KVBatchMeta:
        place = {uid: position for position, uid in enumerate(uids)}
        parsed = [TrajectoryKey.parse(key) for key, tag in tags.items() if tag.get("status") == SUCCESS]
        keys = sorted(
            (key for key in parsed if key.uid in place), key=lambda key: (place[key.uid], key.session_id, key.index)
        )
        names = [str(key) for key in keys]
        return KVBatchMeta(keys=names, tags=[dict(tags[name]) for name in names], partition_id=self.partition_id)


def _failure(uid: str, tag: Mapping[str, Any]) -> errors.VerliftError:
    error_class = getattr(errors, tag.get("error_type", ""), None)
    if isinstance(error_class, type) and issubclass(error_class, errors.VerliftError):
        return error_class(f"{tag['error']} (uid {uid})")
    return errors.RolloutError(f"a session of uid {uid} failed: {tag.get('error')}")
