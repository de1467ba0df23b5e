"""Calls a registered method on ranks that are plain functions, through verl's dispatch or ours.

Run as a process (``single_controller_side.py FOLDER``) it imports verl from FOLDER and reads pickled cases on stdin;
the test runs the same ``play`` on ``compat.single_controller`` in its own process.
"""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import torch


def play(sides, case):
    """What the driver gets for ``case``, as plain data: ("answer", ...) or ("error", names of the classes).

    sides: module-like objects ``protocol``, ``decorator``, and ``func_generator``, ``group(world_size)``. case: (mode,
    rows, world_size, auto_padding, mapping and mask of a mesh).
    """
    mode, rows, world_size, auto_padding, mapping, mask = case
    group = sides.group(world_size)
    if mode == "mesh":
        group._query_dispatch_info = lambda _: mapping
        group._query_collect_info = lambda _: mask
        functions = sides.decorator.make_nd_compute_dataproto_dispatch_fn("mesh")
    else:
        functions = sides.decorator.get_predefined_dispatch_fn(getattr(sides.decorator.Dispatch, mode))
    calls = []

    def execute(_, *args, **kwargs):
        """What ``execute_all`` does, in this process: lists with one entry a rank are dealt out."""
        values = [*args, *kwargs.values()]
        dealt = all(isinstance(value, list | tuple) and len(value) == world_size for value in values)
        for rank in range(world_size):
            mine = [value[rank] if dealt else value for value in values]
            calls.append([plain(value) for value in mine])
        return [work(sides.protocol.DataProto, rank, mode, calls[rank], mine) for rank, mine in enumerate(shards())]

    def shards():
        return [[value for value in call if not callable(value)] for call in calls]

    method = sides.func_generator(group, "work", **functions, execute_fn=execute, blocking=False)
    try:
        answer = method(*arguments(sides.protocol.DataProto, mode, rows, world_size, auto_padding))
    except Exception as error:
        return ("error", [kind.__name__ for kind in type(error).__mro__])
    return ("answer", plain(answer), [[plain(value) for value in call if not callable(value)] for call in calls])


def arguments(container, mode, rows, world_size, auto_padding):
    batch = container.from_dict(
        {"ids": torch.arange(2 * rows).view(rows, 2)},
        {"uid": np.array([f"u{row}" for row in range(rows)], dtype=object)},
        {"step": 3},
        auto_padding=auto_padding,
    )
    scores = container.from_dict({"score": torch.arange(rows) / 2}, auto_padding=auto_padding)
    if mode == "DP_COMPUTE":
        return ([batch] * world_size, list(range(world_size)))
    if mode == "DP_COMPUTE_PROTO_WITH_FUNC":
        return (lambda: None, batch, scores)
    return (batch, scores)


def work(container, rank, mode, _, call):
    if mode in ("ONE_TO_ALL", "ALL_TO_ALL", "DP_COMPUTE", "DP_COMPUTE_METRIC"):
        return {"rank": rank, "rows": [value["rows"] if isinstance(value, dict) else value for value in call]}
    ids = torch.tensor(call[0]["batch"]["ids"]).view(-1, 2)
    return container.from_dict(
        {"twice": ids * 2, "rank": torch.full((len(ids),), rank)}, {"uid": call[0]["arrays"]["uid"]}
    )


def plain(value):
    if not hasattr(value, "meta_info"):
        return value
    return {
        "rows": len(value),
        "batch": {key: column.tolist() for key, column in value.batch.items()},
        "arrays": {key: array.tolist() for key, array in value.non_tensor_batch.items()},
    }


def verl_sides():
    from verl import protocol
    from verl.single_controller.base import decorator
    from verl.single_controller.base.worker_group import WorkerGroup
    from verl.single_controller.ray.base import func_generator
    from verl.utils import ray_utils

    # A shard goes through Ray's object store there; the ranks of this process need none.
    ray_utils.parallel_put = lambda parts, **_: list(parts)

    class Ranks(WorkerGroup):
        def __init__(self, world_size):
            super().__init__(None)
            self._workers = list(range(world_size))

    return SimpleNamespace(protocol=protocol, decorator=decorator, func_generator=func_generator, group=Ranks)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what verl prints must not mix with the answers
    sides = verl_sides()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(play(sides, request), answers)
        answers.flush()
