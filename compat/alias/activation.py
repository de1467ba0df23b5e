"""Switching the alias on: in this process, and in the environment that its subprocesses and Ray workers inherit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from compat.alias import finder
from compat.alias.errors import AliasError
from runtime.environment import WORKER_ENV

SITE = Path(__file__).resolve().with_name("site")
"""Goes first on PYTHONPATH: its ``sitecustomize`` installs the alias in every Python process that inherits it."""

MIN_LOGICAL_CPUS = 16
"""What ``runtime.cluster`` gives a local Ray; importing it here would import Ray."""

RAY_RESOURCES = "RAY_OVERRIDE_RESOURCES"
"""Ray reads it in every ``ray.init`` that starts a local Ray, and it wins over ``num_cpus``."""


def enable_verl_alias(force: bool = False) -> None:
    """Serve ``import verl...`` from the alias, here and in processes and Ray workers that are started later.

    Raises ``AliasError`` when the real verl can be imported, unless ``force``, and when it has been imported. A second
    call does nothing.
    """
    loaded = sys.modules.get(finder.ROOT)
    if loaded is not None and not isinstance(getattr(loaded, "__loader__", None), finder.AliasLoader):
        raise AliasError(
            f"verl has been imported from {getattr(loaded, '__file__', loaded)}: enable the alias before that"
        )
    if not finder.is_installed() and not force:
        from compat.alias.real_verl import refuse_real_verl

        refuse_real_verl(sys.path, "enable_verl_alias(force=True)")
    finder.install()
    os.environ.update(alias_environment(os.environ))
    if str(SITE) not in sys.path:  # for hydra, which looks for its plugins on the search path
        sys.path.append(str(SITE))


def alias_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with what makes the alias active in a Python process; what is set there already is kept."""
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(SITE)]
    added = {**WORKER_ENV, **enough_logical_cpus()}
    return {**added, **environment, "PYTHONPATH": os.pathsep.join([str(SITE), *path])}


def enough_logical_cpus() -> dict[str, str]:
    """What lets a recipe's own ``ray.init()`` start with as many logical CPUs as our actors need."""
    if (os.cpu_count() or 1) >= MIN_LOGICAL_CPUS:
        return {}
    return {RAY_RESOURCES: json.dumps({"CPU": MIN_LOGICAL_CPUS})}
