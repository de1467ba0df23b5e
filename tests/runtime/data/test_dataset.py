from __future__ import annotations

import json
import pickle

import pytest
import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runtime.config import load_config
from runtime.data import RLHFDataset, build_dataset, encode_chat
from runtime.errors import DataError
from runtime.tiny import make_tokenizer

disable_progress_bar()
TOKENIZER = make_tokenizer()


def config(**changes):
    base = {"prompt_key": "prompt", "max_prompt_length": 64, "filter_overlong_prompts": False}
    return OmegaConf.create(base | changes)


def row(content: str, **columns):
    return {"prompt": [{"role": "user", "content": content}], "data_source": "demo/math", **columns}


def write(file, rows):
    if file.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    else:
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return str(file)


def test_a_row_holds_raw_messages_and_its_columns_and_no_tokens(tmp_path):
    extra = {"index": 5, "tools_kwargs": {"calc": {"digits": 2}}}
    file = write(tmp_path / "a.parquet", [row("2+3=?", extra_info=extra)])
    sample = RLHFDataset(data_files=file, tokenizer=TOKENIZER, config=config(), processor=None, max_samples=-1)[0]
    assert torch.equal(sample.pop("dummy_tensor"), torch.tensor([0], dtype=torch.uint8))
    chat = [{"role": "user", "content": "2+3=?"}]
    assert sample == {
        "prompt": chat,
        "raw_prompt": chat,
        "data_source": "demo/math",
        "extra_info": extra,
        "index": 5,
        "tools_kwargs": {"calc": {"digits": 2}},
        "interaction_kwargs": {},
        "row_number": 0,
    }
    assert sample["raw_prompt"][0] is not sample["prompt"][0]


def test_rows_without_extra_info_have_index_0_and_no_arguments(tmp_path):
    sample = RLHFDataset(write(tmp_path / "a.parquet", [row("x")]), TOKENIZER, config())[0]
    assert (sample["extra_info"], sample["index"], sample["tools_kwargs"]) == ({}, 0, {})


def test_the_three_formats_are_concatenated_and_rows_are_located(tmp_path):
    files = [
        write(tmp_path / "a.parquet", [row("a0"), row("a1")]),
        write(tmp_path / "b.json", [row("b0")]),
        write(tmp_path / "c.jsonl", [row("c0"), row("c1")]),
    ]
    dataset = RLHFDataset(OmegaConf.create(files), TOKENIZER, config())
    contents = [dataset[number]["raw_prompt"][0]["content"] for number in range(len(dataset))]
    assert contents == ["a0", "a1", "b0", "c0", "c1"]
    assert [dataset.locate(number).rsplit("/")[-1] for number in range(5)] == [
        "a.parquet row 0",
        "a.parquet row 1",
        "b.json row 0",
        "c.jsonl row 0",
        "c.jsonl row 1",
    ]
    assert pickle.loads(pickle.dumps(dataset.locate))(3) == dataset.locate(3)


def test_keys_of_the_config_are_honoured(tmp_path):
    file = write(tmp_path / "a.parquet", [{"question": [{"role": "user", "content": "x"}]}])
    assert RLHFDataset(file, TOKENIZER, config(prompt_key="question"))[0]["raw_prompt"][0]["content"] == "x"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_overlong_filter_counts_the_tokens_of_the_chat_template(tmp_path, workers):
    # 5 characters and 4 markers of the template are 9 tokens.
    file = write(tmp_path / "a.parquet", [row("12345"), row("123456"), row("1")])
    dataset = RLHFDataset(
        file,
        TOKENIZER,
        config(filter_overlong_prompts=True, max_prompt_length=9, filter_overlong_prompts_workers=workers),
    )
    assert [dataset[number]["row_number"] for number in range(len(dataset))] == [0, 2]


