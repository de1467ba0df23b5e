"""Group relative policy optimisation."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.groups import center_groups, group_std
from shared_algos.segments import Segments


@register_advantage("grpo", "grpo_vectorized", outcome=True, reference="DeepSeekMath arXiv:2402.03300")
def grpo(outcomes: Outcomes, config: AdvantageConfig) -> Tensor:
    """Scores less their group's mean, divided by its unbiased std + 1e-6 unless ``norm_adv_by_std_in_grpo`` is off."""
    return normalize_in_groups(outcomes.scores, outcomes.groups, config.norm_adv_by_std_in_grpo)


def normalize_in_groups(scores: Tensor, groups: Segments, by_std: bool) -> Tensor:
    """``scores [S]`` less their group's mean and, with ``by_std``, over its unbiased std + 1e-6; float64 ``[S]``."""
    centered = center_groups(scores, groups)
    return centered / (groups.spread(group_std(scores, groups)) + 1e-6) if by_std else centered
