"""What a capture holds at every layer, as a person would print it while debugging, and what looks wrong in it.

The layers are those of the checklist in ``docs/inspect.md``: dataset row, collate, rollout keys, tags, masks, rewards,
groups, update, and under each stage the columns with unit, shape, lengths and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parity_tests.capture import Capture, StageCapture
from parity_tests.columns import row_pieces
from runtime.fields import Level
from shared_algos.segments import Segments

_DATASET_FIELDS = ("raw_prompt", "reward_model", "extra_info", "data_source")
_BATCH, _SESSIONS = "data.train_batch_size", "actor_rollout_ref.rollout.n"
_PROMPT_WIDTH, _RESPONSE_WIDTH = "data.max_prompt_length", "data.max_response_length"
_WIDTHS: Mapping[Level, tuple[str, ...]] = {
    Level.PROMPT: (_PROMPT_WIDTH,),
    Level.RESPONSE: (_RESPONSE_WIDTH,),
    Level.SEQUENCE: (_PROMPT_WIDTH, _RESPONSE_WIDTH),
}
"""The config keys whose sum is the width of a padded column."""


@dataclass(frozen=True)
class Fact:
    """One thing that is so.

    value: a number, text, or numbers and texts by name. of_trainer: that two trainers differ in it is by design.
    """

    step: int
    layer: str
    name: str
    value: Any
    of_trainer: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong. key: the trajectory or uid, or None."""

    step: int
    layer: str
    text: str
    key: str | None = None


@dataclass(frozen=True)
class Inspection:
    """Facts and findings of one capture, in the order of steps and layers."""

    label: str
    facts: tuple[Fact, ...]
    findings: tuple[Finding, ...]


def inspect_capture(capture: Capture, label: str | None = None) -> Inspection:
    """Look at every step; columns are read in pieces. Raises CaptureError, naming the file, for a damaged capture."""
    found: list[Fact | Finding] = []
    for step, names in capture.index.items():
        stages = {name: capture.stage(step, name) for name in names}
        if "rollout" in stages:
            for layer in (_dataset, _collate, _keys, _tags, _masks, _tokens, _rewards, _groups):
                found += layer(capture, stages)
            found += _update(capture, stages)
        for stage in stages.values():
            found += _columns(capture, stage)
    facts = tuple(each for each in found if isinstance(each, Fact))
    return Inspection(
        label or capture.trainer, facts, tuple(dict.fromkeys(each for each in found if isinstance(each, Finding)))
    )


Stages = Mapping[str, StageCapture]
Found = Iterator[Fact | Finding]


def _dataset(_: Capture, stages: Stages) -> Found:
    """The fields of a dataset row, by the type of their first value."""
    rollout = stages["rollout"]
    types = {name: type(values[0]).__name__ for name, values in rollout.objects.items() if values}
    absent = [name for name in _DATASET_FIELDS if name not in types]
    yield Fact(rollout.step, "dataset row", "prompts", len({key.uid for key in rollout.keys}))
    yield Fact(rollout.step, "dataset row", "fields", types)
    if absent:
        yield Fact(rollout.step, "dataset row", "not there", ", ".join(absent))


def _collate(capture: Capture, stages: Stages) -> Found:
    """Dim 0 of the columns against the lengths of the object arrays; a capture where they differ is not read at all."""
    rollout = stages["rollout"]
    rows = len(rollout.keys)
    container = "DataProto, padded [B, width]" if capture.trainer == "legacy" else "KVBatchMeta, jagged [B, j]"
    device = capture.setting("trainer.device") or "not recorded"
    yield Fact(rollout.step, "collate", "container", container, of_trainer=True)
    yield Fact(rollout.step, "collate", "device of the trainer", f"{device} (a capture is on the CPU)")
    yield Fact(rollout.step, "collate", "dim 0 of columns", rows)
    for level, keys in _WIDTHS.items():
        width = _width(capture, level)
        shape = f"[{rows}, {width}]" if width is not None else f"[{rows}, j]"
        yield Fact(rollout.step, "collate", f"shape of {level} columns", shape, of_trainer=True)
        longest = int(rollout.lengths(level).max()) if rows else 0
        if width is not None and longest > width:
            yield Finding(rollout.step, "collate", f"a {level} has {longest} tokens where {' + '.join(keys)} = {width}")
    yield Fact(rollout.step, "collate", "lengths of objects", {name: len(v) for name, v in rollout.objects.items()})


