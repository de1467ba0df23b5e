"""Order inside groups."""

from torch import Tensor

from shared_algos.segments import Segments


def rank_in_groups(values: Tensor, groups: Segments) -> Tensor:
    """Indices ``[S]`` that sort ``values [S]`` from the largest down inside each group; groups stay where they are.

    Equal values stay in the order in which they stand.
    """
    order = values.argsort(descending=True, stable=True)
    return order[groups.rows[order].argsort(stable=True)]
