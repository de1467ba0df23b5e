"""Helpers for sequences split over ranks: at one rank they hand back what they get, at several they refuse."""

import pytest
import torch
import torch.distributed as dist

from compat.protocol import DataProto
from compat.utils import ulysses
from compat.utils.errors import NotBuiltError
from compat.utils.monkey_patch import apply_monkey_patch


@pytest.fixture
def group(tmp_path):
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_one_rank_has_the_whole(group):
    x = torch.arange(12.0).view(2, 6)
    assert ulysses.slice_input_tensor(x, dim=1, group=group).equal(x)
    assert ulysses.gather_seq_scatter_heads(x, seq_dim=0, head_dim=1, group=group) is x
    assert ulysses.gather_outputs_and_unpad(x, gather_dim=1, unpad_dim=1, padding_size=2, group=group).equal(x[:, :4])
    ids, positions, padding = ulysses.ulysses_pad_and_slice_inputs(x, x, sp_size=1)
    assert (ids is x, positions is x, padding) == (True, True, 0)
    ulysses.set_ulysses_sequence_parallel_group(group)
    assert ulysses.get_ulysses_sequence_parallel_world_size(group) == 1
    assert ulysses.get_ulysses_sequence_parallel_rank() == 0


def test_a_sharding_manager_changes_nothing():
    data = DataProto.from_dict({"a": torch.arange(3)})
    manager = ulysses.FSDPUlyssesShardingManager(None)
    with manager:
        assert manager.postprocess_data(manager.preprocess_data(data)) is data


class MeshOfTwo:
    """What of a device mesh is read: ``mesh["sp"].size()``."""

    def __getitem__(self, name):
        assert name == "sp"
        return self

    def size(self):
        return 2


@pytest.mark.parametrize(
    "split",
    [
        lambda: ulysses.ulysses_pad(torch.ones(1, 4), sp_size=2),
        lambda: ulysses.validate_ulysses_config(8, 2),
        lambda: ulysses.FSDPUlyssesShardingManager(MeshOfTwo()),
        lambda: apply_monkey_patch(None, ulysses_sp_size=2),
    ],
)
def test_a_split_is_refused_with_the_way_out(split):
    with pytest.raises(NotBuiltError, match="set ulysses_sequence_parallel_size=1"):
        split()


def test_a_patched_model_is_the_model():
    model = torch.nn.Linear(2, 2)
    before = model.forward
    assert apply_monkey_patch(model, use_remove_padding=True, use_fused_kernels=True) is None
    assert model.forward == before
