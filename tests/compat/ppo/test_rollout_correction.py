"""The helper modules of rollout correction; ``tests/oracle`` compares their values with verl 0.9.1's."""

import pytest
import torch
from omegaconf import OmegaConf

from compat.ppo import rollout_correction as helper
from compat.ppo.errors import BadSettingError

OLD, ROLLOUT = torch.tensor([[0.0, 1.0], [0.0, -2.0]]), torch.zeros(2, 2)
MASK = torch.tensor([[1, 1], [1, 1]])


def test_bypass_mode_lets_the_rollout_stand_for_the_old_policy(make_batch):
    data = make_batch(rollout_log_probs=torch.full((4, 3), -3.0))
    policy_loss = OmegaConf.create({"loss_mode": "vanilla"})
    OmegaConf.set_struct(policy_loss, True)
    helper.apply_bypass_mode(data, {"rollout_is": "token"}, policy_loss)
    assert data.batch["old_log_probs"].eq(-3).all()
    assert policy_loss == {"loss_mode": "bypass_mode", "rollout_correction": {"rollout_is": "token"}}
    with pytest.raises(ValueError, match="rollout_log_probs; set"):
        helper.apply_bypass_mode(make_batch())


def test_settings_that_are_not_there_are_off(make_batch):
    data = make_batch(rollout_log_probs=torch.full((4, 3), -1.0))
    batch, metrics = helper.compute_rollout_correction_and_add_to_batch(data, OmegaConf.create({"rollout_is": None}))
    assert batch is data
    assert "rollout_is_weights" not in data.batch
    assert metrics["rollout_corr/kl"] == 0.0
    weights, mask, _ = helper.compute_rollout_correction_and_rejection_mask(OLD, ROLLOUT, MASK, "token", None)
    assert weights is None
    assert mask.equal(MASK)


def test_what_cannot_be_corrected_is_refused():
    nothing = torch.zeros_like(MASK)
    for function in (helper.compute_offpolicy_metrics, helper.compute_rollout_corr_metrics_from_logprobs):
        with pytest.raises(AssertionError, match="has no 1"):
            function(OLD, ROLLOUT, nothing)
    with pytest.raises(ValueError, match="has no 1"):
        helper.compute_rollout_correction_and_rejection_mask(OLD, ROLLOUT, nothing)
    with pytest.raises(ValueError, match="shapes"):
        helper.compute_rollout_correction_and_rejection_mask(OLD, ROLLOUT[:, :1], MASK)


def test_the_form_of_verl_0_6():
    """Bounds are of training over rollout there; truncation cuts, a mask leaves weights as they are."""
    weights, mask, metrics = helper.compute_rollout_importance_weights(OLD, ROLLOUT, MASK, rollout_is_threshold=2.0)
    assert weights.batch["rollout_is_weights"].tolist() == [[1, 2], [1, pytest.approx(0.1353, abs=1e-4)]]
    assert mask.equal(MASK)
    assert metrics["mismatch/rollout_is_max"] == 2.0
    weights, mask, metrics = helper.compute_rollout_importance_weights(
        OLD, ROLLOUT, MASK, rollout_is_mode="mask", rollout_is_threshold=4.0, rollout_is_threshold_lower=0.2
    )
    assert weights.batch["rollout_is_weights"][0, 1] == pytest.approx(2.7183, abs=1e-4)
    assert mask.tolist() == [[1, 1], [1, 0]], "0.135 is below 0.2, 2.7 is not above 4"
    assert metrics["mismatch/rollout_rs_masked_fraction"] == 0.25
    assert helper.compute_rollout_importance_weights(OLD, ROLLOUT, MASK) == (None, MASK, {})
    for settings in (
        {"rollout_is_level": "geometric"},
        {"rollout_is_veto_threshold": 1e-4},
        {"rollout_is_mode": "clip"},
    ):
        with pytest.raises(BadSettingError, match="rollout_correction"):
            helper.compute_rollout_importance_weights(OLD, ROLLOUT, MASK, rollout_is_threshold=2.0, **settings)
