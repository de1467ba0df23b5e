"""Plays sequences of operations on a ``DataProto``, verl's or ours, and reports what came out of each as plain data.

Run as a process (``protocol_side.py FOLDER``) it imports verl from FOLDER and reads pickled programs on stdin; the test
runs the same ``play`` on ``compat.protocol`` in its own process.
"""

import contextlib
import io
import os
import pickle
import sys
import tempfile
import types

import numpy as np
import torch


def play(protocol, program):
    """One outcome for each step of ``program``, a list of (operation, argument, ...); the first builds the batch.

    An outcome is (operation, snapshots of the batch and of what else was returned), or ("error",
    names of the exception's classes, message), which ends the sequence. An empty batch ends it too.
    """
    data, outcomes = None, []
    for name, *arguments in program:
        try:
            data, *others = OPERATIONS[name](protocol, data, *arguments)
        except Exception as error:
            outcomes.append(("error", [kind.__name__ for kind in type(error).__mro__], str(error)))
            break
        outcomes.append((name, [snapshot(each) for each in (data, *others)]))
        if len(data) == 0:
            break
    return outcomes


def snapshot(data):
    if hasattr(data, "told"):
        return data.told
    tensors = None if data.batch is None else {key: (str(t.dtype), t.tolist()) for key, t in data.batch.items()}
    arrays = {key: (str(array.dtype), array.tolist()) for key, array in data.non_tensor_batch.items()}
    return {"rows": len(data), "batch": tensors, "non_tensor_batch": arrays, "meta_info": dict(data.meta_info)}


def build(protocol, _, rows, meta_info):
    tensors = {
        "ids": torch.arange(rows * 4).view(rows, 4),
        "score": torch.arange(rows) / 2,
        "mask": (torch.arange(rows * 4).view(rows, 4) % 3 > 0),
    }
    arrays = {
        "uid": np.array([f"u{row}" for row in range(rows)], dtype=object),
        "turns": np.arange(rows, dtype=np.int32),
        "pair": np.arange(2 * rows).reshape(rows, 2),
        "info": np.array([{"row": row} for row in range(rows)], dtype=object),
    }
    return (protocol.DataProto.from_dict(tensors=tensors, non_tensors=arrays, meta_info=dict(meta_info)),)


def permutation(data, seed):
    return torch.from_numpy(np.random.default_rng(seed).permutation(len(data)))


def some(names, bits):
    """The names whose bit is set."""
    return [name for place, name in enumerate(sorted(names)) if bits >> place & 1]


def columns_chosen(data, tensors, arrays, meta):
    return some(data.batch.keys(), tensors), some(data.non_tensor_batch, arrays), some(data.meta_info, meta)


def reorder(_, data, seed):
    data.reorder(permutation(data, seed))
    return (data,)


def pop(_, data, *bits):
    popped = data.pop(*columns_chosen(data, *bits))
    return data, popped


def rename(_, data, bits, new):
    chosen = some(data.batch.keys(), bits)[:1]
    return (data.rename(chosen[0], new) if chosen else data,)


def union(protocol, data, key, value, meta_info, extra_rows):
    """Columns of constants: the second union of one key conflicts unless the constants are the same."""
    rows = len(data) + extra_rows
    tensors, arrays = {key: torch.full((rows,), value)}, {f"{key}_name": np.full(rows, str(value), dtype=object)}
    other = protocol.DataProto.from_dict(tensors=tensors, non_tensors=arrays, meta_info=dict(meta_info))
    return (data.union(other),)


def padding(_, data, size, candidate):
    data.padding(size, candidate)
    return (data,)


def pad(protocol, data, divisor):
    padded, size = protocol.pad_dataproto_to_divisor(data, divisor)
    return padded, protocol.unpad_dataproto(padded, size)


def concat(protocol, data, seed, other_meta):
    other = data.select_idxs(permutation(data, seed))
    other.meta_info = {**other.meta_info, **other_meta}
    return (protocol.DataProto.concat([data, other]),)


def chunk(protocol, data, chunks):
    parts = data.chunk(chunks)
    return protocol.DataProto.concat(parts), *parts


