"""``verl.models.transformers.monkey_patch``: what verl patches into models, the engine does without patches."""

from __future__ import annotations

from typing import Any

from compat.utils.ulysses import validate_ulysses_config


def apply_monkey_patch(
    model: Any,  # noqa: ARG001
    ulysses_sp_size: int = 1,
    use_remove_padding: bool = True,  # noqa: ARG001
    use_fused_kernels: bool = False,  # noqa: ARG001
    fused_kernels_backend: str | None = None,  # noqa: ARG001
    use_prefix_grouper: bool = False,  # noqa: ARG001
    use_tiled_mlp: bool = False,  # noqa: ARG001
    tiled_mlp_shards: int = 4,  # noqa: ARG001
) -> None:
    """Leave ``model`` as it is.

    Models of the worker groups run packed, with log-probs in chunks, without it. A model of the recipe's own runs
    packed as transformers does it: ``position_ids`` that start anew with each sequence, ``attention_mask=None`` and
    ``use_cache=False``. Kernels that a patch would choose change no result.

    Raises ``NotBuiltError`` where sequences are to be split over ranks.
    """
    validate_ulysses_config(num_heads=1, ulysses_sequence_size=ulysses_sp_size)
