"""The tokens around the first divergence, as text: a token index alone says nothing to a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity_tests.capture import Capture, StageCapture, setting
from parity_tests.rows import join_rows
from parity_tests.verdict import FieldVerdict, Kind, Verdict
from runtime.errors import CaptureError, VerliftError
from runtime.fields import Level
from runtime.fs import copy_to_local
from runtime.identity import TrajectoryKey

TOKENS_STAGE = "rollout"
BEFORE, AFTER = 64, 32
"""Tokens shown on either side: some six lines, so that the page shows them without scrolling."""


@dataclass(frozen=True)
class TokenView:
    """One token. part: ``prompt`` or ``response``, and place counts within it. text: None when it cannot be decoded.

    generated: its ``response_mask`` is 1, or there is none. marked: the field diverges here.
    """

    part: str
    place: int
    id: int
    text: str | None
    generated: bool
    marked: bool


@dataclass(frozen=True)
class Excerpt:
    """A stretch of one row of one side.

    row: its dataset objects by name. before, after: tokens of the row that are left out on either side. problem: why
    the tokens have no text; empty when they have.
    """

    label: str
    key: str
    row: Mapping[str, Any]
    tokens: tuple[TokenView, ...]
    before: int
    after: int
    problem: str = ""


def excerpts_of(verdict: Verdict, left: Capture | None, right: Capture | None) -> tuple[Excerpt, ...]:
    """The row of the first divergence as the left side has it, and as the right side has it where its tokens differ."""
    first = verdict.first
    key = _trajectory(first)
    if first is None or key is None:
        return ()
    sides = _tokens_stage(left, first.step), _tokens_stage(right, first.step)
    rows = _rows(key, *sides, by_position=verdict.joined_by_position)
    found: list[Excerpt] = []
    for label, capture, stage, row in zip(verdict.labels, (left, right), sides, rows, strict=True):
        if capture is not None and stage is not None and row is not None:
            excerpt = _excerpt(label, capture, stage, row, first)
            if excerpt.tokens and not any(_same_tokens(excerpt, other) for other in found):
                found.append(excerpt)
    return tuple(found)


def _trajectory(field: FieldVerdict | None) -> TrajectoryKey | None:
    try:
        return TrajectoryKey.parse(field.key) if field and field.key else None
    except ValueError:  # a mini-batch
        return None


def _tokens_stage(capture: Capture | None, step: int) -> StageCapture | None:
    there = capture is not None and TOKENS_STAGE in capture.index.get(step, ())
    return capture.stage(step, TOKENS_STAGE) if capture is not None and there else None


def _rows(
    key: TrajectoryKey, left: StageCapture | None, right: StageCapture | None, by_position: bool
) -> tuple[int | None, int | None]:
    """The row of ``key``, which is of the left side where it has it, on both sides; None where there is none."""
    if left is not None and right is not None:
        join = join_rows(left, right, by_position)
        if key in join.keys:
            place = join.keys.index(key)
            return int(join.left[place]), int(join.right[place])
    ours, theirs = (side.keys.index(key) if side and key in side.keys else None for side in (left, right))
    return ours, theirs


def _excerpt(label: str, capture: Capture, stage: StageCapture, row: int, first: FieldVerdict) -> Excerpt:
    ids, mask = _row_tokens(stage, row)
    prompt = int(stage.prompts.lengths[row])
    mark = _mark(first, capture, prompt)
    middle = prompt if mark is None else min(mark, len(ids) - 1)
    start, stop = max(0, middle - BEFORE), min(len(ids), middle + AFTER + 1)
    texts, problem = _decode(capture, ids[start:stop])
    tokens = tuple(
        TokenView(
            part="prompt" if place < prompt else "response",
            place=place if place < prompt else place - prompt,
            id=ids[place],
            text=text,
            generated=place < prompt or mask is None or bool(mask[place - prompt]),
            marked=place == mark,
        )
        for place, text in zip(range(start, stop), texts, strict=True)
    )
    objects = {name: values[row] for name, values in stage.objects.items()}
    return Excerpt(label, str(stage.keys[row]), objects, tokens, start, len(ids) - stop, problem)


def _row_tokens(stage: StageCapture, row: int) -> tuple[list[int], list[int] | None]:
    """The token ids of prompt and response, and the mask of the response; nothing else is read.

    No tokens when the capture is a baseline that kept only their sha256.
    """
    there = {name for name, info in stage.columns.items() if info.stored}

    def part(name: str, level: Level) -> list[int]:
        lengths = stage.lengths(level)
        stop = lengths.cumsum(0)[row : row + 1]
        return stage.read_ranges(name, stop - lengths[row], stop).tolist()

    mask = part("response_mask", Level.RESPONSE) if "response_mask" in there else None
    if {"prompts", "responses"} <= there:
        return part("prompts", Level.PROMPT) + part("responses", Level.RESPONSE), mask
    return (part("input_ids", Level.SEQUENCE) if "input_ids" in there else []), mask


def _mark(first: FieldVerdict, capture: Capture, prompt: int) -> int | None:
    """Where in prompt + response the token of ``first`` is; None for a field of the whole row."""
    if first.token is None:
        return None
    if first.kind is Kind.LENGTHS:
        return first.token + (0 if first.field == "prompt_lengths" else prompt)
    names = capture.index.get(first.step, ())
    column = capture.stage(first.step, first.stage).columns.get(first.field) if first.stage in names else None
    within_response = column is None or column.level is Level.RESPONSE
    return first.token + (prompt if within_response else 0)


def _same_tokens(one: Excerpt, other: Excerpt) -> bool:
    return [token.id for token in one.tokens] == [token.id for token in other.tokens]


def _decode(capture: Capture, ids: Sequence[int]) -> tuple[list[str | None], str]:
    """One text a token, or why there are none."""
    try:
        tokenizer = _tokenizer(capture.config)
        return list(_pieces(tokenizer, ids)), ""
    except Exception as error:  # a report is made wherever the capture is; the model may be elsewhere
        reason = str(error) if isinstance(error, VerliftError) else f"{type(error).__name__}: {error}".splitlines()[0]
        return [None] * len(ids), f"The tokenizer of the run cannot be loaded here, so token ids are shown. {reason}"


def _tokenizer(config: Mapping[str, Any]) -> Any:
    """The run's tokenizer, from what is on this machine; code that comes with a model is not run for a report."""
    from transformers import AutoTokenizer  # takes seconds, and a report without a divergence needs none

    paths = (setting(config, f"actor_rollout_ref.model.{key}") for key in ("tokenizer_path", "path"))
    path = next(filter(None, paths), None)
    if not path:
        raise CaptureError("The config of the capture names no model.")
    local = copy_to_local(path) if "://" in path else path
    return AutoTokenizer.from_pretrained(local, local_files_only=True, trust_remote_code=False)


def _pieces(tokenizer: Any, ids: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text of those before it, so that the spaces of every kind of tokenizer are right."""
    before = ""
    for stop in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        # A character of several tokens is the replacement character until its last token is there.
        yield text[len(before) :] if text.startswith(before) else text[len(before.rstrip("\ufffd")) :]
        before = text
