"""REINFORCE++ with a baseline: scores less their group's mean, whitened over the batch."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.advantages.whitening import whiten_outcomes
from shared_algos.groups import center_groups


@register_advantage("reinforce_plus_plus_baseline", outcome=True, reference="REINFORCE++ arXiv:2501.03262")
def reinforce_plus_plus_baseline(outcomes: Outcomes, _config: AdvantageConfig) -> Tensor:
    """Scores less their group's mean, whitened over the tokens of the last outputs."""
    return whiten_outcomes(center_groups(outcomes.scores, outcomes.groups), outcomes)
