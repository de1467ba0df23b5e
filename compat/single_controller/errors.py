"""Errors of worker groups and resource pools.

verl checks with ``assert`` or raises ``ValueError`` in these places; each class is also what old recipes may catch.
"""

from runtime.errors import ResourceError, VerliftError


class DispatchError(VerliftError, AssertionError, TypeError):
    """The arguments of a worker-group method cannot be cut among the ranks, or their answers cannot be joined."""


class DispatchModeError(VerliftError, AssertionError, NotImplementedError):
    """A dispatch or execute mode is unknown, badly formed, taken, or needs what does not exist here."""


class UnregisteredMethodError(VerliftError, AttributeError):
    """A worker group is asked for a method that its worker class has not registered."""


class WorkerGroupError(VerliftError, ValueError):
    """A worker group cannot be built as asked."""


class ResourcePoolError(ResourceError, ValueError, AssertionError):
    """A resource pool cannot be placed, split or merged as asked."""
