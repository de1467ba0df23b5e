from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from runtime.data import RLHFDataset
from runtime.data.tasks import gsm8k_rows, reasoning_gym_rows, write_rows
from runtime.errors import DataError
from runtime.reward import default_compute_score
from runtime.tiny import make_tokenizer


def test_reasoning_gym_rows_score_from_the_parquet_alone(tmp_path):
    file = tmp_path / "deep" / "train.parquet"
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    assert write_rows(reasoning_gym_rows("chain_sum", 6, 3, settings, system="Be brief."), file) == 6
    dataset = RLHFDataset(str(file), make_tokenizer(), {"filter_overlong_prompts": False})
    for number in range(6):
        sample = dataset[number]
        truth = sample["reward_model"]["ground_truth"]
        arguments = (sample["data_source"], truth, truth, sample["extra_info"])
        assert default_compute_score(*arguments) == 1.0
        assert [message["role"] for message in sample["raw_prompt"]] == ["system", "user"]
        assert len(json.loads(sample["extra_info"]["reasoning_gym_entry"])["metadata"]["expression"]) == 5
    assert sample["index"] == 5


def test_reasoning_gym_rows_repeat_from_the_seed():
    assert reasoning_gym_rows("chain_sum", 3, 1) == reasoning_gym_rows("chain_sum", 3, 1)
    assert reasoning_gym_rows("chain_sum", 3, 1) != reasoning_gym_rows("chain_sum", 3, 2)


def test_what_reasoning_gym_does_not_have_is_named():
    with pytest.raises(DataError, match=r"no task 'chain_sums'; did you mean one of \['chain_sum'"):
        reasoning_gym_rows("chain_sums", 1, 0)
    with pytest.raises(DataError, match=r"chain_sum has no setting \['terms'\]; it has .*'min_terms'"):
        reasoning_gym_rows("chain_sum", 1, 0, {"terms": 2})
    with pytest.raises(DataError, match=r"chain_sum refuses \{'min_terms': 9, 'max_terms': 2\}"):
        reasoning_gym_rows("chain_sum", 1, 0, {"min_terms": 9, "max_terms": 2})


def test_gsm8k_rows_have_the_schema_of_verls_script(tmp_path):
    answer = "She has 1000 + 234.\n#### 1,234"
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "How many?", "answer": answer}) + "\n")
    Dataset.from_list([{"question": "And now?", "answer": "#### -5"}]).to_parquet(tmp_path / "b.parquet")
    rows = gsm8k_rows([str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet")], "test")
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'How many? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1234"},
        "extra_info": {"split": "test", "index": 0, "answer": answer, "question": "How many?"},
    }
    assert (rows[1]["reward_model"]["ground_truth"], rows[1]["extra_info"]["index"]) == ("-5", 1)
    assert default_compute_score("openai/gsm8k", answer, "1234") == 1.0


def test_gsm8k_files_that_cannot_be_used_are_named(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "x", "answer": "#### 1"}\n{"question": "x", "answer": "one"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl row 1: .*got answer 'one'"):
        gsm8k_rows([str(file)])
    file.write_text('{"question": "x"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl has no column 'answer' for its solution"):
        gsm8k_rows([str(file)])


def test_a_file_is_written_whole_over_an_old_one_or_not_at_all(tmp_path):
    out = tmp_path / "train.parquet"
    write_rows([{"a": 1}], out)
    write_rows([{"a": 2}, {"a": 3}], out)
    assert pq.read_table(out).to_pylist() == [{"a": 2}, {"a": 3}]
    with pytest.raises(DataError, match=r"train\.csv: .* must end in \.parquet"):
        write_rows([{"a": 1}], tmp_path / "train.csv")
    with pytest.raises(pa.ArrowInvalid):
        write_rows([{"a": 1}, {"a": object()}], out)
    assert [file.name for file in tmp_path.iterdir()] == ["train.parquet"]
    assert len(pq.read_table(out)) == 2
