"""The policy and value models against plain Hugging Face forwards of one unpadded row at a time."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from runtime.engine.models import PolicyModel, ValueModel
from runtime.engine.spec import ModelSpec
from runtime.errors import ConfigError
from runtime.trajectories import TrajectoryBatch

TEMPERATURE = 0.7


def reference(path: str, batch: TrajectoryBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of response tokens from one ordinary forward a row."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    log_probs, entropies = [], []
    for ids, prompt in zip(batch.sequences.split(batch["input_ids"]), batch.prompts.lengths.tolist(), strict=True):
        plain = torch.distributions.Categorical(logits=model(ids[None]).logits[0, prompt - 1 : -1] / TEMPERATURE)
        log_probs.append(plain.log_prob(ids[prompt:]))
        entropies.append(plain.entropy())
    return torch.cat(log_probs), torch.cat(entropies)


def save(model: torch.nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """No tied weights, biases in attention, all heads with keys of their own: what the tiny Llama does not have."""
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=120,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    return save(Qwen2ForCausalLM(config), tmp_path_factory.mktemp("qwen"))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("which", ["tiny_model", "untied_model"])
@torch.no_grad()
def test_equals_a_plain_forward_of_each_row(
    which: str, packed: bool, scenarios: ModuleType, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(which)
    batch = scenarios.make_batch()
    outputs = PolicyModel(ModelSpec(path, use_remove_padding=packed)).eval()(batch, TEMPERATURE)
    log_probs, entropy = reference(path, batch)
    torch.testing.assert_close(outputs["log_probs"], log_probs, rtol=0, atol=2e-6)
    torch.testing.assert_close(outputs["entropy"], entropy, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["policy", "value"])
@torch.no_grad()
def test_packed_rows_have_the_same_bits_alone_permuted_and_in_a_subset(
    kind: str, scenarios: ModuleType, tiny_model: str
) -> None:
    model = (PolicyModel if kind == "policy" else ValueModel)(ModelSpec(tiny_model)).eval()
    batch = scenarios.make_batch(prompt_lengths=(4, 9, 2, 40, 1, 12), response_lengths=(3, 8, 5, 30, 1, 6))
    together = model(batch)
    for rows in [[row] for row in range(6)] + [[5, 3, 1, 0, 2, 4], [4, 1], [2, 4, 0]]:
        some = model(batch.select(rows))
        for name, column in some.items():
            assert torch.equal(column, together[name][batch.responses.token_indices(torch.tensor(rows))]), (name, rows)


def test_gradient_checkpointing_changes_no_gradient(scenarios: ModuleType, tiny_model: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = PolicyModel(ModelSpec(tiny_model, gradient_checkpointing=checkpointing)).train()
        model(scenarios.make_batch())["log_probs"].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


@torch.no_grad()
def test_a_value_is_read_at_the_token_before(scenarios: ModuleType, tiny_model: str) -> None:
    batch = scenarios.make_batch()
    model = ValueModel(ModelSpec(tiny_model)).train()
    torch.nn.init.constant_(model.hf.score.bias, 0.25)
    values = batch.responses.split(model(batch)["values"])
    model.hf.set_attn_implementation("eager")
    for row, ids in enumerate(batch.sequences.split(batch["input_ids"])):
        logits = model.hf(ids[None]).logits[0, :, 0]
        prompt = int(batch.prompts.lengths[row])
        torch.testing.assert_close(values[row], logits[prompt - 1 : -1], rtol=0, atol=1e-6)


def test_a_new_value_head_comes_from_the_seed_alone(tiny_model: str) -> None:
    heads = []
    for noise, seed in ((0, 1), (1, 1), (1, 2)):
        torch.manual_seed(noise)
        heads.append(ValueModel(ModelSpec(tiny_model, seed=seed)).hf.score.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])
    assert heads[0].std().item() == pytest.approx(0.02, rel=0.5)


def test_a_trained_value_head_is_kept(tiny_model: str, tmp_path: Path) -> None:
    model = ValueModel(ModelSpec(tiny_model))
    torch.nn.init.constant_(model.hf.score.weight, 0.5)
    again = ValueModel(ModelSpec(save(model.hf, tmp_path)))
    assert torch.equal(again.hf.score.weight, model.hf.score.weight)


def test_logits_that_change_after_the_head_are_refused(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    config.final_logit_softcapping = 30.0
    path = save(LlamaForCausalLM(config), tmp_path)
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        PolicyModel(ModelSpec(path))


def test_a_sequence_beyond_the_sliding_window_is_refused(tmp_path: Path, scenarios: ModuleType) -> None:
    config = Qwen2Config(
        vocab_size=120,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
    )
    path = save(Qwen2ForCausalLM(config), tmp_path)
    with pytest.raises(ConfigError, match="18 tokens is longer than the model's sliding window 8"):
        PolicyModel(ModelSpec(path))(scenarios.make_batch())