def test_a_filter_that_leaves_nothing_is_an_error(tmp_path):
    file = write(tmp_path / "a.parquet", [row("12345")])
    with pytest.raises(DataError, match=r"all 1 prompts of .*a\.parquet.*max_prompt_length=3"):
        RLHFDataset(file, TOKENIZER, config(filter_overlong_prompts=True, max_prompt_length=3))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12), limit=st.integers(4, 14), split=st.integers(0, 12)
)
def test_filtering_keeps_exactly_the_short_rows_with_their_numbers(tmp_path_factory, lengths, limit, split):
    folder = tmp_path_factory.mktemp("files")
    rows = [row("x" * length, place=number) for number, length in enumerate(lengths)]
    parts = [part for part in (rows[:split], rows[split:]) if part]
    files = [write(folder / f"{number}.jsonl", part) for number, part in enumerate(parts)]
    short = [number for number, length in enumerate(lengths) if length + 4 <= limit]
    if not short:
        return
    dataset = RLHFDataset(files, TOKENIZER, config(filter_overlong_prompts=True, max_prompt_length=limit))
    samples = [dataset[number] for number in range(len(dataset))]
    assert [sample["row_number"] for sample in samples] == short
    assert [sample["place"] for sample in samples] == short
    assert all(len(encode_chat(TOKENIZER, sample["raw_prompt"])) <= limit for sample in samples)


def test_max_samples_takes_the_first_rows_or_a_draw_that_repeats(tmp_path):
    file = write(tmp_path / "a.parquet", [row(str(number)) for number in range(20)])

    def numbers(**changes):
        dataset = RLHFDataset(file, TOKENIZER, config(**changes), max_samples=6)
        return [dataset[number]["row_number"] for number in range(len(dataset))]

    assert numbers() == [0, 1, 2, 3, 4, 5]
    assert len(set(numbers(shuffle=True))) == 6
    assert numbers(shuffle=True) == numbers(shuffle=True) != numbers(shuffle=True, seed=7)


def test_without_a_seed_of_its_own_the_draw_follows_the_seed_of_the_run(tmp_path):
    file = write(tmp_path / "a.parquet", [row(str(number)) for number in range(20)])

    def numbers(*overrides):
        data = load_config("tiny", overrides).config.data
        return [sample["row_number"] for sample in RLHFDataset(file, TOKENIZER, data, max_samples=6)]

    assert numbers() == numbers() != numbers("runtime.seed=7")
    assert numbers("runtime.seed=7") == numbers("data.seed=7")


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"no file or folder 'nowhere\.parquet'"):
        RLHFDataset("nowhere.parquet", TOKENIZER, config())


def test_no_file_at_all_is_an_error():
    with pytest.raises(DataError, match=r"data\.train_files"):
        RLHFDataset([], TOKENIZER, config())


