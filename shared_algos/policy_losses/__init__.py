"""Policy losses by name. Every module of this folder registers its losses when it is imported."""

import importlib
import pkgutil

from shared_algos.policy_losses.base import (
    POLICY_LOSSES,
    PolicyLossInputs,
    Selection,
    check_policy_loss,
    compute_policy_loss,
    register_policy_loss,
    select_tokens,
)
from shared_algos.policy_losses.config import PolicyLossConfig

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "POLICY_LOSSES",
    "PolicyLossConfig",
    "PolicyLossInputs",
    "Selection",
    "check_policy_loss",
    "compute_policy_loss",
    "register_policy_loss",
    "select_tokens",
]
