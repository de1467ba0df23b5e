"""FACTS, case 3: an old command's reward function and manager are what scores, not verl's defaults in silence."""

import asyncio

import pytest

from runtime.reward import RewardItem, build_reward_manager
from runtime.tiny import make_tokenizer
from verlift.main_ppo import parse, read

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return {"score": len(solution_str) + bonus, "acc": solution_str == ground_truth}
"""
SAMPLE = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "aab"}, "extra_info": {}}


@pytest.fixture
def score(tmp_path, monkeypatch):
    """Scores of answers under the config of an old command that names a function of the user's and ``dapo``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "R.py").write_text(REWARD)
    words = "custom_reward_function.path=R.py reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True"
    more = "reward_model.overlong_buffer.len=4 +reward_model.reward_kwargs.max_resp_len=8"
    bonus = "+custom_reward_function.reward_kwargs.bonus=0.5 actor_rollout_ref.rollout.name=vllm"
    config = read(parse(["--config-name", "tiny", *words.split(), *more.split(), *bonus.split()]))
    tokenizer = make_tokenizer()
    manager = build_reward_manager(config, tokenizer)

    def score_of(text):
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return len(tokens), asyncio.run(manager.run_single(RewardItem(tokens, SAMPLE)))

    return score_of


def test_a_response_gets_the_users_score_less_dapos_penalty(score):
    """gsm8k's own scorer, to which ``data_source`` would lead, gives 0 for both."""
    length, result = score("aab")
    assert length <= 4
    assert (result.reward_score, result.reward_extra_info["acc"]) == (3.5, True)
    length, result = score("aab bab")
    assert 4 < length <= 8
    assert result.reward_score == pytest.approx(7.5 - (length - 4) / 4)
