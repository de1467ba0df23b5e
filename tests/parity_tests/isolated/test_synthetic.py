"""Made-up batches have the shape that their name says, and repeat."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from parity_tests.isolated.synthetic import SHAPES, Size, synthetic_feed
from runtime.fields import STAGES

SIZE = Size()


def rollout(shape: str, seed: int = 0):
    return synthetic_feed(shape, seed).written["rollout"]


def generated_tokens(batch) -> list[int]:
    return batch.responses.sum(batch["response_mask"]).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_feed_holds_every_column_of_every_stage_in_canonical_order(shape):
    feed = synthetic_feed(shape, 3)
    batch = feed.before("update_actor")
    assert len(batch) == SIZE.rows
    assert {name for stage in STAGES for name in (*stage.writes, *stage.may_write)} == set(batch.columns)
    assert batch.prompts.lengths.max() <= SIZE.prompt_limit
    assert batch.responses.lengths.max() <= SIZE.response_limit
    assert list(dict.fromkeys(batch.keys)) == list(batch.keys)
    order = {uid: place for place, uid in enumerate(dict.fromkeys(key.uid for key in batch.keys))}
    places = [(order[key.uid], key.session_id, key.index) for key in batch.keys]
    assert places == sorted(places)
    sequences = batch["input_ids"].split(batch.sequences.lengths.tolist())
    parts = zip(batch.prompts.split(batch["prompts"]), batch.responses.split(batch["responses"]), strict=True)
    assert all(torch.cat(part).equal(sequence) for part, sequence in zip(parts, sequences, strict=True))


def test_a_stage_is_not_fed_what_it_writes_itself():
    feed = synthetic_feed("ragged", 0)
    assert "advantages" not in feed.before("advantage")
    assert "token_level_scores" not in feed.before("reward")
    assert "values" in feed.before("advantage")


def test_the_same_seed_gives_the_same_bits_and_another_one_others():
    one, again, other = (rollout("ragged", seed) for seed in (5, 5, 6))
    assert all(one[name].equal(again[name]) for name in one.columns)
    assert one.keys == again.keys
    assert not one["responses"].equal(other["responses"])


def test_shapes_are_what_they_are_called():
    assert len(set(rollout("equal_rows").responses.lengths.tolist())) == 1
    assert len(set(rollout("ragged").responses.lengths.tolist())) > 3
    assert rollout("one_token").responses.lengths.tolist() == [1] * SIZE.rows
    assert not rollout("all_masked")["response_mask"].any()
    n = SIZE.sessions
    assert not any(generated_tokens(rollout("failed_group"))[n : 2 * n])
    alone = generated_tokens(rollout("lone_survivor"))[n : 2 * n]
    assert alone[0]
    assert not any(alone[1:])
    assert sorted(Counter(key.uid for key in rollout("uneven_groups").keys).values()) == [n - 1, n, n, n + 1]
    sessions = Counter((key.uid, key.session_id) for key in rollout("multi_output").keys)
    assert sorted(sessions.values())[-SIZE.prompts :] == [2] * SIZE.prompts


def test_ragged_rows_end_in_observations_somewhere_and_no_row_is_without_a_generated_token():
    batches = [rollout("ragged", seed) for seed in range(4)]
    assert all(all(generated_tokens(batch)) for batch in batches)
    assert any(not batch["response_mask"][batch.responses.offsets[1:] - 1].all() for batch in batches)
