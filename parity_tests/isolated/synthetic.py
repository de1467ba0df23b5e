"""Feeds made from a seed, also of shapes that a live run cannot make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parity_tests.isolated.feed import Feed
from runtime.arrays import object_array
from runtime.fields import STAGES
from runtime.identity import PromptIdentity, TrajectoryKey
from runtime.tiny import CHARACTERS, ROLES
from runtime.trajectories import TrajectoryBatch, outcome_scores
from shared_algos.segments import Segments

COMPONENTS = ("letters", "brevity")
"""Scores that every trajectory has beside its total, for GDPO."""

_FIRST_CHARACTER = 4 + len(ROLES)
_TYPICAL_LOG_PROB = -4.65
"""Of one token in about a hundred; the tiny model's are within 0.5 of it, so that ratios straddle every clip range."""


@dataclass(frozen=True)
class Size:
    """How large a batch may be: P prompts, n sessions of each, and the most tokens of a prompt and of a response."""

    prompts: int = 4
    sessions: int = 3
    prompt_limit: int = 32
    response_limit: int = 16

    @property
    def rows(self) -> int:
        """P * n."""
        return self.prompts * self.sessions


@dataclass(frozen=True, eq=False)
class Outline:
    """What a shape decides: whose outputs the rows are, and which of their tokens exist and were generated.

    keys: (prompt, session, index) of each row. prompt_lengths, response_lengths: ``[B]``. mask: int64 ``[T]``.
    """

    keys: Sequence[tuple[int, int, int]]
    prompt_lengths: Tensor
    response_lengths: Tensor
    mask: Tensor


Shape = Callable[[Size, torch.Generator], Outline]


def equal_rows(size: Size, draw: torch.Generator) -> Outline:
    """Every prompt and every response as long as the others, every token generated."""
    prompt, response = (int(torch.randint(2, limit + 1, (), generator=draw)) for limit in _limits(size))
    return _outline(size, torch.full((size.rows,), prompt), torch.full((size.rows,), response))


def ragged(size: Size, draw: torch.Generator) -> Outline:
    """Lengths from 1 to the limits, and observations among the generated tokens, some of them at the end."""
    outline = _outline(size, *(_lengths(size, limit, draw) for limit in _limits(size)))
    generated = (torch.rand(len(outline.mask), generator=draw) < 0.8).long()
    # The first token of every response was generated: a row of observations alone has a shape of its own.
    generated[Segments.from_lengths(outline.response_lengths).offsets[:-1]] = 1
    return replace(outline, mask=generated)


def one_token(size: Size, draw: torch.Generator) -> Outline:
    """Responses of a single token."""
    lengths = _lengths(size, size.prompt_limit, draw)
    return _outline(size, lengths, torch.ones(size.rows, dtype=torch.int64))


def all_masked(size: Size, draw: torch.Generator) -> Outline:
    """Nothing was generated: every row was rejected."""
    outline = ragged(size, draw)
    return replace(outline, mask=torch.zeros_like(outline.mask))


def failed_group(size: Size, draw: torch.Generator) -> Outline:
    """All sessions of the second prompt failed: their rows have no generated token."""
    return _without(ragged(size, draw), lambda prompt, _: prompt == 1)


def lone_survivor(size: Size, draw: torch.Generator) -> Outline:
    """One session of the second prompt is left, a group of one."""
    return _without(ragged(size, draw), lambda prompt, session: prompt == 1 and session > 0)


def uneven_groups(size: Size, draw: torch.Generator) -> Outline:
    """As many rows as P * n, but the first prompt has more of them and the last one fewer."""
    outline = ragged(size, draw)
    keys = [(0, size.sessions, 0) if key == (size.prompts - 1, size.sessions - 1, 0) else key for key in outline.keys]
    return _sorted(replace(outline, keys=keys))


def multi_output(size: Size, draw: torch.Generator) -> Outline:
    """The last session of each prompt is instead one more output of its first session."""
    outline = ragged(size, draw)
    last = size.sessions - 1
    return _sorted(replace(outline, keys=[(p, 0, 1) if s == last else (p, s, 0) for p, s, _ in outline.keys]))


SHAPES: Mapping[str, Shape] = {
    shape.__name__: shape
    for shape in (
        equal_rows,
        ragged,
        one_token,
        all_masked,
        multi_output,
        failed_group,
        lone_survivor,
        uneven_groups,
    )
}