def test_a_file_without_the_prompt_column_is_named_with_its_columns(tmp_path):
    good = write(tmp_path / "good.parquet", [row("x")])
    bad = write(tmp_path / "bad.parquet", [{"question": "x", "answer": "y"}])
    with pytest.raises(
        DataError,
        match=r"bad\.parquet has no column 'prompt' for the chat messages .*; it has \['question', 'answer'\]",
    ):
        RLHFDataset([good, bad], TOKENIZER, config())


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"prompt": "2+3=?"}], "row 0: column 'prompt' holds str '2\\+3=\\?'"),
        ([row("x"), {"prompt": "2+3=?"}], "row 1: column 'prompt' holds str"),
        ([row("x"), {"prompt": []}], "row 1: column 'prompt' holds list"),
        ([row("x"), {"prompt": None}], "row 1: column 'prompt' holds NoneType"),
        ([{"prompt": [{"content": "x"}]}], "row 0: column 'prompt' holds list"),
        ([{"prompt": ["x" * 200]}], r"row 0: column 'prompt' holds list .*\.\.\.; expected"),
    ],
)
def test_a_prompt_that_is_no_chat_is_named_with_file_and_row(tmp_path, rows, named):
    with pytest.raises(DataError, match=rf"a\.jsonl {named}"):
        RLHFDataset(write(tmp_path / "a.jsonl", rows), TOKENIZER, config())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", "not parquet", r"a\.parquet cannot be read as parquet"),
        ("a.jsonl", "{", r"a\.jsonl cannot be read as json"),
        ("a.jsonl", "", r"a\.jsonl cannot be read as json"),
        ("a.csv", "prompt\nx", r"a\.csv: expected a file ending in \.parquet, \.json or \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        RLHFDataset(str(tmp_path / name), TOKENIZER, config())


def test_files_whose_columns_differ_in_type_are_named(tmp_path):
    files = [
        write(tmp_path / "a.parquet", [row("x", answer=1)]),
        write(tmp_path / "b.parquet", [row("x", answer=[1])]),
    ]
    with pytest.raises(DataError, match=r"b\.parquet does not go with the files before it: .*answer"):
        RLHFDataset(files, TOKENIZER, config())


def test_the_name_of_our_own_column_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.parquet has a column 'row_number'"):
        RLHFDataset(write(tmp_path / "a.parquet", [row("x", row_number=3)]), TOKENIZER, config())


def test_images_are_refused_and_an_empty_image_column_is_not(tmp_path):
    empty = write(tmp_path / "a.jsonl", [row("x", images=[])])
    assert len(RLHFDataset(empty, TOKENIZER, config())) == 1
    filled = write(tmp_path / "b.jsonl", [row("x", images=[]), row("y", images=["cat.png"])])
    with pytest.raises(DataError, match=r"b\.jsonl row 1: column 'images' is not empty"):
        RLHFDataset(filled, TOKENIZER, config())


CUSTOM = """
from torch.utils.data import Dataset
from runtime.data import RLHFDataset

class Letters(Dataset):
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        self.letters = "abc"
    def __len__(self):
        return len(self.letters)
    def __getitem__(self, item):
        return {"raw_prompt": [{"role": "user", "content": self.letters[item]}]}

class Louder(RLHFDataset):
    def _build_messages(self, example, key):
        return [{**message, "content": message["content"].upper()} for message in example[key]]

class NoDataset:
    pass
"""


@pytest.fixture
def custom(tmp_path):
    (tmp_path / "mine.py").write_text(CUSTOM)
    file = write(tmp_path / "a.parquet", [row("too long a prompt"), row("x")])

    def build(name, **changes):
        classes = {"path": str(tmp_path / "mine.py"), "name": name}
        return build_dataset(file, TOKENIZER, config(custom_cls=classes, **changes))

    return build


def test_a_dataset_of_the_user_gets_row_numbers_from_its_positions(custom):
    dataset = custom("Letters")
    assert [dataset[number]["row_number"] for number in range(len(dataset))] == [0, 1, 2]
    assert dataset.locate(2) == "Letters row 2"
    assert dataset.letters == "abc"


def test_a_subclass_of_ours_keeps_its_row_numbers(custom):
    dataset = custom("Louder", filter_overlong_prompts=True, max_prompt_length=8)
    assert [(sample["row_number"], sample["raw_prompt"][0]["content"]) for sample in [dataset[0]]] == [(1, "X")]
    assert dataset.locate(1).endswith("a.parquet row 1")


def test_what_is_not_a_dataset_is_refused(custom):
    with pytest.raises(DataError, match=r"mine\.py: 'NoDataset' is not a subclass of torch\.utils\.data\.Dataset"):
        custom("NoDataset")
    with pytest.raises(DataError, match=r"mine\.py has no 'Missing'"):
        custom("Missing")


def test_without_a_custom_class_the_dataset_is_ours(tmp_path):
    file = write(tmp_path / "a.parquet", [row("x")])
    assert type(build_dataset(file, TOKENIZER, config(custom_cls={"path": None, "name": None}))) is RLHFDataset
