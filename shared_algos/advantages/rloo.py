"""REINFORCE leave-one-out."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.groups import center_groups


@register_advantage("rloo", "rloo_vectorized", outcome=True, reference="RLOO arXiv:2402.14740")
def rloo(outcomes: Outcomes, _config: AdvantageConfig) -> Tensor:
    """Scores less the mean of the others in their group, which is n/(n-1) times the distance from the whole mean."""
    groups, members = outcomes.groups, outcomes.groups.lengths.double()
    return center_groups(outcomes.scores, groups) * groups.spread(members / (members - 1).clamp(min=1))
