"""ReMax: the reward of a greedy response is the baseline."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.scan import reverse_scan


@register_advantage("remax", needs={"reward_baselines"}, reference="ReMax arXiv:2310.10505")
def remax(episodes: Episodes, _config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """Rewards to go, without discount, less the row's ``reward_baselines``; the returns are the rewards to go.

    Raises ``NonFiniteError`` naming the row of a baseline that is infinite or NaN.
    """
    baselines = episodes.inputs.at_rows("reward_baselines", episodes.inputs.live_rows)
    returns = reverse_scan(episodes.rewards, episodes.segments, 1.0)
    return returns - episodes.segments.spread(baselines), returns