def synthetic_feed(shape: str, seed: int, size: Size | None = None) -> Feed:
    """One step of made-up trajectories: every column that any stage may write, around what a small model would give.

    The same arguments give the same bits.
    """
    draw = torch.Generator().manual_seed(seed)
    return feed_around(SHAPES[shape](size or Size(), draw), seed, draw)


def feed_around(outline: Outline, seed: int, draw: torch.Generator) -> Feed:
    """``synthetic_feed`` of rows that are given: their uids are made of ``seed``, their values drawn from ``draw``."""
    uids = {p: PromptIdentity(seed, "synthetic", 1, p).uid for p, _, _ in outline.keys}
    bare = TrajectoryBatch(
        keys=tuple(TrajectoryKey(uids[prompt], session, index) for prompt, session, index in outline.keys),
        prompts=Segments.from_lengths(outline.prompt_lengths),
        responses=Segments.from_lengths(outline.response_lengths),
        columns={},
    )
    columns = _columns(bare, outline.mask, draw)
    parts = torch.rand(len(bare), len(COMPONENTS), generator=draw).tolist()
    objects = {
        "uid": object_array([key.uid for key in bare.keys]),
        "reward_extra_info": object_array([dict(zip(COMPONENTS, row, strict=True)) for row in parts]),
    }
    written = {
        stage.name: bare.with_columns({name: columns[name] for name in (*stage.writes, *stage.may_write)})
        for stage in STAGES
        if stage.writes
    }
    return Feed({**written, "rollout": replace(written["rollout"], objects=objects)})


def _columns(bare: TrajectoryBatch, mask: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
    prompts, responses, tokens = bare.prompts, bare.responses, bare.responses.num_tokens

    def normal(mean: float, std: float, size: int = tokens) -> Tensor:
        return mean + std * torch.randn(size, generator=draw)

    def ids(size: int) -> Tensor:
        return torch.randint(_FIRST_CHARACTER, _FIRST_CHARACTER + len(CHARACTERS), (size,), generator=draw)

    columns = {"prompts": ids(prompts.num_tokens), "responses": ids(tokens)}
    sequence = torch.zeros(bare.sequences.num_tokens, dtype=torch.int64)
    is_response = bare.sequences.positions >= bare.sequences.spread(prompts.lengths)
    sequence[~is_response], sequence[is_response] = columns["prompts"], columns["responses"]
    # Few values, so that groups have ties and members apart.
    scores = outcome_scores(torch.randint(0, 4, (len(bare),), generator=draw).tolist(), responses)
    log_probs = {
        name: normal(_TYPICAL_LOG_PROB, 0.3) for name in ("rollout_log_probs", "old_log_probs", "ref_log_prob")
    }
    return {
        **columns,
        **log_probs,
        "input_ids": sequence,
        "position_ids": bare.sequences.positions,
        "response_mask": mask,
        "num_turns": torch.randint(2, 5, (len(bare),), generator=draw),
        "reward_baselines": torch.rand(len(bare), generator=draw),
        "rm_scores": scores,
        "token_level_scores": scores,
        "token_level_rewards": scores + normal(0.0, 0.01) * mask,
        "entropy": normal(4.6, 0.05),
        "sum_pi_squared": normal(0.01, 0.001).abs(),
        "values": normal(0.0, 0.5),
        "advantages": normal(0.0, 1.0) * mask,
        "returns": normal(0.0, 1.0) * mask,
        "rollout_is_weights": normal(1.0, 0.2).clamp(0.5, 2.0) * mask,
    }


def _limits(size: Size) -> tuple[int, int]:
    return size.prompt_limit, size.response_limit


def _lengths(size: Size, limit: int, draw: torch.Generator) -> Tensor:
    return torch.randint(1, limit + 1, (size.rows,), generator=draw)


def _outline(size: Size, prompt_lengths: Tensor, response_lengths: Tensor) -> Outline:
    keys = [(prompt, session, 0) for prompt in range(size.prompts) for session in range(size.sessions)]
    return Outline(keys, prompt_lengths, response_lengths, torch.ones(int(response_lengths.sum()), dtype=torch.int64))


def _without(outline: Outline, failed: Callable[[int, int], bool]) -> Outline:
    rows = torch.tensor([not failed(prompt, session) for prompt, session, _ in outline.keys])
    return replace(outline, mask=outline.mask * Segments.from_lengths(outline.response_lengths).spread(rows).long())


def _sorted(outline: Outline) -> Outline:
    """Rows in canonical order; lengths and masks may stay where they are, since they were drawn for no row."""
    return replace(outline, keys=sorted(outline.keys))
