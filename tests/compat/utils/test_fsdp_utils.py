"""FSDP2 helpers on a group of one rank (gloo)."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from compat.utils import fsdp_utils, performance, torch_functional
from compat.utils.errors import NotBuiltError


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


class Network(nn.Module):
    _no_split_modules = ("Layer",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_is_sharded_loaded_gathered_and_clipped():
    network, source = Network(), Network()
    mesh = init_device_mesh("cpu", (1,))
    fsdp_utils.apply_fsdp2(network, {"mesh": mesh}, {})
    assert fsdp_utils.fsdp_version(network) == 2
    assert all(isinstance(layer, fsdp_utils.FSDPModule) for layer in network.layers)
    fsdp_utils.fsdp2_load_full_state_dict(network, source.state_dict())
    gathered = fsdp_utils.get_fsdp_full_state_dict(network)
    assert all(torch.equal(gathered[name], value) for name, value in source.state_dict().items())
    x = torch.ones(2, 4)
    assert torch.equal(network(x), source(x))
    network(x).sum().backward()
    source(x).sum().backward()
    expected = nn.utils.clip_grad_norm_(source.parameters(), 0.1)
    norm = fsdp_utils.fsdp2_clip_grad_norm_(network.parameters(), 0.1)
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(next(network.parameters()).grad.full_tensor(), next(source.parameters()).grad)


def test_a_model_whose_layers_are_not_known_is_named():
    with pytest.raises(NotBuiltError, match=r"Linear.*transformer_layer_cls_to_wrap"):
        fsdp_utils.apply_fsdp2(nn.Linear(2, 2), {}, {})


def test_which_modules_are_wrapped():
    network = Network()
    policy = fsdp_utils.get_fsdp_wrap_policy(network)
    assert [policy(module=part, recurse=False, nonwrapped_numel=1) for part in (network, network.layers[0])] == [
        False,
        True,
    ]
    assert fsdp_utils.get_fsdp_wrap_policy(network, {"disable": True}) is None
    assert fsdp_utils.get_fsdp_wrap_policy(nn.Linear(2, 2)) is None
    by_size = fsdp_utils.get_fsdp_wrap_policy(network, {"min_num_params": 10})
    assert by_size(module=network.layers[0], recurse=False, nonwrapped_numel=20)


def test_placement_and_moves():
    place = fsdp_utils.get_shard_placement_fn(4)
    assert [place(torch.empty(shape)).dim for shape in ((4, 3), (3, 8), (3, 5))] == [0, 1, 0]
    network = Network()
    fsdp_utils.offload_fsdp_model_to_cpu(network)
    fsdp_utils.load_fsdp_model_to_gpu(network)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    fsdp_utils.offload_fsdp_optimizer(optimizer)
    assert {value.device.type for state in optimizer.state.values() for value in state.values()} == {"cpu"}
    with fsdp_utils.get_init_weight_context_manager()():
        assert nn.Linear(2, 2).weight.device.type == "cpu"
    assert fsdp_utils.init_fn(network) is network


def test_values_over_ranks():
    values, mask = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, 1.0, 0.0])
    assert float(torch_functional.distributed_masked_mean(values, mask)) == 1.5
    mean, largest, least, std = torch_functional.distributed_mean_max_min_std(values)
    assert (float(mean), float(largest), float(least)) == (3.0, 6.0, 1.0)
    torch.testing.assert_close(std, values.std())
    gathered = torch_functional.allgather_dict_tensors({"b": values, "a": mask}, 1, None)
    assert torch.equal(gathered["b"], values)
    assert torch_functional.allgather_dict_into_dict({"x": 1}) == {"x": [1]}
    assert performance.reduce_timing({"gen": 2.0}) == {"gen": 2.0}
    assert performance.gather_timing({"gen": 2.0}) == {"gen": [2.0]}
    assert performance.topk_reduce_ratio_min_max(2.0) == (0.0, 2.0, 2.0)
