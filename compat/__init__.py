"""The old surface kept working: ``DataProto``, padded layouts, and adapters for functions with verl's signatures."""

from compat import rows as _rows  # noqa: F401  (registers DataProto with runtime.containers)