def _keys(capture: Capture, stages: Stages) -> Found:
    """Distinct sessions a uid, against ``rollout.n``; a session may have several outputs, so rows may exceed it."""
    rollout, expected = stages["rollout"], capture.setting(_SESSIONS)
    sessions: dict[str, set[int]] = {}
    for key in rollout.keys:
        sessions.setdefault(key.uid, set()).add(key.session_id)
    repeated = len(rollout.keys) - len(set(rollout.keys))
    yield Fact(rollout.step, "rollout keys", "trajectories", len(rollout.keys))
    yield Fact(rollout.step, "rollout keys", "distinct sessions a uid", _counts(len(s) for s in sessions.values()))
    yield Fact(rollout.step, "rollout keys", "asked for", f"{_SESSIONS} = {expected}")
    if repeated:
        yield Finding(rollout.step, "rollout keys", f"{repeated} keys come more than once")
    for uid, numbers in sessions.items():
        if expected is not None and len(numbers) != expected:
            text = f"{len(numbers)} distinct sessions where {_SESSIONS} = {expected}"
            yield Finding(rollout.step, "rollout keys", text, uid)


def _tags(_: Capture, stages: Stages) -> Found:
    rollout = stages["rollout"]
    lengths = {"prompt_len": Level.PROMPT, "response_len": Level.RESPONSE, "seq_len": Level.SEQUENCE}
    for tag, level in lengths.items():
        yield Fact(rollout.step, "trajectory tags", tag, _spread(rollout.lengths(level)))
    for row in (rollout.responses.lengths == 0).nonzero().flatten().tolist():
        yield Finding(rollout.step, "trajectory tags", "the response has no token", str(rollout.keys[row]))


def _masks(_: Capture, stages: Stages) -> Found:
    """Tokens that exist, that are of responses, and that count in the loss, after the rollout and after rejection."""
    rollout = stages["rollout"]
    yield Fact(rollout.step, "masks", "attention_mask", int(rollout.lengths(Level.SEQUENCE).sum()))
    yield Fact(rollout.step, "masks", "response tokens", rollout.responses.num_tokens)
    for stage in (stages[name] for name in ("rollout", "advantage") if name in stages):
        if not _stored(stage, "response_mask"):
            continue
        counted = stage.row_sums("response_mask")
        yield Fact(stage.step, "masks", f"loss tokens (response_mask) after {stage.stage}", int(counted.sum()))
        yield Fact(stage.step, "masks", f"loss tokens a row after {stage.stage}", _spread(counted.long()))
        if any(bool(((piece != 0) & (piece != 1)).any()) for piece in stage.pieces("response_mask")):
            yield Finding(stage.step, "masks", f"response_mask after {stage.stage} has values other than 0 and 1")
        if stage.stage == "rollout":
            for row in ((counted == 0) & (stage.responses.lengths > 0)).nonzero().flatten().tolist():
                text = f"all {int(stage.responses.lengths[row])} response tokens have mask 0"
                yield Finding(stage.step, "masks", text, str(stage.keys[row]))


def _tokens(_: Capture, stages: Stages) -> Found:
    """``input_ids`` must be the prompt and then the response, or lengths and masks are of other tokens."""
    rollout = stages["rollout"]
    if not all(_stored(rollout, name) for name in ("prompts", "responses", "input_ids")):
        return
    wrong = 0
    for rows in row_pieces(rollout.lengths(Level.SEQUENCE)):
        whole = _rows(rollout, "input_ids", Level.SEQUENCE, rows)
        segments = Segments.from_lengths(rollout.lengths(Level.SEQUENCE)[rows])
        of_prompt = segments.positions < rollout.prompts.lengths[rows][segments.rows]
        expected = torch.empty_like(whole)
        expected[of_prompt] = _rows(rollout, "prompts", Level.PROMPT, rows).to(whole.dtype)
        expected[~of_prompt] = _rows(rollout, "responses", Level.RESPONSE, rows).to(whole.dtype)
        for row in segments.rows[whole != expected].unique().tolist():
            wrong += 1
            text = "input_ids are not the prompt's tokens and then the response's"
            yield Finding(rollout.step, "masks", text, str(rollout.keys[int(rows[row])]))
    yield Fact(rollout.step, "masks", "input_ids = prompt + response", f"{len(rollout.keys) - wrong} rows")


def _rewards(_: Capture, stages: Stages) -> Found:
    """Each trajectory's ``rm_scores.sum()``, and rewards that stand on a token which the loss does not count."""
    stage = stages.get("reward", stages["rollout"])
    name = "rm_scores" if _stored(stage, "rm_scores") else "token_level_scores"
    if not _stored(stage, name):
        return
    sums = stage.row_sums(name)
    yield Fact(stage.step, "rewards", f"{name}.sum() a row", _spread(sums))
    yield Fact(stage.step, "rewards", "rows with a reward that is not 0", int(sums.count_nonzero()))
    for row in (~sums.isfinite()).nonzero().flatten().tolist():
        yield Finding(stage.step, "rewards", f"the reward is {float(sums[row])}", str(stage.keys[row]))
    rollout = stages["rollout"]
    if _stored(rollout, "response_mask") and stage.keys == rollout.keys:
        masked = (mask == 0 for mask in rollout.pieces("response_mask"))
        start = 0
        for piece, off in zip(stage.pieces(name), masked, strict=False):
            for place in ((piece != 0) & off).nonzero().flatten().tolist():
                row, token = _place(stage.responses, start + place)
                text = f"reward {float(piece[place]):g} on token {token}, whose response_mask is 0"
                yield Finding(stage.step, "rewards", text, str(stage.keys[row]))
            start += len(piece)


