"""New weights for a model that is in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from runtime.errors import RolloutError


@torch.no_grad()
def load_weights(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy ``weights`` over those of ``model`` in place, casting to its dtype and device.

    weights: all of the state dict, by its names. Of names that share one tensor (a tied ``lm_head``) one is
    enough; where both are given they must be equal.

    Raises RolloutError, and changes nothing, for a missing or unknown name, another shape, or tied weights that differ.
    """
    state = model.state_dict()
    ties = _ties(state)
    _check_names(ties, weights)
    for name, array in weights.items():
        if array.shape != tuple(state[name].shape):
            raise RolloutError(
                f"weight {name!r} has shape {array.shape}, but the rollout model's has {tuple(state[name].shape)}; "
                "actor and rollout must load the same model"
            )
    for names in ties:
        _check_tied([name for name in names if name in weights], weights)
    for names in ties:
        name = next(name for name in names if name in weights)
        # A copy first: arrays from Ray's object store are read-only, which torch.from_numpy warns about.
        state[name].copy_(torch.tensor(weights[name]))


def _ties(state: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of a state dict, those of one tensor together."""
    ties: dict[tuple[int, int], list[str]] = defaultdict(list)
    for number, (name, tensor) in enumerate(state.items()):
        # An empty tensor has no memory of its own, so its address says nothing.
        ties[(tensor.data_ptr(), 0 if tensor.numel() else number)].append(name)
    return list(ties.values())


def _check_names(ties: list[list[str]], weights: Mapping[str, np.ndarray]) -> None:
    known = {name for names in ties for name in names}
    unknown = sorted(set(weights) - known)
    missing = sorted(" or ".join(names) for names in ties if not any(name in weights for name in names))
    if unknown or missing:
        raise RolloutError(
            f"weights do not fit the rollout model: {_some(missing)} missing, {_some(unknown)} unknown; "
            "send every weight under its Hugging Face name (no FSDP, PEFT or compile prefix)"
        )


def _check_tied(names: list[str], weights: Mapping[str, np.ndarray]) -> None:
    for other in names[1:]:
        first, second = weights[names[0]], weights[other]
        if first is not second and not np.array_equal(first, second, equal_nan=True):
            raise RolloutError(
                f"weights {names[0]!r} and {other!r} are one tensor in the rollout model but differ; "
                "the actor trains them apart, so set tie_word_embeddings alike in both"
            )


def _some(names: list[str]) -> str:
    return "none" if not names else f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
