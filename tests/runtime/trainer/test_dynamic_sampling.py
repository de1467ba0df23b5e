"""The loop of dynamic sampling on a container of keys and a real prompt source; for both trainers see parity_tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from datasets import Dataset

from runtime import containers
from runtime.config import load_config
from runtime.errors import RolloutError
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.trainer.dynamic_sampling import play_until_full
from runtime.trainer.prompts import PromptSource

FILTER = GroupFilter("reward", 0)


@dataclass
class Rows:
    keys: list[TrajectoryKey]

    @staticmethod
    def concat(parts):
        return Rows([key for part in parts for key in part.keys])


@containers.select_rows.register
def _(rows: Rows, places):
    return Rows([rows.keys[place] for place in places.tolist()])


class Player:
    """Two sessions a prompt; ``good`` says which file rows have groups with spread."""

    def __init__(self, tmp_path, good, *overrides):
        path = tmp_path / "rows.parquet"
        row = {
            "data_source": "verlift/toy_letters",
            "prompt": [{"role": "user", "content": "Write a to r."}],
            "reward_model": {"style": "rule", "ground_truth": "abc"},
            "extra_info": {"index": 0},
        }
        Dataset.from_list([row] * 6).to_parquet(path)
        base = [f"data.train_files={path}", "data.shuffle=false", "data.train_batch_size=4", "data.gen_batch_size=2"]
        self.prompts = PromptSource(load_config("tiny", [*base, *overrides]).config)
        self.good, self.played, self.discarded, self.positions = good, [], [], []

    def play(self, prompts):
        self.played += [prompt.identity.row for prompt in prompts]
        self.rows = {prompt.uid: prompt.identity.row for prompt in prompts}
        return Rows([TrajectoryKey(prompt.uid, session, 0) for prompt in prompts for session in range(2)])

    def expect(self, prompts):
        self.positions += [prompt.position for prompt in prompts]

    def kept_rows(self, batch, _):
        return [row for row, key in enumerate(batch.keys) if self.rows[key.uid] in self.good]

    def keys_of(self, batch):
        return batch.keys

    def discard(self, batch, rows):
        self.discarded += [str(batch.keys[row]) for row in rows]


def run(player, group_filter=FILTER):
    first = next(player.prompts.batches())
    return play_until_full(player, first, group_filter)


def test_it_goes_on_until_the_step_has_its_groups(tmp_path):
    """Rows 0 to 3 first, of which 1 and 2 are good; then 4 and 5, and of the next epoch 0 and 1."""
    player = Player(tmp_path, good={1, 2, 5})
    batch, figures = run(player)
    assert player.played == [0, 1, 2, 3, 4, 5, 0, 1]
    assert player.positions == [4, 5, 6, 7]
    assert len(batch.keys) == 8
    assert len({key.uid for key in batch.keys}) == 4
    assert figures == {"train/num_gen_batches": [3.0], "training/filter_groups/evicted_samples": [4.0]}
    assert len(player.discarded) == 8
    assert not {str(key) for key in batch.keys} & set(player.discarded)


def test_surplus_groups_are_let_go_and_those_that_came_first_are_kept(tmp_path):
    player = Player(tmp_path, good={1, 2, 3, 4, 5})
    batch, figures = run(player)
    assert [player.played[0:4], player.played[4:]] == [[0, 1, 2, 3], [4, 5]]
    assert figures["training/filter_groups/evicted_samples"] == [1.0]
    assert len(batch.keys) == 8
    assert len(player.discarded) == 4  # the sessions of row 0, and of row 5, which came last


def test_too_many_rollouts_are_refused(tmp_path):
    with pytest.raises(RolloutError, match=r"kept 1 of 4 groups in 1 rollouts, and max_num_gen_batches=1"):
        run(Player(tmp_path, good={1}), GroupFilter("reward", 1))


def test_data_in_which_no_group_differs_is_refused_after_one_pass(tmp_path):
    player = Player(tmp_path, good=set())
    with pytest.raises(RolloutError, match="in a whole pass through the training data no group differs in 'reward'"):
        run(player)
    assert player.played == [0, 1, 2, 3, 4, 5, 0, 1]
