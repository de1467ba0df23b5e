"""A reward model's score stands on the last token of each answer and does not depend on padding or neighbours."""

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForTokenClassification

from compat.protocol import DataProto
from legacy.reward_model_worker import RewardModelWorker
from runtime.errors import ConfigError
from runtime.fs import local_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with a head of one label, saved, so that every load has the same one."""
    folder = tmp_path_factory.mktemp("reward_model")
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(local_model("tiny://model"), num_labels=1).eval()
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture
def worker(model, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    worker = RewardModelWorker(OmegaConf.create({"model": {"path": str(model[1])}}))
    worker.init_model()
    return worker


def rows(*answers):
    """Prompt [5, 6] padded left to 3, answers padded right to 4."""
    ids = torch.zeros(len(answers), 7, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, answer in enumerate(answers):
        ids[row, 1 : 3 + len(answer)] = torch.tensor([5, 6, *answer])
        mask[row, 1 : 3 + len(answer)] = 1
    return DataProto.from_dict({"input_ids": ids, "attention_mask": mask, "responses": ids[:, 3:]})


def test_scores_are_the_models_at_the_last_token(model, worker):
    scores = worker.compute_rm_score(rows([7, 8], [9, 10, 11, 12]))["rm_scores"]
    with torch.no_grad():
        expected = [model[0](input_ids=torch.tensor([[5, 6, *a]])).logits[0, -1, 0] for a in ([7, 8], [9, 10, 11, 12])]
    assert torch.allclose(scores, torch.tensor([[0, expected[0], 0, 0], [0, 0, 0, expected[1]]]), atol=1e-6)
    assert scores.abs().sum() > 0
    assert torch.equal(worker.compute_rm_score(rows([7, 8]))["rm_scores"][0], scores[0])


def test_another_chat_template_is_refused(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match="input_tokenizer"):
        RewardModelWorker(OmegaConf.create({"model": {"path": "x", "input_tokenizer": "y"}}))
