"""Group policy gradient."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.groups import center_groups


@register_advantage("gpg", outcome=True, reference="GPG arXiv:2504.02546")
def gpg(outcomes: Outcomes, _config: AdvantageConfig) -> Tensor:
    """Scores less their group's mean, times the batch's sessions over those with a score other than 0."""
    alpha = len(outcomes.scores) / outcomes.scores.count_nonzero().clamp(min=1).double()
    return center_groups(outcomes.scores, outcomes.groups) * alpha
