"""Rule rewards: score functions, the routing among the built-in ones, and reward managers."""

from runtime.reward.functions import ComputeScore, load_compute_score
from runtime.reward.managers import NaiveRewardManager, RewardItem, RewardManager, RewardResult
from runtime.reward.registry import build_reward_manager, register_reward_manager, reward_manager_class
from runtime.reward.routing import default_compute_score

__all__ = [
    "ComputeScore",
    "NaiveRewardManager",
    "RewardItem",
    "RewardManager",
    "RewardResult",
    "build_reward_manager",
    "default_compute_score",
    "load_compute_score",
    "register_reward_manager",
    "reward_manager_class",
]
