"""A two-layer Llama, a character tokenizer and a toy task: real input that a CPU trains on in seconds.

The reward is learnable at once: every prompt asks for a set of small letters, all sets share ``h`` to ``r``, and the
score is the share of the response's characters that lie in the set. A random model writes characters nearly uniformly,
so about a fifth of them hit and nearly every group of samples has spread.
"""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DATA_SOURCE = "verlift/toy_letters"

# Part of the name in the cache: raise it when the model, the tokenizer or the task below changes.
VERSION = 2

PAD, BOS, END, UNKNOWN = "<|pad|>", "<|bos|>", "<|end|>", "<|unk|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTERS = "\n" + string.printable[:95]

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}{{ '<|system|>' + (tools | tojson) + eos_token }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_LETTER_SETS = {
    "a to r": string.ascii_lowercase[:18],
    "h to z": string.ascii_lowercase[7:],
    "e to t": string.ascii_lowercase[4:20],
    "a to z": string.ascii_lowercase,
}
_WORDINGS = ("Write {}.", "Use letters {}.", "Please write letters {}.", "Only letters {}!")


def save_model(folder: Path, seed: int) -> None:
    """Write a two-layer Llama (float32, tied embeddings, weights from ``seed``) and its tokenizer to ``folder``."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    specials = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="float32",
        **specials,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**specials)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A ``PreTrainedTokenizerFast`` with one token a printable ASCII character, role markers and a chat template."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = [PAD, BOS, END, UNKNOWN, *ROLES, *CHARACTERS]
    # BPE without merges leaves single characters, and needs no pre-tokenizer to find them.
    characters = Tokenizer(
        models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[], unk_token=UNKNOWN)
    )
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_task(file: Path, rows: int, seed: int) -> None:
    """Write ``rows`` rows of the toy task, in the schema of verl's preprocessing scripts, to a parquet ``file``."""
    from datasets import Dataset

    draw = random.Random(seed)
    Dataset.from_list([_task_row(index, draw) for index in range(rows)]).to_parquet(file)


def letters_score(solution_str: str, ground_truth: str) -> float:
    """The share of the response's characters that lie in ``ground_truth``, from 0 to 1; 0 for an empty response."""
    return sum(character in ground_truth for character in solution_str) / max(1, len(solution_str))


def _task_row(index: int, draw: random.Random) -> dict[str, Any]:
    name, letters = draw.choice(list(_LETTER_SETS.items()))
    content = draw.choice(_WORDINGS).format(name)
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": content}],
        "ability": "toy",
        "reward_model": {"style": "rule", "ground_truth": letters},
        "extra_info": {"index": index, "split": "train"},
    }
