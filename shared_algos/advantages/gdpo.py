"""Group reward-decoupled normalisation policy optimisation: GRPO for each component of the reward."""

import torch
from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.grpo import normalize_in_groups
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.advantages.whitening import whiten_outcomes
from shared_algos.errors import AlgorithmError


@register_advantage("gdpo", needs={"reward_components"}, outcome=True, reference="GDPO arXiv:2601.05242")
def gdpo(outcomes: Outcomes, config: AdvantageConfig) -> Tensor:
    """The weighted sum of each component's GRPO advantage, whitened over the tokens of the last outputs.

    Raises ``AlgorithmError`` unless there are as many ``gdpo_reward_weights`` as components, and ``NonFiniteError``
    naming row and component where one that takes part is infinite or NaN.
    """
    components = outcomes.inputs.at_rows("reward_components", outcomes.rows)
    count = components.shape[1]
    weights = (1.0,) * count if config.gdpo_reward_weights is None else config.gdpo_reward_weights
    if len(weights) != count:
        raise AlgorithmError(
            f"gdpo_reward_weights has {len(weights)} values for {count} reward components; name one weight for each"
        )
    total = torch.zeros_like(outcomes.scores)
    for weight, scores in zip(weights, components.unbind(1), strict=True):
        total += weight * normalize_in_groups(scores, outcomes.groups, config.norm_adv_by_std_in_grpo)
    return whiten_outcomes(total, outcomes)
