"""Right values from incident reports, on both trainers: from recorded sessions to what a stage writes.

The same cases on the core alone are in tests/shared_algos/test_right_values.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from runtime.config import load_config
from runtime.errors import RolloutError
from verlift.trainers import build_trainer

pytestmark = pytest.mark.ray

trainers = pytest.mark.parametrize("use_v1", [False, True], ids=["legacy", "v1"])
ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


def session(score: float, length: int = 2, **more: Any) -> dict[str, Any]:
    return {"prompt_ids": [10, 11], "response_ids": list(range(40, 40 + length)), "reward_score": score, **more}


def rejected(score: float) -> dict[str, Any]:
    return session(score, response_mask=[0, 0])


class Run:
    """One step of one trainer on recorded sessions, as far as the stage ``until``."""

    def __init__(self, tmp_path, use_v1: bool, prompts: Sequence[Sequence[Mapping[str, Any]]], *overrides: str):
        n = len(prompts[0])
        rows = [
            {
                "data_source": "recorded",
                "prompt": [{"role": "user", "content": f"prompt {number}"}],
                "reward_model": {"style": "rule", "ground_truth": ""},
                "agent_name": "replay_agent",
                "extra_info": {"index": number, "sessions": list(sessions)},
            }
            for number, sessions in enumerate(prompts)
        ]
        path = tmp_path / "sessions.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        base = [
            f"trainer.use_v1={use_v1}",
            f"data.train_files={path}",
            f"data.train_batch_size={len(prompts)}",
            "data.shuffle=false",
            "data.max_prompt_length=8",
            "data.max_response_length=8",
            f"actor_rollout_ref.rollout.n={n}",
            "actor_rollout_ref.rollout.calculate_log_probs=false",
            f"{ACTOR}.ppo_mini_batch_size={len(prompts)}",
            "trainer.total_training_steps=1",
            "trainer.logger=[jsonl]",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
        self.use_v1 = use_v1
        self.config = load_config("tiny", [*base, *overrides]).config
        self.series: dict[str, Mapping[str, Sequence[float]]] = {}

    def play(self, until: str, *fields: str) -> dict[str, list[list[float]]]:
        """What ``fields`` hold after the stage ``until``: one list a row, rows in canonical order."""
        trainer = build_trainer(self.config)
        try:
            trainer.workers.policy_weights.bring_newest()
            (batch,) = trainer.prompts.batches()
            trainer.expect(batch)
            for stage in trainer.stage_names[: trainer.stage_names.index(until) + 1]:
                batch, self.series[stage] = getattr(trainer, stage)(batch)
            rows = self._read(batch, fields).select(torch.tensor(trainer.canonical_places(batch)).argsort())
        finally:
            trainer.close()
        return {name: [values.tolist() for values in rows.responses.split(rows[name])] for name in fields}

    def _read(self, batch: Any, fields: Sequence[str]):
        if self.use_v1:
            from v1 import data_plane

            return data_plane.read(batch, fields)
        from compat.rows import read_batch

        return read_batch(batch, fields)

    def advantages(self) -> list[float]:
        """The advantage of each row, which all its mask-1 tokens share; 0 for a row without one."""
        rows = self.play("advantage", "advantages")["advantages"]
        assert all(len(set(row)) == 1 for row in rows)
        return [row[0] for row in rows]


@trainers
def test_case_1_rejected_tokens_leave_the_denominator(cluster, tmp_path, use_v1):  # noqa: ARG001
    """Groups of one: advantages 1 and -0.5. The rollout was sure of the last three tokens of row 2; training is not."""
    unsure = -4.6
    prompts = [
        [session(1.0, 3, response_logprobs=[unsure] * 3)],
        [session(-0.5, 5, response_logprobs=[unsure] * 2 + [0.0] * 3)],
    ]
    rejection = [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=10"]
    log_probs = "actor_rollout_ref.rollout.calculate_log_probs=true"
    run = Run(tmp_path, use_v1, prompts, "algorithm.adv_estimator=rloo", log_probs, *rejection)
    assert run.play("update_actor", "response_mask")["response_mask"] == [[1, 1, 1], [1, 1, 0, 0, 0]]
    assert run.series["update_actor"]["actor/pg_loss"] == [pytest.approx(-0.40)]


@trainers
@pytest.mark.parametrize(("micro_batch", "ranks"), [(1, 1), (2, 1), (1, 2)])
def test_case_2_the_horizon_is_the_configured_length(cluster, tmp_path, use_v1, micro_batch, ranks):  # noqa: ARG001
    run = Run(
        tmp_path,
        use_v1,
        [[session(1.0, 3)], [session(-0.5, 5)]],
        "algorithm.adv_estimator=rloo",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro_batch}",
        f"trainer.n_gpus_per_node={ranks}",
    )
    run.play("update_actor", "response_mask")
    assert run.series["update_actor"]["actor/pg_loss"] == [-0.03125]


@pytest.mark.parametrize(
    ("estimator", "expected"), [("grpo_vectorized", [0.7071] * 3 + [-0.7071]), ("rloo", [1.0] * 3 + [-1.0])]
)
def test_case_4_a_session_with_several_outputs_counts_once(cluster, tmp_path, estimator, expected):  # noqa: ARG001
    prompts = [[{"outputs": [session(1.0)] * 3}, session(0.0)]]
    run = Run(tmp_path, True, prompts, f"algorithm.adv_estimator={estimator}")
    assert run.advantages() == pytest.approx(expected, abs=1e-4)


def test_case_4_legacy_refuses_several_outputs(cluster, tmp_path):  # noqa: ARG001
    run = Run(tmp_path, False, [[{"outputs": [session(1.0)] * 3}, session(0.0)]])
    with pytest.raises(RolloutError, match="returned 3 outputs; the legacy trainer holds one row a session"):
        run.play("rollout", "response_mask")


SEVEN_EQUAL = [session(3.3)] * 7
ONE_LEFT = [rejected(100.0), session(1.0), *[rejected(5.0)] * 5]
FOUR_LEFT = [session(4.0), rejected(9.0), session(0.0), rejected(9.0), session(2.0), rejected(9.0), session(2.0)]
TWO_LEFT = [rejected(9.0)] * 5 + [session(1.0), session(0.0)]
GROUPS = [SEVEN_EQUAL, ONE_LEFT, FOUR_LEFT, TWO_LEFT]


@trainers
def test_cases_11_12_and_22_grpo(cluster, tmp_path, use_v1):  # noqa: ARG001
    """A rejected row takes no part; groups are by uid, whatever their size; equal rewards give exactly 0."""
    std = (8 / 3) ** 0.5
    four = [2 / std, 0, -2 / std, 0, 0, 0, 0]
    two = [0] * 5 + [0.7071, -0.7071]
    advantages = Run(tmp_path, use_v1, GROUPS).advantages()
    assert advantages[:7] == [0] * 7
    assert advantages[7:] == pytest.approx([0, 0.999999, 0, 0, 0, 0, 0, *four, *two], abs=1e-4)
    assert advantages[8] == pytest.approx(0.999999, abs=1e-7)


@trainers
def test_cases_11_and_12_rloo(cluster, tmp_path, use_v1):  # noqa: ARG001
    four = [8 / 3, 0, -8 / 3, 0, 0, 0, 0]
    advantages = Run(tmp_path, use_v1, GROUPS, "algorithm.adv_estimator=rloo").advantages()
    assert advantages == pytest.approx([0] * 7 + [0, 1.0, 0, 0, 0, 0, 0, *four, 0, 0, 0, 0, 0, 1.0, -1.0], abs=1e-6)


@trainers
@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "remax"])
def test_case_21_an_outcome_on_a_closing_observation_is_not_lost(cluster, tmp_path, use_v1, estimator):  # noqa: ARG001
    """With gamma = lam = 1 GAE's returns are the rewards to go, whatever the critic's values are."""
    observed = session(1.0, 5, response_mask=[1, 1, 1, 0, 0])
    prompts = [[observed, session(0.5), session(0.25)]] * 2
    n = "actor_rollout_ref.rollout.n=2"  # the third one is the greedy baseline
    run = Run(tmp_path, use_v1, prompts, f"algorithm.adv_estimator={estimator}", n)
    returns = run.play("advantage", "returns")["returns"]
    assert returns[0] == pytest.approx([1, 1, 1, 0, 0])
    assert returns[1] == pytest.approx([0.5, 0.5])
