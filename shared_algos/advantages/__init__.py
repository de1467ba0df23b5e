"""Advantage estimators by name. Every module of this folder registers its estimators when it is imported."""

import importlib
import pkgutil

from shared_algos.advantages.base import ADVANTAGES, compute_advantages, register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig, AdvantageInputs, AdvantageOutputs
from shared_algos.advantages.outcomes import Outcomes

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ADVANTAGES",
    "AdvantageConfig",
    "AdvantageInputs",
    "AdvantageOutputs",
    "Episodes",
    "Outcomes",
    "compute_advantages",
    "register_advantage",
]
