from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data import encode_chat, fit_prompt
from runtime.errors import ConfigError, PromptTooLongError
from runtime.tiny import make_tokenizer

CHAT = [{"role": "user", "content": "2+3=?"}]


def test_a_chat_becomes_the_ids_of_its_template():
    tokenizer = make_tokenizer()
    ids = encode_chat(tokenizer, CHAT)
    assert tokenizer.decode(ids) == "<|bos|><|user|>2+3=?<|end|><|assistant|>"
    assert all(type(token) is int for token in ids)
    bare = encode_chat(tokenizer, CHAT, apply_chat_template_kwargs={"add_generation_prompt": False})
    assert bare == ids[:-1]


def test_tools_reach_the_template():
    tool = {"type": "function", "function": {"name": "add"}}
    assert '"name": "add"' in make_tokenizer().decode(encode_chat(make_tokenizer(), CHAT, tools=[tool]))


def test_a_long_prompt_is_cut_where_the_config_says():
    ids = list(range(7))
    assert fit_prompt(ids, 3, "left", "x") == [4, 5, 6]
    assert fit_prompt(ids, 3, "right", "x") == [0, 1, 2]
    assert fit_prompt(ids, 3, "middle", "x") == [0, 5, 6]
    with pytest.raises(PromptTooLongError, match=r"a\.parquet row 2: the prompt has 7 tokens.*max_prompt_length is 3"):
        fit_prompt(ids, 3, "error", "a.parquet row 2")


def test_an_unknown_truncation_is_refused_even_when_nothing_is_cut():
    with pytest.raises(ConfigError, match="'centre' is not known"):
        fit_prompt([1], 3, "centre", "x")


@settings(deadline=None)
@given(st.lists(st.integers(0, 9)), st.integers(1, 12), st.sampled_from(["left", "right", "middle"]))
def test_a_cut_prompt_is_as_long_as_it_may_be_and_a_short_one_is_kept(ids, limit, truncation):
    cut = fit_prompt(ids, limit, truncation, "x")
    assert len(cut) == min(len(ids), limit)
    assert len(ids) > limit or cut == ids
