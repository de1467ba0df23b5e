"""``verl.utils.model``: model configs, position ids, parameter counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from compat.utils.errors import PartitionError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig

SCALES = {"T": 1e12, "B": 1e9, "M": 1e6, "K": 1e3, "": 1.0}


class LambdaLayer(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


def squeeze(x: Tensor) -> Tensor:
    """Without the last dimension, which is 1."""
    return torch.squeeze(x, dim=-1)


def compute_position_id_with_mask(mask: Tensor) -> Tensor:
    """Positions of the tokens of each row of ``mask [B, S]``, from 0; padding before the first has 0."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def update_model_config(module_config: Any, override_config_kwargs: Mapping[str, Any]) -> None:
    """Set fields of a model's config in place, inside nested configs too."""
    for name, value in override_config_kwargs.items():
        if isinstance(value, Mapping):
            update_model_config(getattr(module_config, name), value)
        else:
            setattr(module_config, name, value)


def get_huggingface_actor_config(
    model_name: str, override_config_kwargs: Mapping[str, Any] | None = None, trust_remote_code: bool = False
) -> PretrainedConfig:
    """The config of a Hugging Face model with fields replaced."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_name, trust_remote_code=trust_remote_code)
    update_model_config(config, override_config_kwargs or {})
    return config


def get_generation_config(model: str, trust_remote_code: bool = False) -> GenerationConfig | None:
    """A model's generation config, made from its config where it has none of its own; None where it has neither."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:
        pass
    try:
        return GenerationConfig.from_model_config(get_huggingface_actor_config(model, None, trust_remote_code))
    except OSError:
        return None


def create_huggingface_actor(
    model_name: str, override_config_kwargs: Mapping[str, Any] | None = None, automodel_kwargs: Any = None
) -> nn.Module:
    """A causal language model with fresh weights, of a model's config."""
    from transformers import AutoModelForCausalLM

    arguments = dict(automodel_kwargs or {})
    trust = arguments.get("trust_remote_code", False)
    config = get_huggingface_actor_config(model_name, override_config_kwargs, trust)
    return AutoModelForCausalLM.from_config(config, **arguments)


def get_model_size(model: nn.Module, scale: str = "auto") -> tuple[float, str]:
    """The number of parameters in units of ``scale``: T, B, M, K, nothing, or the largest of them below it."""
    count = sum(parameter.numel() for parameter in model.parameters())
    if scale == "auto":
        scale = next((name for name, size in SCALES.items() if count > size), "")
    return count / SCALES[scale], scale


def print_model_size(model: nn.Module, name: str | None = None) -> None:
    """Print how many parameters a model has."""
    count, scale = get_model_size(model)
    print(f"{name or type(model).__name__} contains {count:.2f}{scale} parameters")


def create_random_mask(
    input_ids: Tensor,
    max_ratio_of_valid_token: float,
    max_ratio_of_left_padding: float,
    min_ratio_of_valid_token: float = 0,
) -> Tensor:
    """A mask int64 ``[B, S]`` of padding on both sides, of random lengths drawn from numpy's global generator.

    Raises ``PartitionError`` where the ratios leave no room.
    """
    width = input_ids.shape[1]
    most, least = int(width * max_ratio_of_valid_token), max(1, int(width * min_ratio_of_valid_token))
    left = int(width * max_ratio_of_left_padding)
    if not 0 < least <= most or most + left > width:
        raise PartitionError(f"{width} tokens hold no {least} to {most} of text beside up to {left} of padding")
    mask = torch.zeros_like(input_ids, dtype=torch.int64)
    for row in mask:
        start = np.random.randint(0, left + 1)
        row[start : start + np.random.randint(least, most + 1)] = 1
    return mask


def extract_multi_modal_inputs(
    batch_data: Iterable[Any], indices: list[int] | None = None
) -> dict[str, Tensor | list[Tensor]]:
    """Multi-modal tensors of several rows, concatenated by name; rows without any are passed over.

    indices: rows to take. With ``image_bound`` among the names (MiniCPM-o) they stay lists.
    """
    rows = list(batch_data)
    rows = rows if indices is None else [rows[index] for index in indices if index < len(rows)]
    collected: dict[str, list[Tensor]] = {}
    for row in (getattr(row, "data", row) for row in rows):
        for name, value in (row or {}).items():
            if value is not None:
                collected.setdefault(name, []).append(value)
    if "image_bound" in collected:
        return dict(collected)
    return {name: torch.cat(values, dim=0) for name, values in collected.items()}
