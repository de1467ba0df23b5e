"""Group relative policy optimisation."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.groups import center_groups, group_std


@register_advantage("grpo", "grpo_vectorized", outcome=True, reference="DeepSeekMath arXiv:2402.03300")
def grpo(outcomes: Outcomes, config: AdvantageConfig) -> Tensor:
    """Scores less their group's mean, divided by its unbiased std + 1e-6 unless ``norm_adv_by_std_in_grpo`` is off."""
    centered = center_groups(outcomes.scores, outcomes.groups)
    if not config.norm_adv_by_std_in_grpo:
        return centered
    return centered / (outcomes.groups.spread(group_std(outcomes.scores, outcomes.groups)) + 1e-6)
