from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch.utils.data import Dataset

from runtime.data import build_dataloader, collate_fn
from runtime.errors import BatchSizeError, DataError


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, item):
        return {"row_number": item, "dummy_tensor": torch.zeros(1, dtype=torch.uint8)}


def config(**changes):
    base = {
        "train_batch_size": 4,
        "gen_batch_size": None,
        "val_batch_size": None,
        "shuffle": True,
        "validation_shuffle": False,
        "seed": None,
        "dataloader_num_workers": 0,
    }
    return OmegaConf.create(base | changes)


def epochs(loader):
    """Batches of row numbers for as long as one asks."""
    while True:
        for batch in loader:
            yield batch["row_number"].tolist()


def test_tensors_are_stacked_and_objects_stay_one_a_row():
    chat = [{"role": "user", "content": "2+3=?"}]
    samples = [
        {"dummy_tensor": torch.tensor([0], dtype=torch.uint8), "raw_prompt": chat, "data_source": "demo/math"},
        {"dummy_tensor": torch.tensor([1], dtype=torch.uint8), "raw_prompt": chat, "data_source": "demo/math"},
    ]
    batch = collate_fn(samples)
    assert torch.equal(batch["dummy_tensor"], torch.tensor([[0], [1]], dtype=torch.uint8))
    for name in ("raw_prompt", "data_source"):
        assert (batch[name].dtype, batch[name].shape) == (np.dtype(object), (2,))
    assert batch["raw_prompt"][1] == chat


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(), min_size=2, max_size=2), min_size=1, max_size=4), st.booleans())
def test_lists_and_arrays_of_equal_length_do_not_become_a_matrix(values, as_arrays):
    values = [np.array(value, dtype=object) for value in values] if as_arrays else values
    column = collate_fn([{"x": value} for value in values])["x"]
    assert column.shape == (len(values),)
    assert all(column[number] is value for number, value in enumerate(values))


def test_samples_that_do_not_go_together_are_refused():
    with pytest.raises(DataError, match=r"different keys; only some have \['b'\]"):
        collate_fn([{"a": 1}, {"a": 1, "b": 2}])
    with pytest.raises(DataError, match="column 'x' cannot be stacked"):
        collate_fn([{"x": torch.zeros(1)}, {"x": torch.zeros(2)}])


def test_batches_have_the_size_of_gen_batch_size_or_train_batch_size():
    assert [len(batch["row_number"]) for batch in build_dataloader(Numbers(10), config(), 0)] == [4, 4]
    assert [len(batch["row_number"]) for batch in build_dataloader(Numbers(10), config(gen_batch_size=3), 0)] == [3] * 3


def test_the_order_follows_from_the_seed_and_changes_each_epoch():
    first, again, other = (list(islice(epochs(build_dataloader(Numbers(8), config(), seed)), 6)) for seed in (0, 0, 1))
    assert first == again != other
    assert first[:2] != first[2:4]
    assert sorted(first[0] + first[1]) == list(range(8))
    assert list(islice(epochs(build_dataloader(Numbers(8), config(seed=0), 1)), 6)) == first
    assert next(epochs(build_dataloader(Numbers(8), config(shuffle=False), 0))) == [0, 1, 2, 3]


def test_validation_keeps_file_order_and_every_row():
    loader = build_dataloader(Numbers(5), config(), 0, validation=True)
    assert [batch["row_number"].tolist() for batch in loader] == [[0, 1, 2, 3, 4]]
    loader = build_dataloader(Numbers(5), config(val_batch_size=2), 0, validation=True)
    assert [batch["row_number"].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_fewer_rows_than_a_batch_names_both_numbers_and_the_key():
    with pytest.raises(BatchSizeError, match=r"3 rows after filtering.*data\.train_batch_size=4"):
        build_dataloader(Numbers(3), config(), 0)
    with pytest.raises(BatchSizeError, match=r"3 rows after filtering.*data\.gen_batch_size=5"):
        build_dataloader(Numbers(3), config(gen_batch_size=5), 0)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(4, 13), taken=st.integers(0, 9), shuffle=st.booleans(), seed=st.integers(0, 3))
def test_a_resumed_loader_goes_on_with_the_same_batches(rows, taken, shuffle, seed):
    check_resume(rows, taken, seed, config(shuffle=shuffle))


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_a_loader_with_worker_processes_resumes_alike(taken):
    check_resume(9, taken, 0, config(dataloader_num_workers=2))


def check_resume(rows, taken, seed, data):
    loader = build_dataloader(Numbers(rows), data, seed)
    batches = epochs(loader)
    list(islice(batches, taken))
    state = loader.state_dict()
    rest = list(islice(batches, 5))
    resumed = build_dataloader(Numbers(rows), data, seed)
    resumed.load_state_dict(state)
    assert list(islice(epochs(resumed), 5)) == rest


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_batches(workers):
    alone = list(islice(epochs(build_dataloader(Numbers(9), config(), 5)), 5))
    loader = build_dataloader(Numbers(9), config(dataloader_num_workers=workers), 5)
    assert list(islice(epochs(loader), 5)) == alone


def test_a_state_taken_at_the_end_of_an_epoch_goes_on_with_the_next():
    loader = build_dataloader(Numbers(8), config(), 0)
    first = [batch["row_number"].tolist() for batch in loader]
    resumed = build_dataloader(Numbers(8), config(), 0)
    resumed.load_state_dict(loader.state_dict())
    second = [batch["row_number"].tolist() for batch in resumed]
    assert len(second) == 2
    assert second != first
    assert second == [batch["row_number"].tolist() for batch in loader]