def split(_, data, size):
    parts = data.split(size)
    return parts[-1], *parts


def fold(protocol, data, groups):
    if len(data.batch.keys()) == 0:  # verl cannot
        return (data,)
    return (protocol.unfold_batch_dim(protocol.fold_batch_dim(data, groups)),)


def iterate(_, data, size, epochs, seed, shuffle):
    parts = list(data.make_iterator(size, epochs, seed, {"shuffle": shuffle}))
    for part in parts:  # verl turns every array into dtype object here, ours keeps its dtype: compare the values
        part.non_tensor_batch = {key: array.astype(object) for key, array in part.non_tensor_batch.items()}
    return data, *parts


def collate(protocol, data, rows):
    items = protocol.collate_fn([data[row % len(data)] for row in rows])
    return (items,)


def tensordict(protocol, data):
    if len(data.batch.keys()) == 0:  # verl cannot
        return (data,)
    return (protocol.DataProto.from_tensordict(data.to_tensordict()),)


def batch_data(protocol, data, chunks):
    """The face that worker groups use: what it says of the data, its chunks, and those joined again."""
    wrapped = protocol.BatchData(data)
    says = [wrapped.is_chunkable(), wrapped.is_concatable(), protocol.BatchData([data]).is_concatable()]
    data.meta_info["says"] = says
    parts = wrapped.chunk(chunks)
    return protocol.BatchData(parts).concat(), *parts


def describe(_, data):
    """What is told and printed about a batch."""
    if data.batch is None:  # verl cannot
        return (data,)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        data.print_size("here")
    told = types.SimpleNamespace(told=[data.get_data_info().splitlines(), printed.getvalue()])
    return data, data.select(meta_info_keys=[], deepcopy=True), told


def disk(protocol, data):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data.pkl")
        data.save_to_disk(path)
        return (protocol.DataProto.load_from_disk(path),)


def from_single(protocol, data):
    """Out and in again by the constructor that data loaders use."""
    if len(data.batch.keys()) == 0:
        return (data,)
    columns = {**dict(data.batch.items()), **data.non_tensor_batch}
    return (protocol.DataProto.from_single_dict(columns, dict(data.meta_info)),)


def move(_, data):
    """Moved and copied. A batch that verl has unpickled is locked from then on (deviation P14): it is unlocked here."""
    moved = data.to("cpu").select(deepcopy=True)
    if moved.batch is not None:
        moved.batch.unlock_()
    return (moved,)


OPERATIONS = {
    "batch_data": batch_data,
    "build": build,
    "chunk": chunk,
    "collate": collate,
    "concat": concat,
    "describe": describe,
    "disk": disk,
    "fold": fold,
    "from_single": from_single,
    "index": lambda _, data, rows: (data[[row % len(data) for row in rows]],),
    "index_exactly": lambda _, data, rows: (data[rows],),
    "iterate": iterate,
    "move": move,
    "mask": lambda _, data, bits: (data[[bool(bits >> row & 1) for row in range(len(data))]],),
    "pad": pad,
    "padding": padding,
    "pickle": lambda _, data: (pickle.loads(pickle.dumps(data)),),
    "pop": pop,
    "rename": rename,
    "reorder": reorder,
    "repeat": lambda _, data, times, interleave: (data.repeat(times, interleave),),
    "repeat_rows": lambda _, data, times: (data.sample_level_repeat((times * len(data))[: len(data)]),),
    "select": lambda _, data, *bits: (data.select(*columns_chosen(data, *bits)),),
    "select_named": lambda _, data, key: (data.select(batch_keys=[key]),),
    "slice": lambda _, data, start, stop, step: (data[start:stop:step],),
    "split": split,
    "tensordict": tensordict,
    "unfold": lambda _, data, n, bits: (data.unfold_column_chunks(n, some(["ids", "mask", "pair"], bits)),),
    "union": union,
}


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what verl prints must not mix with the answers
    from verl import protocol as verl_protocol

    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(play(verl_protocol, request), answers)
        answers.flush()
