"""Generalised advantage estimation."""

import torch
from torch import Tensor

from shared_algos.advantages.base import register_advantage
from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig
from shared_algos.reductions import masked_whiten
from shared_algos.scan import reverse_scan


@register_advantage("gae", needs={"values"}, reference="GAE arXiv:1506.02438")
def gae(episodes: Episodes, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
    """TD errors summed backwards with decay gamma * lam; advantages whitened over the batch, returns not."""
    values = episodes.column("values")
    errors = episodes.rewards + config.gamma * episodes.segments.following(values) - values
    advantages = reverse_scan(errors, episodes.segments, config.gamma * config.lam)
    every_token = torch.ones_like(advantages, dtype=torch.bool)
    return masked_whiten(advantages, every_token, episodes.segments), advantages + values
