"""verl's surface for algorithms of recipes: estimators and losses on padded ``[B, R]``, registered and got by name."""

from compat.algorithms.agg_loss import agg_loss
from compat.algorithms.estimators import AdvantageEstimator, get_adv_estimator_fn, register_adv_est
from compat.algorithms.losses import get_policy_loss_fn, register_policy_loss

__all__ = [
    "AdvantageEstimator",
    "agg_loss",
    "get_adv_estimator_fn",
    "get_policy_loss_fn",
    "register_adv_est",
    "register_policy_loss",
]
