"""Optimal token baseline, tokens matched by their place in the response."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.token_baseline import NEEDS, REFERENCE, less_token_baseline


@register_advantage("optimal_token_baseline", needs=NEEDS, reference=REFERENCE)
def optimal_token_baseline(episodes: Episodes, _config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """Rewards to go less the group's baseline at the token's place in its response, masked tokens counted."""
    begins = episodes.inputs.segments.offsets[:-1][episodes.inputs.live_rows]
    return less_token_baseline(episodes, episodes.tokens - episodes.segments.spread(begins))
