"""Cases with known right values: the list of them is whole, and those that need no trainer hold here and now."""

import pytest

from compat import meta_info
from parity_tests.matrix import loop_facts
from parity_tests.matrix.facts import FACTS
from runtime.data.files import ROW_NUMBER
from runtime.identity import PromptIdentity
from runtime.trainer import prompts

PURE = {"3", "7", "18", "19"}


def check(number, folder):
    (fact,) = (fact for fact in FACTS if fact.number == number)
    return list(fact.check(None, folder))


def test_every_case_of_the_list_has_a_row():
    numbers = [int(number) for fact in FACTS for number in fact.number.split(", ")]
    assert sorted(numbers) == list(range(1, 23))
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("number", sorted(PURE))
def test_what_needs_no_trainer_is_right(number, tmp_path):
    assert check(number, tmp_path) == []


def test_a_value_that_is_lost_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(meta_info, "_collect", lambda values: values[0])
    (told,) = check("18", tmp_path)
    assert told.endswith("a value is lost")


def test_a_refusal_of_timings_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(meta_info, "_is_measurement", lambda key: key is None)
    (told,) = check("18", tmp_path)
    assert told.startswith("meta_info 'timing' is {'generate': 0.25} in part 0 and {'generate': 1.25} in part 1")


def test_seeds_that_repeat_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(
        PromptIdentity, "request_seed", lambda self, session, turn=0: self.row % 24 * 8 + session + turn
    )
    assert check("7", tmp_path)[0] == "legacy: 192 seeds of 768 requests in 1 chunks"


def test_seeds_that_depend_on_the_place_in_a_chunk_are_told(monkeypatch, tmp_path):
    right = prompts._samples

    def numbered_by_place(batch):
        return [{**row, ROW_NUMBER: place} for place, row in enumerate(right(batch))]

    monkeypatch.setattr(prompts, "_samples", numbered_by_place)
    assert [told.partition(": ")[2] for told in check("7", tmp_path)] == [
        *["other seeds in 4 chunks"] * 2,
        *["other seeds in 7 chunks"] * 2,
    ]


def test_keys_that_are_not_heard_are_told(monkeypatch, tmp_path):
    right = loop_facts.load_config
    monkeypatch.setattr(loop_facts, "load_config", lambda name, overrides: right(name, overrides[:1]))
    assert len(check("3", tmp_path)) == 2
