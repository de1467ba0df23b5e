"""The old surface kept working: ``DataProto``, padded layouts, adapters for recipes' functions, the ``verl`` alias."""

from compat.alias import enable_verl_alias

__all__ = ["enable_verl_alias"]
