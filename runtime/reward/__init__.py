"""Rewards: score functions, the routing among the built-in ones, managers of responses and of batches, the stage."""

from runtime.reward.batch import BatchedFunctionManager, BatchRewardManager, BatchRewards
from runtime.reward.dapo import DAPORewardManager
from runtime.reward.functions import ComputeScore, load_compute_score
from runtime.reward.lenient import PrimeRewardManager, RateLimitedRewardManager
from runtime.reward.managers import NaiveRewardManager, RewardItem, RewardManager, RewardResult
from runtime.reward.registry import (
    build_reward_manager,
    register_reward_manager,
    reward_manager_class,
    scores_batches,
)
from runtime.reward.routing import default_compute_score
from runtime.reward.stage import Rewarded, RewardStage

__all__ = [
    "BatchRewardManager",
    "BatchRewards",
    "BatchedFunctionManager",
    "ComputeScore",
    "DAPORewardManager",
    "NaiveRewardManager",
    "PrimeRewardManager",
    "RateLimitedRewardManager",
    "RewardItem",
    "RewardManager",
    "RewardResult",
    "RewardStage",
    "Rewarded",
    "build_reward_manager",
    "default_compute_score",
    "load_compute_score",
    "register_reward_manager",
    "reward_manager_class",
    "scores_batches",
]
