"""``verl.utils.import_utils``: what is installed, and objects by file and name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from compat.utils.errors import NotBuiltError
from runtime.errors import ConfigError
from runtime.user_code import load_module as load_user_module
from runtime.user_code import load_object


@cache
def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def is_megatron_core_available() -> bool:
    """Whether megatron-core is installed; it is not used here."""
    return _is_installed("megatron.core")


def is_vllm_available() -> bool:
    """Whether vLLM is installed."""
    return _is_installed("vllm")


def is_sglang_available() -> bool:
    """Whether SGLang is installed; it is not used here."""
    return _is_installed("sglang")


def is_nvtx_available() -> bool:
    """Whether the ``nvtx`` package is installed."""
    return _is_installed("nvtx")


def is_trl_available() -> bool:
    """Whether TRL is installed."""
    return _is_installed("trl")


def is_msprobe_available() -> bool:
    """Whether msprobe is installed; it is not used here."""
    return _is_installed("msprobe")


def import_external_libs(external_libs: str | list[str] | None = None) -> None:
    """Import the modules that ``external_lib`` of a config names."""
    names = [external_libs] if isinstance(external_libs, str) else list(external_libs or ())
    for name in names:
        importlib.import_module(name)


def load_module(module_path: str, module_name: str | None = None) -> Any:
    """The module at a file's path, ``file://`` or ``pkg://dotted.name``; None for no path.

    A file is run once in a process. module_name: it can be imported by this name afterwards.
    Raises ``ConfigError`` naming the path when it is missing or fails to run.
    """
    if not module_path:
        return None
    module = load_user_module(_dotted(module_path), ConfigError)
    if module_name is not None:
        import sys

        if sys.modules.setdefault(module_name, module) is not module:
            raise NotBuiltError(f"the name {module_name!r} is taken by another module; choose one of your own")
    return module


def load_extern_object(module_path: str, object_name: str) -> Any:
    """The object ``object_name`` of the module at ``module_path``. Raises ``ConfigError`` naming both."""
    return load_object(_dotted(module_path), object_name, ConfigError)


def load_extern_type(file_path: str, type_name: str) -> Any:
    """``load_extern_object`` under the names that its parameters had first."""
    return load_extern_object(file_path, type_name)


def load_class_from_fqn(fqn: str, description: str = "class") -> type:
    """The class of a dotted name. Raises ``ConfigError`` naming it and what it is for."""
    module, _, name = fqn.rpartition(".")
    if not module:
        raise ConfigError(f"{description} {fqn!r} must be a dotted name, such as package.module.Class")
    return load_object(f"pkg://{module}", name, ConfigError)


def resolve_config_path(config_path: str) -> str:
    """The absolute path of a file, looked for in the working directory. Raises ``ConfigError`` when it is not there."""
    path = Path(config_path).expanduser().absolute()
    if not path.exists():
        raise ConfigError(f"no config file {config_path!r} (looked for {path}); give its absolute path")
    return os.fspath(path)


def _dotted(path: str) -> str:
    """verl also writes ``pkg://a/b`` for the module ``a.b``."""
    return path.replace("/", ".").replace("pkg:..", "pkg://") if path.startswith("pkg://") else path


def deprecated(replacement: str = "") -> Callable[[Any], Any]:
    """Decorates a function or class: its use warns, naming ``replacement``."""

    def decorate(thing: Any) -> Any:
        message = f"{thing.__module__}.{thing.__qualname__} is deprecated"
        message += f"; use {replacement}" if replacement else ""
        target: Any = getattr(thing, "__init__") if isinstance(thing, type) else thing  # noqa: B009  (mypy's wish)

        @functools.wraps(target)
        def warned(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(message, category=FutureWarning, stacklevel=2)
            return target(*args, **kwargs)

        if not isinstance(thing, type):
            return warned
        thing.__init__ = warned  # type: ignore[misc]
        return thing

    return decorate
