from __future__ import annotations

from statistics import mean

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.fs import copy_to_local
from runtime.tiny import CHARACTERS, letters_score, make_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return copy_to_local("tiny://model?seed=0", tmp_path_factory.mktemp("cache"))


def test_the_model_follows_from_its_seed_alone(folder, tmp_path):
    weights = load_file(f"{folder}/model.safetensors")
    torch.manual_seed(99)
    again = load_file(copy_to_local("tiny://model?seed=0", tmp_path) + "/model.safetensors")
    other = load_file(copy_to_local("tiny://model?seed=1", tmp_path) + "/model.safetensors")
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_making_a_model_leaves_the_global_generator_alone(tmp_path):
    state = torch.get_rng_state()
    copy_to_local("tiny://model?seed=5", tmp_path)
    assert torch.equal(state, torch.get_rng_state())


def test_the_tokenizer_has_one_token_a_character_and_reads_back_its_text(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(CHARACTERS, add_special_tokens=False)
    assert len(ids) == len(set(ids)) == len(CHARACTERS)
    assert tokenizer.decode(ids) == CHARACTERS
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 4
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]
    assert len(tokenizer) == AutoModelForCausalLM.from_pretrained(folder).config.vocab_size


def test_the_chat_template_marks_roles_and_the_generation_prompt():
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}]
    text = make_tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|user|>Hi<|end|><|assistant|>a<|end|><|assistant|>"


def test_the_task_repeats_from_its_seed_and_has_prompts_of_several_lengths(tmp_path):
    rows = pq.read_table(copy_to_local("tiny://task?rows=32&seed=0", tmp_path / "a")).to_pylist()
    assert rows == pq.read_table(copy_to_local("tiny://task?rows=32&seed=0", tmp_path / "b")).to_pylist()
    assert rows != pq.read_table(copy_to_local("tiny://task?rows=32&seed=1", tmp_path / "a")).to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == list(range(32))
    lengths = {len(make_tokenizer().apply_chat_template(row["prompt"], return_dict=False)) + 1 for row in rows}
    assert len(lengths) > 3
    assert max(lengths) <= 32, "configs/tiny.yaml has max_prompt_length 32"


def test_letters_score_is_the_share_of_characters_in_the_set():
    assert letters_score("ab!", "abc") == pytest.approx(2 / 3)
    assert letters_score("", "abc") == 0.0


def test_a_random_model_scores_above_zero_with_spread_in_every_group(folder, tmp_path):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    rows = pq.read_table(copy_to_local("tiny://task?rows=8&seed=0", tmp_path)).to_pylist()
    groups = []
    torch.manual_seed(0)
    for row in rows:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")
        out = model.generate(**ids, do_sample=True, top_k=0, max_new_tokens=16, num_return_sequences=4)
        texts = tokenizer.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        groups.append([letters_score(text, row["reward_model"]["ground_truth"]) for text in texts])
    assert 0.1 < mean(map(mean, groups)) < 0.4
    assert all(len(set(scores)) > 1 for scores in groups)
