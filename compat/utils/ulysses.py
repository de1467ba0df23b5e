"""``verl.utils.ulysses`` for sequences that are whole on each rank: the helpers hand back what they get.

A sequence split over ranks is refused: results do not depend on the split, which saves memory alone.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from compat.utils.errors import NotBuiltError


def get_ulysses_sequence_parallel_group() -> None:
    """The ranks that share a sequence: there are none."""


def set_ulysses_sequence_parallel_group(group: dist.ProcessGroup | None) -> None:
    """Accept no group, or a group of one. Raises ``NotBuiltError`` for a larger one."""
    _refuse_split(_size(group))


def get_ulysses_sequence_parallel_world_size(group: dist.ProcessGroup | None = None) -> int:
    """1. Raises ``NotBuiltError`` for a group of several ranks."""
    _refuse_split(_size(group))
    return 1


def get_ulysses_sequence_parallel_rank(group: dist.ProcessGroup | None = None) -> int:
    """0. Raises ``NotBuiltError`` for a group of several ranks."""
    _refuse_split(_size(group))
    return 0


def validate_ulysses_config(num_heads: int, ulysses_sequence_size: int) -> None:  # noqa: ARG001  (any count divides by 1)
    """Raise ``NotBuiltError`` where sequences are to be split."""
    _refuse_split(ulysses_sequence_size)


def ulysses_pad(
    input_ids_rmpad: Tensor,
    position_ids_rmpad: Tensor | None = None,
    sp_size: int = 1,
    pad_value: int = 0,  # noqa: ARG001
) -> tuple[Tensor, Tensor | None, int]:
    """Packed ids ``[1, T]`` and positions as they are, and 0 tokens of padding."""
    _refuse_split(sp_size)
    return input_ids_rmpad, position_ids_rmpad, 0


def ulysses_pad_and_slice_inputs(
    input_ids_rmpad: Tensor,
    position_ids_rmpad: Tensor | None = None,
    sp_size: int = 1,
    skip_position_ids_rmpad: bool = False,  # noqa: ARG001
    pad_value: int = 0,
) -> tuple[Tensor, Tensor | None, int]:
    """As :func:`ulysses_pad`: the slice of the one rank is the whole."""
    return ulysses_pad(input_ids_rmpad, position_ids_rmpad, sp_size, pad_value)


def slice_input_tensor(x: Tensor, dim: int, padding: bool = True, group: dist.ProcessGroup | None = None) -> Tensor:  # noqa: ARG001
    """The one rank's part of ``x``: all of it."""
    _refuse_split(_size(group))
    return x.contiguous()


def gather_outputs_and_unpad(
    x: Tensor,
    gather_dim: int,  # noqa: ARG001
    unpad_dim: int | None = None,
    padding_size: int = 0,
    grad_scaler: bool = True,  # noqa: ARG001  (it multiplies by the number of ranks)
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """``x``; with a group, without its last ``padding_size`` entries along ``unpad_dim``, as verl has it."""
    _refuse_split(_size(group))
    if group is None or unpad_dim is None or padding_size == 0:
        return x
    return x.narrow(unpad_dim, 0, x.size(unpad_dim) - padding_size)


def gather_seq_scatter_heads(
    x: Tensor,
    seq_dim: int,  # noqa: ARG001
    head_dim: int,  # noqa: ARG001
    unpadded_dim_size: int = 0,  # noqa: ARG001
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """``x``: the rank has the whole sequence and all heads."""
    _refuse_split(_size(group))
    return x


def gather_heads_scatter_seq(x: Tensor, head_dim: int, seq_dim: int, group: dist.ProcessGroup | None = None) -> Tensor:  # noqa: ARG001
    """``x``: the rank has the whole sequence and all heads."""
    _refuse_split(_size(group))
    return x


class BaseShardingManager:
    """A context around worker methods that changes nothing; ``timing`` is the recipe's to fill."""

    def __init__(self) -> None:
        self.timing: dict[str, float] = {}

    def __enter__(self) -> None:
        """Nothing is moved."""

    def __exit__(self, *raised: object) -> None:
        """Nothing is moved back."""

    def preprocess_data(self, data: Any) -> Any:
        """``data``."""
        return data

    def postprocess_data(self, data: Any) -> Any:
        """``data``."""
        return data


class FSDPUlyssesShardingManager(BaseShardingManager):
    """The same for no mesh, or one whose dimension ``sp`` has one rank. Raises ``NotBuiltError`` for more."""

    def __init__(self, device_mesh: Any) -> None:
        super().__init__()
        self.device_mesh = device_mesh
        if device_mesh is not None:
            _refuse_split(device_mesh["sp"].size())


def _size(group: dist.ProcessGroup | None) -> int:
    return 1 if group is None else dist.get_world_size(group)


def _refuse_split(size: int) -> None:
    if size > 1:
        raise NotBuiltError(
            f"sequences are not split over ranks, and {size} were to share one: set ulysses_sequence_parallel_size=1; "
            "results do not depend on it"
        )
