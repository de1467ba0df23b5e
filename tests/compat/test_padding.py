import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.errors import LayoutError
from compat.jagged import jagged
from compat.padding import (
    pack_left_padded,
    pack_right_padded,
    pack_sequences,
    pad_left,
    pad_right,
    pad_sequences,
    position_ids_of,
    response_to_nested,
)
from shared_algos.segments import Segments

row_lengths = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def test_prompts_stand_at_the_right_and_responses_at_the_left():
    prompts, responses = Segments.from_lengths([2, 3]), Segments.from_lengths([3, 1])
    padded = pad_sequences(torch.arange(1, 6), torch.arange(11, 15), prompts, responses, 4, 3, pad_token_id=9)
    assert padded["input_ids"].tolist() == [[9, 9, 1, 2, 11, 12, 13], [9, 3, 4, 5, 14, 9, 9]]
    assert padded["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]]
    assert padded["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 3, 3]]
    assert {tensor.dtype for tensor in padded.values()} == {torch.int64}


@settings(max_examples=50, deadline=None)
@given(lengths=row_lengths, slack=st.integers(0, 3), features=st.sampled_from([(), (2,)]))
def test_pack_is_the_inverse_of_pad(lengths, slack, features):
    segments = Segments.from_lengths(lengths)
    values = torch.rand(segments.num_tokens, *features)
    width = max(lengths) + slack
    left, right = pad_left(values, segments, width, fill=-1), pad_right(values, segments, width, fill=-1)
    assert left.shape == right.shape == (len(lengths), width, *features)
    assert torch.equal(pack_left_padded(left, lengths), values)
    assert torch.equal(pack_right_padded(right, segments.lengths), values)
    assert int((left == -1).sum()) == (len(lengths) * width - segments.num_tokens) * (features or (1,))[0]


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_packed_sequences_are_prompt_then_response(rows):
    prompts, responses = (Segments.from_lengths(lengths) for lengths in zip(*rows, strict=True))
    prompt_ids, response_ids = torch.arange(prompts.num_tokens), 1000 + torch.arange(responses.num_tokens)
    padded = pad_sequences(prompt_ids, response_ids, prompts, responses, 5, 4, pad_token_id=-1)
    packed = pack_sequences(padded["input_ids"], padded["attention_mask"])
    expected = [
        part
        for prompt, response in zip(prompts.split(prompt_ids), responses.split(response_ids), strict=True)
        for part in (prompt, response)
    ]
    assert torch.equal(packed, torch.cat(expected))
    positions = pack_sequences(padded["position_ids"], padded["attention_mask"])
    assert torch.equal(positions, Segments.from_lengths(prompts.lengths + responses.lengths).positions)


def test_padding_keeps_the_dtype_and_gradient_flows_back():
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    padded = pad_right(values, Segments.from_lengths([1, 2]), 4)
    padded.sum().backward()
    assert padded.dtype == torch.float64
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 1.0, 1.0]


def test_position_ids_of_a_mask_with_padding_at_both_ends():
    assert position_ids_of(torch.tensor([[0, 0, 1, 1, 0]])).tolist() == [[0, 0, 0, 1, 1]]


def test_response_to_nested_shares_the_offsets_of_the_mask():
    mask = jagged(torch.tensor([1, 0, 1, 1]), Segments.from_lengths([3, 1]))
    nested = response_to_nested(torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 0.0]]), mask)
    assert nested.offsets() is mask.offsets()
    assert (nested * mask).values().tolist() == [1.0, 0.0, 3.0, 4.0]


@pytest.mark.parametrize("lengths", [[3, 1], torch.tensor([3, 1]), Segments.from_lengths([3, 1])])
def test_response_to_nested_takes_lengths(lengths):
    nested = response_to_nested(torch.tensor([[1, 2, 3], [4, 0, 0]]), lengths)
    assert [row.tolist() for row in nested.unbind()] == [[1, 2, 3], [4]]


def test_response_to_nested_refuses_a_padded_mask():
    with pytest.raises(LayoutError, match="tool"):
        response_to_nested(torch.zeros(2, 3), torch.tensor([[1, 0, 1], [1, 0, 0]]))


def test_errors_name_the_row_and_both_numbers():
    segments = Segments.from_lengths([2, 5])
    with pytest.raises(LayoutError, match="row 1 has 5 tokens, which does not fit a width of 4"):
        pad_right(torch.zeros(7), segments, 4)
    with pytest.raises(LayoutError, match="row 1 has 5 tokens, which does not fit a width of 4"):
        pad_left(torch.zeros(7), segments, 4)
    with pytest.raises(LayoutError, match=r"\(6,\) do not match segments of 7 tokens"):
        pad_right(torch.zeros(6), segments, 8)
    with pytest.raises(LayoutError, match="row 0 has 4 tokens, which does not fit a width of 3"):
        pack_left_padded(torch.zeros(1, 3), [4])
    with pytest.raises(LayoutError, match="row 1 has -1 tokens"):
        pack_right_padded(torch.zeros(2, 3), [1, -1])
    with pytest.raises(LayoutError, match="3 row lengths given for a padded column of 2 rows"):
        pack_right_padded(torch.zeros(2, 3), [1, 1, 1])
    with pytest.raises(LayoutError, match=r"must be \[B, width, ...\], got \(3,\)"):
        pack_right_padded(torch.zeros(3), [1, 1, 1])
    with pytest.raises(LayoutError, match=r"\(2, 4\) does not cover the padded column \(2, 3\)"):
        pack_sequences(torch.zeros(2, 3), torch.ones(2, 4))