def _groups(_: Capture, stages: Stages) -> Found:
    """Rows a uid, and in how many groups of several rows the rewards differ: without that there is no advantage."""
    rollout, stage = stages["rollout"], stages.get("reward")
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(rollout.keys):
        rows.setdefault(key.uid, []).append(row)
    yield Fact(rollout.step, "groups", "rows a uid", _counts(map(len, rows.values())))
    if stage is not None and _stored(stage, "token_level_scores") and stage.keys == rollout.keys:
        scores = stage.row_sums("token_level_scores").tolist()
        differ = sum(len({scores[row] for row in members}) > 1 for members in rows.values())
        yield Fact(rollout.step, "groups", "with different rewards", f"{differ} of {len(rows)}")


def _update(capture: Capture, stages: Stages) -> Found:
    """Batch, mini-batch and ranks, counted in trajectories, and whether each divides."""
    step, rows = stages["rollout"].step, len(stages["rollout"].keys)
    n, prompts = capture.setting(_SESSIONS), capture.setting(_BATCH)
    nodes, each = capture.setting("trainer.nnodes"), capture.setting("trainer.n_gpus_per_node")
    yield Fact(step, "update", "batch", f"{rows} trajectories, {_BATCH} = {prompts} prompts x n = {n}")
    if not (isinstance(nodes, int) and isinstance(each, int) and isinstance(n, int)):
        return
    ranks = nodes * each
    yield Fact(step, "update", "ranks", ranks)
    yield from _division(step, "batch", rows, "ranks", ranks)
    for role in ("actor_rollout_ref.actor", "critic"):
        size = capture.setting(f"{role}.ppo_mini_batch_size")
        if not isinstance(size, int) or f"update_{role.rpartition('.')[2]}" not in stages:
            continue
        name = f"{role}.ppo_mini_batch_size x n"
        yield Fact(step, "update", f"{role} mini-batch", f"{size} prompts x n = {size * n}, {size * n // ranks} a rank")
        yield from _division(step, "batch", rows, name, size * n)
        yield from _division(step, name, size * n, "ranks", ranks)


def _division(step: int, name: str, count: int, divisor_name: str, divisor: int) -> Found:
    if divisor < 1 or count % divisor:
        yield Finding(step, "update", f"{name} = {count} does not divide by {divisor_name} = {divisor}")


def _columns(_: Capture, stage: StageCapture) -> Found:
    """Unit, packed shape, dtype and lengths of each column."""
    for name, info in stage.columns.items():
        told = f"{info.level} {list(info.shape)} {info.dtype}"
        if info.level is not Level.ROW and stage.keys:
            lengths = stage.lengths(info.level)
            told += f", lengths {int(lengths.min())} to {int(lengths.max())}"
        yield Fact(stage.step, f"stage {stage.stage}", name, told)


def _width(capture: Capture, level: Level) -> int | None:
    """How wide the legacy container pads a column; None in V1, which pads none, and where no config key says."""
    widths = [capture.setting(key) for key in _WIDTHS[level]]
    known = capture.trainer == "legacy" and all(isinstance(width, int) for width in widths)
    return sum(widths) if known else None


def _rows(stage: StageCapture, name: str, level: Level, rows: Tensor) -> Tensor:
    lengths = stage.lengths(level)
    starts = lengths.cumsum(0) - lengths
    return stage.read_ranges(name, starts[rows], (starts + lengths)[rows])


def _place(segments: Segments, token: int) -> tuple[int, int]:
    """The row of a packed token, and its place in that row."""
    row = int(torch.searchsorted(segments.offsets, token, right=True)) - 1
    return row, token - int(segments.offsets[row])


def _stored(stage: StageCapture, name: str) -> bool:
    return name in stage.columns and stage.columns[name].stored


def _counts(numbers: Any) -> dict[str, int]:
    """How often each number comes: ``{"3": 5}`` for five threes."""
    found: dict[int, int] = {}
    for number in numbers:
        found[number] = found.get(number, 0) + 1
    return {str(number): found[number] for number in sorted(found)}


def _spread(values: Tensor) -> dict[str, float]:
    """Least, mean and largest; numbers that are not finite as they are."""
    if not len(values):
        return {}
    number: Callable[[Tensor], float] = (lambda x: float(x)) if values.is_floating_point() else (lambda x: int(x))
    return {"min": number(values.min()), "mean": round(float(values.double().mean()), 4), "max": number(values.max())}
