"""Optimal token baseline for tool-integrated reasoning: tool observations do not shift what is compared."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.token_baseline import NEEDS, REFERENCE, less_token_baseline


@register_advantage("tir_optimal_token_baseline", needs=NEEDS, reference=REFERENCE)
def tir_optimal_token_baseline(episodes: Episodes, _config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """Rewards to go less the group's baseline at the token's number among the row's mask-1 tokens."""
    return less_token_baseline(episodes, episodes.segments.positions)
