"""The dataset class of old recipes: columns of every version, seams that subclasses override, loading helpers."""

from __future__ import annotations

import json

import pytest
import torch
from omegaconf import OmegaConf

from compat.data.loading import create_rl_dataset, create_rl_sampler, get_dataset_class
from compat.data.rl_dataset import RLHFDataset
from runtime.data import build_dataloader, build_dataset, collate_fn, encode_chat
from runtime.data.sampler import AbstractSampler, EpochSampler
from runtime.errors import ConfigError, DataError, PromptTooLongError
from runtime.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
PROMPTS = ["a", "abc", "abcdefgh"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": text}], "extra_info": {"index": 10 + row}}
        for row, text in enumerate(PROMPTS)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def group(**keys):
    held = {"max_prompt_length": 24, "filter_overlong_prompts": False, "shuffle": False, "truncation": "error"}
    return OmegaConf.create({**held, **keys})


def length(text: str) -> int:
    return len(encode_chat(TOKENIZER, [{"role": "user", "content": text}]))


def test_a_row_has_the_columns_of_old_and_new_versions(file):
    dataset = RLHFDataset(file, TOKENIZER, group())
    row = dataset[1]
    ids = encode_chat(TOKENIZER, row["raw_prompt"])
    assert row["raw_prompt_ids"] == ids
    assert row["index"] == 11
    assert row["input_ids"].dtype == row["attention_mask"].dtype == row["position_ids"].dtype == torch.int64
    assert row["input_ids"].tolist() == [TOKENIZER.pad_token_id] * (24 - len(ids)) + ids
    assert row["attention_mask"].tolist() == [0] * (24 - len(ids)) + [1] * len(ids)
    assert row["position_ids"].tolist() == [0] * (24 - len(ids)) + list(range(len(ids)))
    batch = collate_fn([dataset[row] for row in range(3)])
    assert batch["input_ids"].shape == (3, 24)
    assert batch["raw_prompt_ids"].shape == (3,)


def test_the_columns_are_left_out_on_demand(file):
    row = RLHFDataset(file, TOKENIZER, group(return_prompt_tokens=False))[0]
    assert {"input_ids", "attention_mask", "position_ids", "raw_prompt_ids"}.isdisjoint(row)
    assert row["raw_prompt"]


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_long_prompts_are_cut_or_refused(file, side):
    limit = length("abc")
    row = RLHFDataset(file, TOKENIZER, group(max_prompt_length=limit, truncation=side))[2]
    whole = encode_chat(TOKENIZER, row["raw_prompt"])
    kept = {"left": whole[-limit:], "right": whole[:limit]}.get(side, whole[: limit // 2] + whole[limit // 2 - limit :])
    assert row["raw_prompt_ids"] == row["input_ids"].tolist() == kept
    with pytest.raises(PromptTooLongError, match=f"row 2: the prompt has {len(whole)} tokens"):
        RLHFDataset(file, TOKENIZER, group(max_prompt_length=limit))[2]
    assert len(RLHFDataset(file, TOKENIZER, group(max_prompt_length=limit, filter_overlong_prompts=True))) == 2


class OldMessages(RLHFDataset):
    def _build_messages(self, example: dict):
        return [{"role": "user", "content": example.pop(self.prompt_key) + "?"}]


class NewMessages(RLHFDataset):
    def _build_messages(self, example, key):
        return [{"role": "user", "content": example[key] + "?"}]


@pytest.mark.parametrize("dataset_class", [OldMessages, NewMessages])
def test_a_subclass_makes_messages_of_anything_and_they_are_filtered_too(dataset_class, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS))
    kept = dataset_class(str(path), TOKENIZER, group(max_prompt_length=length("abc?"), filter_overlong_prompts=True))
    assert [row["raw_prompt"][0]["content"] for row in (kept[0], kept[1])] == ["a?", "abc?"]
    assert len(kept) == 2


def test_a_subclass_reads_its_own_rows_and_filters_them_as_verl_does(file):
    import datasets

    class Twice(RLHFDataset):
        def _read_files_and_tokenize(self):
            parts = [datasets.load_dataset("json", data_files=path)["train"] for path in self.data_files * 2]
            self.dataframe = self.maybe_filter_out_long_prompts(datasets.concatenate_datasets(parts))

    dataset = Twice(file, TOKENIZER, group(max_prompt_length=length("abc"), filter_overlong_prompts=True))
    assert len(dataset) == 4
    dataset.resume_dataset_state()
    assert len(dataset) == 4
    first, second = dataset.split(2)
    assert [row["index"] for row in (*first, *second)] == [10, 11, 10, 11]
    with pytest.raises(DataError, match="4 rows cannot be split into 5"):
        dataset.split(5)


CUSTOM = """
from compat.data.rl_dataset import RLHFDataset
from runtime.data.sampler import AbstractCurriculumSampler, AbstractSampler

class Mine(RLHFDataset):
    def __getitem__(self, item):
        return {**super().__getitem__(item), "double": 2 * item}

class Order(AbstractSampler):
    def __init__(self, data_source, data_config):
        self.rows = len(data_source)
    def __iter__(self):
        return iter(range(self.rows - 1, -1, -1))
    def __len__(self):
        return self.rows

class Curriculum(Order, AbstractCurriculumSampler):
    def update(self, batch):
        pass

class Endless(Order):
    __len__ = None
    def __getattribute__(self, name):
        if name == "__len__":
            raise AttributeError(name)
        return super().__getattribute__(name)
"""


@pytest.fixture
def pieces(tmp_path):
    path = tmp_path / "pieces.py"
    path.write_text(CUSTOM)
    return str(path)


def test_the_helpers_make_what_the_config_names(file, pieces):
    assert get_dataset_class(group()) is RLHFDataset
    chosen = group(custom_cls={"path": pieces, "name": "Mine"}, sampler={"class_path": pieces, "class_name": "Order"})
    dataset = create_rl_dataset([file], chosen, TOKENIZER, None)
    assert dataset[2]["double"] == 4
    assert isinstance(create_rl_sampler(group(seed=None), dataset), EpochSampler)
    assert list(create_rl_sampler(chosen, dataset)) == [2, 1, 0]
    with pytest.raises(ConfigError, match=r"data\.datagen\.path"):
        create_rl_dataset([file], group(datagen={"path": "x.py"}), TOKENIZER, None)
    assert create_rl_dataset([file], group(datagen={"path": "x.py"}), TOKENIZER, None, is_train=False)


def test_the_loader_takes_rows_in_the_samplers_order(file, pieces):
    chosen = group(
        custom_cls={"path": pieces, "name": "Mine"},
        sampler={"class_path": pieces, "class_name": "Curriculum"},
        train_batch_size=2,
        gen_batch_size=None,
        val_batch_size=None,
        validation_shuffle=False,
        dataloader_num_workers=0,
    )
    dataset = build_dataset(file, TOKENIZER, chosen)
    assert [batch["index"].tolist() for batch in build_dataloader(dataset, chosen, 0)] == [[12, 11]]
    validation = build_dataloader(dataset, chosen, 0, validation=True)
    assert [batch["index"].tolist() for batch in validation] == [[10, 11, 12]]
    chosen.dataloader_num_workers = 2
    with pytest.raises(ConfigError, match="dataloader_num_workers=2 must be 0 with Curriculum"):
        build_dataloader(dataset, chosen, 0)
    chosen.sampler.class_name = "Mine"
    with pytest.raises(ConfigError, match=r"'Mine' .* is not a subclass of .*AbstractSampler"):
        build_dataloader(dataset, chosen, 0)
    chosen.sampler.class_name = "Endless"
    with pytest.raises(ConfigError, match="Endless needs __len__"):
        build_dataloader(dataset, chosen, 0)


def test_the_base_classes_cannot_be_made_themselves():
    with pytest.raises(TypeError, match="abstract"):
        AbstractSampler([], group())
