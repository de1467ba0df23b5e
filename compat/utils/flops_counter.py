"""``verl.utils.flops_counter``: floating-point operations of a training step, and what the device could do."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from compat.utils.device import get_device_name, get_torch_device

logger = logging.getLogger(__name__)

DENSE_FLOPS = {
    "CPU": 448e9,
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "MI355X": 2.5e15,
    "MI350X": 2.3e15,
    "MI300X": 1.307e15,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "L40S": 362.05e12,
    "L40": 181.05e12,
    "L20": 119.5e12,
    "RTX 3070 Ti": 21.75e12,
}
"""bf16 operations a second without sparsity, from the makers' data sheets; the CPU's figure is verl's."""

UNITS = {"B": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}

DENSE_DECODERS = frozenset({"llama", "mimo", "mistral", "qwen2", "qwen3", "seed_oss"})
"""Model types with one attention and one gated MLP of three matrices in each layer."""

FORWARD_AND_BACKWARD = 6
"""Operations a weight and token: two forward, twice that backward (Kaplan et al., 2020)."""


def get_device_flops(unit: str = "T", device_name: str | None = None) -> float:
    """Peak operations a second of the device (None: of this process) in ``unit``; infinite where nobody knows."""
    if device_name is None:
        device_name = "CPU" if get_device_name() == "cpu" else get_torch_device().get_device_name()
    # The longest name that fits: H200 is not H20, nor L40S an L40.
    fits = max((name for name in DENSE_FLOPS if name in device_name), key=len, default=None)
    return math.inf if fits is None else DENSE_FLOPS[fits] / UNITS[unit]


class FlopsCounter:
    """Operations of training steps of one model.

    config: the model's Hugging Face config. Other than dense decoders are counted as 0, and a warning says so.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        if config.model_type not in DENSE_DECODERS:
            counted = ", ".join(sorted(DENSE_DECODERS))
            logger.warning("FLOPs of model type %r are not counted and read 0; counted: %s", config.model_type, counted)

    def estimate_flops(
        self,
        batch_seqlens: Sequence[int],
        delta_time: float,
        **more: Any,  # noqa: ARG002
    ) -> tuple[float, float]:
        """Achieved and peak TFLOPs a second of one forward and backward pass.

        batch_seqlens: tokens of each sequence. delta_time: seconds. more: of images, which are not counted.
        """
        if self.config.model_type not in DENSE_DECODERS:
            return 0, get_device_flops()
        operations = dense_decoder_flops(self.config, batch_seqlens)
        return operations / delta_time / UNITS["T"], get_device_flops()


def dense_decoder_flops(config: Any, lengths: Sequence[int]) -> int:
    """Operations of one forward and backward pass over sequences of ``lengths`` tokens.

    Embedding and head count as one matrix each. Scores and values of causal attention are 4 operations a pair of
    positions and head dimension over the whole square, of which the mask leaves half; three times that both ways.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = (heads * head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    attention = config.hidden_size * (2 * queries + 2 * keys)
    mlp = 3 * config.hidden_size * config.intermediate_size
    weights = config.num_hidden_layers * (attention + mlp) + 2 * config.vocab_size * config.hidden_size
    pairs = sum(length * length for length in lengths)
    return FORWARD_AND_BACKWARD * (weights * sum(lengths) + pairs * queries * config.num_hidden_layers)
