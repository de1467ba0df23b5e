"""Every advantage estimator against verl 0.9.1 on 200 random ragged batches, float64 in both, on mask-1 tokens.

Agreement is within 1e-9 relative. verl sees no row whose mask is all 0 (they enter its groups, deviation D2), and of a
session with several outputs only the last (it counts each output, D13).
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.registry import Level

pytestmark = pytest.mark.oracle
CONFIG = AdvantageConfig(gamma=0.99, lam=0.95, gdpo_reward_weights=(0.7, -0.2, 1.5))
DIVIDES_BY_STD = {"grpo", "grpo_vectorized", "grpo_passk", "gdpo"}
NOT_ALONE = {"grpo_passk", "rloo_vectorized"}
"""Estimators that are not compared in groups of one: both refuse them, or verl gives 0 (deviation D14)."""
TOKEN_COLUMNS = {"gae": ("values",)} | dict.fromkeys(
    ("optimal_token_baseline", "tir_optimal_token_baseline"),
    ("old_log_probs", "sum_pi_squared", "rollout_is_weights"),
)
OUTCOME = [name for name in ADVANTAGES.names() if ADVANTAGES.get(name).level is Level.OUTCOME]


@dataclass
class Columns:
    """Inputs of every estimator, float64."""

    rewards: Tensor
    """``[B, R]``"""
    tokens: dict[str, Tensor]
    """``[B, R]`` each"""
    baselines: Tensor
    """``[B]``"""
    components: Tensor
    """``[B, 3]``"""


def make_columns(batch):
    old = -batch.column().abs()
    pi = old.exp()
    tokens = {
        "values": batch.column(),
        "old_log_probs": old,
        "sum_pi_squared": pi.square() + (1 - pi).square() * batch.column().sigmoid(),
        "rollout_is_weights": batch.column(0.3).exp(),
    }
    of_rows = torch.from_numpy(batch.random.normal(size=(len(batch.groups), 4)))
    return Columns(batch.rewards(), tokens, of_rows[:, 0], of_rows[:, 1:])


def ours(name, batch, columns, config, sessions=None):
    """Advantages and returns ``[T]``."""
    inputs = replace(
        batch.inputs(columns.rewards, sessions, **columns.tokens),
        reward_baselines=columns.baselines,
        reward_components=columns.components,
    )
    outputs = compute_advantages(name, inputs, config, torch.float64)
    return outputs.advantages, outputs.returns


def theirs(verl, name, batch, columns, config, rows):
    """Advantages and returns ``[len(rows), R]`` of a batch of these rows."""
    settings = {"gamma": config.gamma, "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo}
    arguments = {"token_level_rewards": columns.rewards[rows], "response_mask": batch.mask[rows]}
    arguments |= {column: columns.tokens[column][rows] for column in TOKEN_COLUMNS.get(name, ())}
    if name == "gae":
        return verl("estimator", name=name, gamma=config.gamma, lam=config.lam, **arguments)
    if name == "remax":
        arguments["reward_baselines"] = columns.baselines[rows]
    if name in DIVIDES_BY_STD - {"grpo_passk"}:
        arguments["norm_adv_by_std_in_grpo"] = config.norm_adv_by_std_in_grpo
    if name == "gdpo":
        components = columns.components[rows].numpy()
        prompts = torch.ones(len(rows), 1, dtype=torch.int64)
        arguments["batch"] = {"prompts": prompts, "attention_mask": torch.cat([prompts, batch.exists[rows]], dim=1)}
        arguments["non_tensor_batch"] = {f"reward_{k}": components[:, k] for k in range(components.shape[1])}
        settings["gdpo_reward_keys"] = list(arguments["non_tensor_batch"])
        settings["gdpo_reward_weights"] = list(config.gdpo_reward_weights)
    return verl("estimator", name=name, config=settings, index=batch.groups[rows].numpy(), **arguments)


def agree(batch, ours, theirs):
    """``ours [T]`` against ``theirs [B, R]``."""
    mask = batch.pack(batch.mask).bool()
    assert not ours[~mask].any()
    torch.testing.assert_close(ours[mask], batch.pack(theirs)[mask], rtol=1e-9, atol=1e-12)


def reject(batch, name, sessions):
    """Mask one row in eight and, for estimators of ``NOT_ALONE``, the rows of groups with one session left."""
    batch.mask[batch.random.permutation(len(batch.mask))[: len(batch.mask) // 8]] = 0
    if name in NOT_ALONE:
        live = batch.mask.any(1)
        left = torch.stack([batch.groups[live], sessions[live]]).unique(dim=1)[0]
        batch.mask[(left[:, None] == batch.groups).sum(0) < 2] = 0


@pytest.mark.parametrize(
    ("name", "by_std"), [(n, s) for n in ADVANTAGES.names() for s in (True, False) if s or n in DIVIDES_BY_STD]
)
def test_rows_that_are_sessions(verl, batches, name, by_std):
    config = replace(CONFIG, norm_adv_by_std_in_grpo=by_std)
    for batch in batches:
        columns = make_columns(batch)
        reject(batch, name, torch.arange(len(batch.mask)))
        rows = batch.mask.any(1).nonzero().squeeze(1)
        if not len(rows):
            continue
        expected = torch.zeros(2, *batch.mask.shape, dtype=torch.float64)
        expected[:, rows] = torch.stack(theirs(verl, name, batch, columns, config, rows))
        for values, reference in zip(ours(name, batch, columns, config), expected, strict=True):
            agree(batch, values, reference)


@pytest.mark.parametrize("name", OUTCOME)
def test_sessions_with_several_outputs(verl, batches, name):
    """The last output with a mask-1 token speaks for its session, and each session counts once."""
    for batch in batches:
        columns, row_numbers = make_columns(batch), torch.arange(len(batch.mask))
        sessions = row_numbers // 5  # those of five neighbours that have one uid
        reject(batch, name, sessions)
        identity = 1000 * batch.groups + sessions
        same = (identity[:, None] == identity) & batch.mask.any(1)
        last = torch.where(same, row_numbers, -1).amax(1)
        rows = last[last >= 0].unique()
        if not len(rows):
            continue
        advantages, _ = theirs(verl, name, batch, columns, CONFIG, rows)
        scalars = torch.zeros(len(batch.mask), dtype=torch.float64)
        scalars[rows] = advantages[torch.arange(len(rows)), batch.mask[rows].argmax(1)]
        expected = scalars[last][:, None] * batch.mask
        for values in ours(name, batch, columns, CONFIG, sessions):
            agree(batch, values, expected)


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baselines_without_importance_weights(verl, batches, name):
    for batch in batches:
        columns = make_columns(batch)
        rows = torch.arange(len(batch.mask))
        columns.tokens["rollout_is_weights"] = torch.ones_like(columns.rewards)
        expected = theirs(verl, name, batch, columns, CONFIG, rows)
        del columns.tokens["rollout_is_weights"]
        for values, reference in zip(ours(name, batch, columns, CONFIG), expected, strict=True):
            agree(batch, values, reference)
