import numpy as np
import pytest
import torch
from torch import nn

from runtime.errors import RolloutError
from runtime.rollout.weights import load_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.middle = nn.Linear(2, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embed.weight


def fresh(model: nn.Module) -> dict[str, np.ndarray]:
    """New weights as Ray hands them over: read-only, each name an array of its own."""
    arrays = {
        name: np.arange(value.numel(), dtype=np.float32).reshape(value.shape)
        for name, value in model.state_dict().items()
    }
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def test_weights_are_copied_in_place_and_ties_stay(recwarn):
    model = Tied()
    parameter = model.embed.weight
    load_weights(model, fresh(model))
    assert model.embed.weight is parameter
    assert model.head.weight is parameter
    assert parameter.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not recwarn.list


@pytest.mark.parametrize("left_out", ["embed.weight", "head.weight"])
def test_one_name_of_a_tied_tensor_is_enough(left_out):
    model = Tied()
    weights = fresh(model)
    del weights[left_out]
    load_weights(model, weights)
    assert model.head.weight[3].tolist() == [6, 7]


def test_values_are_cast_to_the_models_dtype():
    model = Tied().to(torch.bfloat16)
    load_weights(model, fresh(Tied()))
    assert model.middle.weight.dtype == torch.bfloat16
    assert model.middle.weight.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("middle.bias"), r"1 \(middle.bias\) missing, none unknown"),
        (lambda w: [w.pop("embed.weight"), w.pop("head.weight")], r"embed.weight or head.weight\) missing"),
        (lambda w: w.update({"module.x": w["middle.bias"]}), r"none missing, 1 \(module.x\) unknown"),
        (lambda w: w.update({"middle.bias": np.zeros(3)}), r"'middle.bias' has shape \(3,\).*\(2,\)"),
        (lambda w: w.update({"head.weight": w["head.weight"] + 1}), "'embed.weight' and 'head.weight' are one tensor"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(change, message):
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = fresh(model)
    change(weights)
    with pytest.raises(RolloutError, match=message):
        load_weights(model, weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
