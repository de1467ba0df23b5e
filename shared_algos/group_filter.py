"""Which groups can teach anything: those whose members differ (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from torch import Tensor

from shared_algos.errors import NonFiniteError


def groups_with_spread(values: Tensor, groups: Tensor) -> Tensor:
    """Whether each row's group is kept, bool ``[B]``: its values differ, or it is a group of one.

    values: ``[B]``, the metric of each trajectory, such as its reward. groups: int64 ``[B]``, equal for rows of one
    uid. Values differ where the largest is not the smallest: the std of seven times 3.3 is a rounding error, not 0.

    Raises ``NonFiniteError`` naming the row of a value that is NaN.
    """
    unknown = values.isnan().nonzero().squeeze(1)
    if unknown.numel():
        raise NonFiniteError(f"the value of row {int(unknown[0])} is nan: groups cannot be told apart by it")
    _, members, sizes = groups.unique(return_inverse=True, return_counts=True)
    empty = values.new_zeros(len(sizes))
    largest = empty.scatter_reduce(0, members, values, "amax", include_self=False)
    smallest = empty.scatter_reduce(0, members, values, "amin", include_self=False)
    return ((largest != smallest) | (sizes == 1))[members]
