import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from compat.errors import LayoutError
from compat.jagged import (
    concat_rows,
    is_jagged,
    jagged,
    ragged_dim,
    select_rows,
    share_offsets,
    slice_rows,
    split_rows,
    unjag,
)
from shared_algos.segments import Segments

row_lengths = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def column(lengths: list[int], layout: str = "tokens") -> torch.Tensor:
    """A jagged column whose values are all different: [B, j], [B, j, 2] or [B, 3, j]."""
    segments = Segments.from_lengths(lengths)
    tokens = torch.arange(segments.num_tokens)
    if layout == "tokens":
        return jagged(tokens, segments)
    if layout == "features":
        return jagged(torch.stack([tokens, tokens + 100], dim=1), segments)
    return jagged(torch.stack([tokens, tokens + 100, tokens + 200]), segments, ragged_dim=2)


LAYOUTS = pytest.mark.parametrize("layout", ["tokens", "features", "positions"])


def rows_of(nested: torch.Tensor) -> list[list]:
    return [row.tolist() for row in nested.unbind()]


def test_padding_goes_to_the_longest_row_not_to_the_token_count():
    assert column([3, 0, 2]).to_padded_tensor(-1).tolist() == [[0, 1, 2], [-1, -1, -1], [3, 4, -1]]


def test_unjag_gives_back_the_same_memory_and_the_same_offsets():
    segments = Segments.from_lengths([2, 3])
    values = torch.arange(5.0)
    taken, taken_segments = unjag(jagged(values, segments))
    assert taken.data_ptr() == values.data_ptr()
    assert taken_segments.offsets is segments.offsets


def test_columns_of_the_same_segments_can_be_added():
    segments = Segments.from_lengths([2, 3])
    total = jagged(torch.ones(5), segments) + jagged(torch.ones(5), segments)
    assert total.values().tolist() == [2.0] * 5


def test_share_offsets_makes_separately_fetched_columns_addable():
    left, right = column([2, 3]), column([2, 3])
    with pytest.raises(RuntimeError):
        left + right
    shared = share_offsets({"left": left, "right": right, "other": column([1, 4])})
    assert (shared["left"] + shared["right"]).values().tolist() == [0, 2, 4, 6, 8]
    assert shared["other"].offsets().tolist() == [0, 1, 5]


@LAYOUTS
@settings(max_examples=25, deadline=None)
@given(lengths=row_lengths, data=st.data())
def test_select_rows_is_row_wise_indexing(layout, lengths, data):
    nested = column(lengths, layout)
    rows = data.draw(st.lists(st.integers(-len(lengths), len(lengths) - 1), max_size=8))
    selected = select_rows(nested, torch.tensor(rows, dtype=torch.int64))
    assert is_jagged(selected)
    assert ragged_dim(selected) == ragged_dim(nested)
    assert rows_of(selected) == [rows_of(nested)[row] for row in rows]


@LAYOUTS
@settings(max_examples=25, deadline=None)
@given(lengths=row_lengths, data=st.data())
def test_concat_is_the_inverse_of_split(layout, lengths, data):
    nested = column(lengths, layout)
    cut = data.draw(st.integers(0, len(lengths)))
    joined = concat_rows(split_rows(nested, [cut, len(lengths) - cut]))
    assert ragged_dim(joined) == ragged_dim(nested)
    assert rows_of(joined) == rows_of(nested)
    assert joined.offsets().tolist() == nested.offsets().tolist()


@LAYOUTS
@pytest.mark.parametrize("lengths", [[3, 3, 3], [4]])
def test_equal_rows_and_a_single_row_stay_jagged_in_the_right_dimension(layout, lengths):
    """Case 8: nothing is guessed from lengths that happen to be equal, not even where k equals the length."""
    nested = column(lengths, layout)
    dim = 2 if layout == "positions" else 1
    for result in (
        select_rows(nested, torch.tensor([0])),
        slice_rows(nested, 0, 1),
        *split_rows(nested, [1] * len(lengths)),
        concat_rows([nested, nested]),
    ):
        assert is_jagged(result)
        assert ragged_dim(result) == dim
        assert result.offsets()[1] == lengths[0]
        assert result.to_padded_tensor(0).shape[dim] == lengths[0]


def test_slices_are_views():
    nested = column([2, 3, 1])
    part = slice_rows(nested, 1, 3)
    part.values()[0] = 77
    assert nested.values().tolist() == [0, 1, 77, 3, 4, 5]


def test_holes_left_by_narrow_are_closed():
    padded = torch.arange(12).view(2, 6)
    with_holes = torch.nested.narrow(padded, 1, torch.tensor([0, 2]), torch.tensor([3, 2]), layout=torch.jagged)
    values, segments = unjag(with_holes)
    assert values.tolist() == [0, 1, 2, 8, 9]
    assert segments.lengths.tolist() == [3, 2]


def test_int32_offsets_as_flash_attention_uses_them_are_read():
    nested = torch.nested.nested_tensor_from_jagged(torch.arange(5), torch.tensor([0, 2, 5], dtype=torch.int32))
    assert rows_of(select_rows(nested, torch.tensor([1, 0]))) == [[2, 3, 4], [0, 1]]


def test_operations_survive_a_tensordict_that_was_consolidated():
    batch = TensorDict({"ids": column([2, 0, 3]), "positions": column([2, 0, 3], "positions")}, batch_size=3)
    held = batch.contiguous().consolidate()
    assert rows_of(select_rows(held["positions"], torch.tensor([2]))) == [rows_of(batch["positions"])[2]]


def test_zero_rows_and_zero_tokens():
    assert column([]).to_padded_tensor(0).shape == (0, 0)
    assert column([0, 0]).to_padded_tensor(0).shape == (2, 0)
    assert select_rows(column([2, 1]), torch.tensor([], dtype=torch.int64)).shape[0] == 0


def test_errors_name_both_numbers():
    with pytest.raises(LayoutError, match=r"5 entries on dim 0 .* 4 tokens"):
        jagged(torch.zeros(5), Segments.from_lengths([4]))
    with pytest.raises(LayoutError, match=r"ragged_dim must be in 1..1"):
        jagged(torch.zeros(4), Segments.from_lengths([4]), ragged_dim=2)
    with pytest.raises(LayoutError, match=r"torch\.jagged"):
        unjag(torch.zeros(2, 3))
    with pytest.raises(LayoutError, match=r"make 3, but the jagged tensor has 2 rows"):
        split_rows(column([1, 1]), [2, 1])
    with pytest.raises(IndexError, match=r"\[2\] are out of range for 2 rows"):
        select_rows(column([1, 1]), torch.tensor([2]))
    with pytest.raises(IndexError, match="1:3 are out of range for 2 rows"):
        slice_rows(column([1, 1]), 1, 3)
    with pytest.raises(LayoutError, match="zero jagged tensors"):
        concat_rows([])
    with pytest.raises(LayoutError, match=r"ragged dimensions \[1, 2\]"):
        concat_rows([column([3]), column([3], "positions")])
    with pytest.raises(LayoutError, match=r"torch\.jagged"):
        concat_rows([torch.zeros(2, 2), column([3])])
