"""What verl does otherwise, or not at all; the rest is compared with it in tests/oracle."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from compat import tensordict_utils as tu
from compat.errors import DataProtoError, LayoutError, MissingColumnError
from compat.jagged import jagged, ragged_dim
from compat.no_padding import left_right_2_no_padding, no_padding_2_padding, response_from_nested
from shared_algos.segments import Segments


def positions(*lengths: int) -> TensorDict:
    """Jagged position ids ``[B, 3, j]`` in which every entry is the number of its row."""
    segments = Segments.from_lengths(list(lengths))
    return TensorDict({"position_ids": jagged(segments.rows.repeat(3, 1), segments, 2)}, batch_size=[len(lengths)])


@pytest.mark.parametrize("lengths", [(2, 2, 2, 2), (3, 1, 0, 2)])
def test_two_dimensional_position_ids_stay_ragged_in_their_last_dimension(lengths):
    data = positions(*lengths)
    joined = tu.concat_tensordict(tu.chunk_tensordict(data, 2))
    padded, size = tu.pad_to_divisor(data, 3)
    picked = tu.index_select_tensor_dict(data, [3, 0])
    assert size == 2
    assert tu.unpad(padded, size)["position_ids"].shape[0] == 4
    for batch, numbers in ((joined, [0, 1, 2, 3]), (padded, [0, 1, 2, 3, 0, 1]), (picked, [3, 0])):
        assert ragged_dim(batch["position_ids"]) == 2
        rows = batch["position_ids"].unbind()
        assert [row.tolist() for row in rows] == [[[number] * lengths[number]] * 3 for number in numbers]


def test_position_ids_that_lost_their_ragged_dimension_are_mended():
    data = positions(2, 3)
    data["position_ids"]._ragged_idx = 1
    tu.maybe_fix_3d_position_ids(data)
    assert [row.shape for row in data["position_ids"].unbind()] == [(3, 2), (3, 3)]


def test_errors_name_what_differs():
    left = TensorDict({"a": torch.arange(3), "s": NonTensorData(1)}, batch_size=[3])
    for change, message in (
        ({"a": torch.tensor([0, 5, 2])}, "'a' first differs in row 1"),
        ({"s": NonTensorData(2)}, "'s' differs: 1 here, 2 there"),
        ({"a": NonTensorData(1)}, "'a' is a Tensor here and a NonTensorData there"),
        ({"b": torch.ones(3)}, r"keys differ in \['b'\]"),
    ):
        right = left.copy()
        for key, value in change.items():
            right[key] = value
        with pytest.raises(DataProtoError, match=message):
            tu.assert_tensordict_eq(left, right)


def test_pop_keys_moves_all_or_nothing():
    data = TensorDict({"a": torch.arange(2), "b": torch.arange(2)}, batch_size=[2])
    with pytest.raises(MissingColumnError, match="missing"):
        tu.pop_keys(data, ["a", "missing"])
    assert set(data.keys()) == {"a", "b"}


def test_mini_batches_cover_all_rows_and_keep_columns_together():
    data = TensorDict({"a": torch.arange(6), "uid": tu.object_column("abcdef")}, batch_size=[6])
    batches = list(tu.make_iterator(data, 2, 1, seed=3, dataloader_kwargs={"shuffle": True}))
    pairs = [pair for batch in batches for pair in zip(batch["a"].tolist(), tu.get(batch, "uid"), strict=True)]
    assert sorted(pairs) == list(enumerate("abcdef"))


def test_a_row_without_a_prompt_is_named():
    ragged = [jagged(torch.arange(sum(n)), Segments.from_lengths(n)) for n in ([1, 0], [1, 2], [2, 2])]
    data = TensorDict({"prompts": ragged[0], "responses": ragged[1]}, batch_size=[2])
    with pytest.raises(LayoutError, match="row 1 has no prompt"):
        no_padding_2_padding(torch.arange(4.0), data)
    with pytest.raises(LayoutError, match="row 1 has no prompt"):
        response_from_nested(ragged[2], ragged[1])


def test_what_was_made_jagged_is_padded_again():
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    data = TensorDict(
        {
            "input_ids": torch.arange(10).view(2, 5),
            "attention_mask": mask,
            "position_ids": mask.cumsum(1) - 1,
            "response_mask": mask[:, 2:],
            "prompts": torch.arange(10).view(2, 5)[:, :2],
            "responses": torch.arange(10).view(2, 5)[:, 2:],
        },
        batch_size=[2],
    )
    jagged_ids = left_right_2_no_padding(data)["input_ids"]
    assert [row.tolist() for row in jagged_ids.unbind()] == [[1, 2, 3], [5, 6, 7, 8, 9]]
    assert no_padding_2_padding(jagged_ids, data).tolist() == [[1, 2, 0], [6, 7, 8]]
