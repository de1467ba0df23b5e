"""What ``verl.utils.reward_score`` has beside the scorers, which are those of ``runtime.reward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.reward import default_compute_score


def get_default_compute_score(reward_name: str | None) -> Callable[..., Any]:  # noqa: ARG001
    """The routing among built-in scorers: the same one for every reward manager, as in verl."""
    return default_compute_score
