"""Generalised advantage estimation."""

from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.advantages.whitening import whiten_tokens
from shared_algos.scan import td_scan


@register_advantage("gae", needs={"values"}, reference="GAE arXiv:1506.02438")
def gae(episodes: Episodes, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """TD errors summed backwards with decay gamma * lam; advantages whitened over the batch, returns not."""
    values = episodes.column("values")
    decay = config.gamma * config.lam
    advantages = td_scan(episodes.rewards, values, episodes.segments, config.gamma, decay)
    returns = values.add_(advantages)  # in place: the column is a copy
    return whiten_tokens(advantages, episodes.segments), returns
