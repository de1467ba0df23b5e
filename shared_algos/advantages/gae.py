"""Generalised advantage estimation."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.whitening import whiten_tokens
from shared_algos.scan import gae_scan


@register_advantage("gae", needs={"values"}, reference="GAE arXiv:1506.02438")
def gae(episodes: Episodes, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """TD errors summed backwards with decay gamma * lam; advantages whitened over the batch, returns not."""
    values = episodes.column("values")
    advantages, returns = gae_scan(episodes.rewards, values, episodes.segments, config.gamma, config.lam)
    return whiten_tokens(advantages, episodes.segments), returns
