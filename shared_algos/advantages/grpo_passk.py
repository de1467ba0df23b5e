"""GRPO for pass@k: only the best answer of a group learns."""

import torch
from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.advantages.ranking import rank_in_groups
from shared_algos.errors import AlgorithmError
from shared_algos.groups import group_std


@register_advantage("grpo_passk", outcome=True, reference="Pass@k arXiv:2503.19595")
def grpo_passk(outcomes: Outcomes, config: AdvantageConfig) -> Tensor:
    """The lead of a group's best score over the second best; 0 for all others.

    Divided by the group's unbiased std + 1e-6 unless ``norm_adv_by_std_in_grpo`` is off. Of several equally good the
    first in canonical order is the best; its lead is 0. Raises ``AlgorithmError`` naming the row that is alone in its
    group: it has no second best.
    """
    groups, scores = outcomes.groups, outcomes.scores
    alone = (groups.lengths == 1).nonzero().squeeze(1)
    if alone.numel():
        row = outcomes.inputs.describe(int(outcomes.rows[groups.offsets[alone[0]]]))
        raise AlgorithmError(
            f"grpo_passk needs 2 sessions or more in a group, and {row} is alone in its group: set rollout.n to 2 or "
            f"more, or drop groups of which one session is left"
        )
    ranked = rank_in_groups(scores, groups)
    best, second = ranked[groups.offsets[:-1]], ranked[groups.offsets[:-1] + 1]
    lead = scores[best] - scores[second]
    if config.norm_adv_by_std_in_grpo:
        lead = lead / (group_std(scores, groups) + 1e-6)
    return torch.zeros_like(scores).index_copy(0, best, lead)
