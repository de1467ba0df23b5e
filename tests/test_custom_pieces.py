"""Reward managers, datasets and samplers of old recipes run unmodified, on both trainers, with equal results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parity_tests.capture import Capture
from runtime.config import load_config
from runtime.tracking import METRICS_FILE
from verlift.trainers import build_trainer

pytestmark = pytest.mark.ray

RECIPE = """
import torch
from verl import DataProto
from verl.experimental.dataset.sampler import AbstractCurriculumSampler
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.reward_manager import register


@register("letters")
class Letters:
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", weight=1.0):
        self.tokenizer, self.compute_score, self.key, self.weight = tokenizer, compute_score, reward_fn_key, weight

    def __call__(self, data: DataProto, return_dict=False):
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        found = []
        for i in range(len(data)):
            item = data[i]
            width = item.batch["prompts"].shape[-1]
            length = item.batch["attention_mask"][width:].sum()
            text = self.tokenizer.decode(item.batch["responses"][:length], skip_special_tokens=True)
            score = self.compute_score(
                data_source=item.non_tensor_batch[self.key],
                solution_str=text,
                ground_truth=item.non_tensor_batch["reward_model"]["ground_truth"],
                extra_info=item.non_tensor_batch["extra_info"],
            )
            rewards[i, length - 1] = self.weight * score / item.non_tensor_batch["__num_turns__"]
            found.append(score)
        return {"reward_tensor": rewards, "reward_extra_info": {"acc": found}} if return_dict else rewards


class Marked(RLHFDataset):
    def _build_messages(self, example: dict):
        messages = example.pop(self.prompt_key)
        return [{**message, "content": "> " + message["content"]} for message in messages]

    def __getitem__(self, item):
        row = super().__getitem__(item)
        assert row["input_ids"].shape == (self.max_prompt_length,)
        row["half"] = item // 2
        return row


class Backwards(AbstractCurriculumSampler):
    def __init__(self, data_source, data_config):
        self.rows, self.told = len(data_source), 0

    def __iter__(self):
        for place in range(self.rows):
            yield (self.rows - 1 - place - self.told) % self.rows

    def __len__(self):
        return self.rows

    def update(self, batch):
        assert batch.batch["rm_scores"].shape == batch.batch["advantages"].shape == batch.batch["responses"].shape
        self.told += int(batch.batch["rm_scores"].sum() * 1000) % 7 + len(set(batch.non_tensor_batch["uid"]))


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return sum(letter in ground_truth for letter in solution_str) / max(1, len(solution_str))
"""


def test_a_recipe_with_a_manager_of_batches_a_dataset_and_a_curriculum(tmp_path):
    """Through the alias: each piece imports verl, the manager is registered by the module, the rest named by file."""
    recipe = tmp_path / "pieces.py"
    recipe.write_text(RECIPE)
    out = tmp_path / "run"
    command = [
        *("verlift", "exec", "--", sys.executable, "-m", "verlift.main", "parity", "run", "--config-name", "tiny"),
        *("--steps", "2", "--out", str(out)),
        f"runtime.import_modules=[{recipe}]",
        "reward.reward_manager.name=letters",
        "+reward.reward_kwargs.weight=2.0",
        *(
            f"reward.custom_reward_function.path={recipe}",
            f"data.custom_cls.path={recipe}",
            "data.custom_cls.name=Marked",
        ),
        *(f"data.sampler.class_path={recipe}", "data.sampler.class_name=Backwards"),
        *("data.max_prompt_length=40", "data.train_batch_size=4"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.logger=[jsonl]"),
    ]
    bin_folder = Path(sys.executable).parent
    command[0] = str(bin_folder / "verlift")
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "PARITY PASS" in done.stdout
    for name in ("legacy", "v1"):
        capture = Capture.open(out / name)
        rollout, reward = capture.stage(1, "rollout"), capture.stage(1, "reward")
        assert "rm_scores" not in rollout.columns
        assert reward.read("rm_scores").any()
        assert {"acc"} == set(reward.objects["reward_extra_info"][0])


PER_SAMPLE = """
class Variety:
    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        self.tokenizer, self.weight = tokenizer, config.reward.reward_kwargs.weight

    async def run_single(self, data):
        item = data[0]
        length = item.batch["attention_mask"][-item.batch["responses"].shape[-1] :].sum()
        text = self.tokenizer.decode(item.batch["responses"][:length], skip_special_tokens=True)
        score = self.weight * (1 + len(set(text)))
        return {"reward_score": score, "reward_extra_info": {"prompts": item.batch["prompts"].numel()}}


class Longest:
    def __init__(self, tokenizer, num_examine, compute_score=None):
        self.tokenizer = tokenizer

    def __call__(self, data):
        lengths = data.batch["response_mask"].sum(-1)
        rewards = data.batch["responses"].float() * 0
        for row, length in enumerate(lengths.tolist()):
            rewards[row, length - 1] = length / 16 if data.non_tensor_batch["extra_info"][row] is not None else 0
        return rewards
"""


@pytest.mark.parametrize("name", ["Variety", "Longest"])
def test_a_manager_of_a_file_scores_training_and_validation(name, cluster, tmp_path):  # noqa: ARG001
    """One of single responses within rollout, one of batches with the oldest signature after it."""
    file = tmp_path / "managers.py"
    file.write_text(PER_SAMPLE)
    logged = {}
    for trainer in ("legacy", "v1"):
        overrides = [
            "reward.reward_manager.source=importlib",
            *(f"reward.reward_manager.module.path={file}", f"reward.reward_manager.module.name={name}"),
            *(["+reward.reward_kwargs.weight=0.5"] if name == "Variety" else []),
            *("trainer.total_training_steps=1", "trainer.test_freq=1", "trainer.logger=[jsonl]"),
            *(f"trainer.use_v1={trainer == 'v1'}", f"trainer.default_local_dir={tmp_path / trainer}"),
        ]
        built = build_trainer(load_config("tiny", overrides).config)
        try:
            built.fit()
        finally:
            built.close()
        lines = [json.loads(line) for line in (tmp_path / trainer / METRICS_FILE).read_text().splitlines()]
        figures = {key: value for line in lines for key, value in line.items()}
        logged[trainer] = {key: value for key, value in figures.items() if "time" not in key and "timing" not in key}
        assert figures["critic/rewards/mean"] > 0
        assert figures["val-core/verlift/toy_letters/reward/mean@1"] > 0
    same = {key for key in logged["v1"] if not key.startswith("perf/throughput")}
    assert {key: logged["legacy"][key] for key in same} == {key: logged["v1"][key] for key in same}
