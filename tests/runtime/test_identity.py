"""Seeds and keys depend on what a request is, never on where it stands in a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.identity import PromptIdentity, TrajectoryKey


@pytest.mark.parametrize("chunks", [1, 4, 7])
def test_768_requests_have_768_seeds_for_any_chunking(chunks):
    """FACTS case 7: 192 distinct seeds of 768 once collapsed a training run that a short smoke test passed."""
    rows = list(range(96))
    seeds = [
        PromptIdentity(42, "train", 1, row).request_seed(session_id)
        for chunk in (rows[start::chunks] for start in range(chunks))
        for row in chunk
        for session_id in range(8)
    ]
    assert len(set(seeds)) == 768
    assert sorted(seeds) == sorted(
        PromptIdentity(42, "train", 1, row).request_seed(s) for row in rows for s in range(8)
    )


def test_every_part_of_the_identity_changes_uid_and_seed():
    base = PromptIdentity(42, "train", 1, 7, 0)
    others = [
        base._replace(seed=43),
        base._replace(partition="val"),
        base._replace(step=2),
        base._replace(row=8),
        base._replace(occurrence=1),
    ]
    assert len({identity.uid for identity in [base, *others]}) == 6
    assert len({identity.request_seed(0) for identity in [base, *others]}) == 6
    assert base.request_seed(0) != base.request_seed(1) != base.request_seed(0, turn=1)


def test_uid_and_seed_are_the_same_in_every_process():
    """They name trajectories across trainers and machines, so their values are part of the format."""
    identity = PromptIdentity(42, "train", 1, 7)
    assert identity.uid == "145f09b1-2e47-59d7-9a61-18fa35722167"
    assert identity.request_seed(0) == 5070192489957740007


@given(st.text(min_size=1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_keys_are_read_from_the_right(uid, session_id, index):
    key = TrajectoryKey(uid, session_id, index)
    assert TrajectoryKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "a", "a_1", "_1_2", "a_b_c", "a_-1_0", "a_1_x"])
def test_what_is_no_key_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match="not a trajectory key"):
        TrajectoryKey.parse(text)
