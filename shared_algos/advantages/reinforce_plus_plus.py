"""REINFORCE++: discounted returns, whitened over the batch."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.whitening import whiten_tokens
from shared_algos.scan import reverse_scan


@register_advantage("reinforce_plus_plus", reference="REINFORCE++ arXiv:2501.03262")
def reinforce_plus_plus(episodes: Episodes, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """Rewards to go with discount gamma; advantages are these whitened over the batch, returns are not."""
    returns = reverse_scan(episodes.rewards, episodes.segments, config.gamma)
    return whiten_tokens(returns, episodes.segments), returns
