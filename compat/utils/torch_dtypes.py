"""``verl.utils.torch_dtypes``: names of precisions."""

from __future__ import annotations

from typing import Any

import torch

from compat.utils.errors import NotBuiltError

_NAMES: dict[torch.dtype, tuple[Any, ...]] = {
    torch.float16: (16, "16", "fp16", "float16", torch.float16),
    torch.float32: (32, "32", "fp32", "float32", torch.float32),
    torch.bfloat16: ("bf16", "bfloat16", torch.bfloat16),
}


class PrecisionType:
    """Precisions by any of their names: ``bf16``, ``"bfloat16"`` and ``torch.bfloat16`` are one."""

    HALF = "16"
    FLOAT = "32"
    FULL = "64"
    BFLOAT = "bf16"
    MIXED = "mixed"

    @staticmethod
    def is_fp16(precision: Any) -> bool:
        """Whether it is float16."""
        return precision in _NAMES[torch.float16]

    @staticmethod
    def is_fp32(precision: Any) -> bool:
        """Whether it is float32."""
        return precision in _NAMES[torch.float32]

    @staticmethod
    def is_bf16(precision: Any) -> bool:
        """Whether it is bfloat16."""
        return precision in _NAMES[torch.bfloat16]

    @staticmethod
    def to_dtype(precision: Any) -> torch.dtype:
        """The torch dtype. Raises ``NotBuiltError`` for a name nobody knows."""
        for dtype, names in _NAMES.items():
            if precision in names:
                return dtype
        raise NotBuiltError(f"precision {precision!r} is not known: use fp32, bf16 or fp16")

    @staticmethod
    def to_str(precision: torch.dtype) -> str:
        """``fp16``, ``fp32`` or ``bf16``."""
        names = {torch.float16: "fp16", torch.float32: "fp32", torch.bfloat16: "bf16"}
        if precision not in names:
            raise NotBuiltError(f"{precision} has no short name here: use torch.float32, bfloat16 or float16")
        return names[precision]
