"""What is done where the policy that sampled is not quite the policy that is trained (https://richardli.xyz/rl-collapse).

Importance weights scale the loss, rejection takes tokens or rows out of it, and metrics say how far apart the two are.
"""

from shared_algos.rollout_correction.config import LOSS_TYPES, WEIGHT_LEVELS, RolloutCorrectionConfig
from shared_algos.rollout_correction.correction import Correction, correct
from shared_algos.rollout_correction.off_policy import off_policy_metrics
from shared_algos.rollout_correction.rejection import REJECTION_MODES

__all__ = [
    "LOSS_TYPES",
    "REJECTION_MODES",
    "WEIGHT_LEVELS",
    "Correction",
    "RolloutCorrectionConfig",
    "correct",
    "off_policy_metrics",
]
