"""Errors of the alias, which are also the builtins that old code catches around its imports."""

from runtime.errors import VerliftError


class AliasError(VerliftError, ImportError):
    """A module or name of verl cannot be imported from the alias, or the alias cannot be switched on."""


class AliasAttributeError(VerliftError, AttributeError):
    """A name of verl is not served, and was read as an attribute; ``hasattr`` is False."""
