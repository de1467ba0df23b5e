"""On-policy RL with the optimal reward baseline."""

import torch
from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes


@register_advantage("opo", outcome=True, reference="OPO arXiv:2505.23585")
def opo(outcomes: Outcomes, _config: AdvantageConfig) -> Tensor:
    """Scores less the mean of their group weighted by length; a session is as long as its last output's mask-1 tokens.

    The mean is taken relative to the group's first score, so that equal scores give exactly 0.
    """
    groups = outcomes.groups
    from_first = outcomes.scores - groups.spread(outcomes.scores[groups.offsets[:-1]])
    mean = groups.sum(from_first * outcomes.lengths) / groups.sum(outcomes.lengths)
    return torch.where(groups.spread(groups.lengths) == 1, outcomes.scores, from_first - groups.spread(mean))
