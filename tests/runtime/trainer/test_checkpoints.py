"""Which checkpoints there are, which one is resumed, and which ones stay."""

from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from runtime.errors import CheckpointError
from runtime.trainer.checkpoints import LATEST, Checkpoints, find_latest_ckpt_path

SETTINGS = {
    "resume_mode": "auto",
    "resume_from_path": None,
    "del_local_ckpt_after_load": False,
    "max_actor_ckpt_to_keep": None,
    "max_critic_ckpt_to_keep": None,
}


class Group:
    """Ranks that write a file; what a model writes is tested with the engine and on Ray."""

    def __init__(self):
        self.loaded = []

    def call_all(self, method, folder):
        if method == "load_checkpoint":
            self.loaded.append(folder)
        else:
            torch.save({}, self._made(folder))

    def _made(self, folder):
        Path(folder).mkdir(parents=True)
        return Path(folder) / "weights"


def checkpoints(folder, **settings):
    trainer = {**SETTINGS, "default_local_dir": str(folder), **settings}
    return Checkpoints(OmegaConf.create({"trainer": trainer}))


def there(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob("global_step_*/*") if path.is_dir())


def test_the_newest_one_is_resumed_with_the_trainers_state(tmp_path):
    store, group = checkpoints(tmp_path), Group()
    assert store.load({"actor": group}) == (0, {})
    for step in (9, 10):
        store.save(step, {"actor": group}, {"kl_coef": step / 10, "random": torch.arange(3)})
    step, state = store.load({"actor": group})
    assert (step, state["kl_coef"]) == (10, 1.0)
    assert torch.equal(state["random"], torch.arange(3))
    assert group.loaded == [str(tmp_path / "global_step_10" / "actor")]
    assert find_latest_ckpt_path(tmp_path) == str(tmp_path / "global_step_10")


def test_a_step_that_was_not_finished_is_not_the_newest(tmp_path):
    store = checkpoints(tmp_path)
    store.save(1, {"actor": Group()}, {})
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    assert store.load({"actor": Group()})[0] == 1
    (tmp_path / LATEST).write_text("7")
    with pytest.raises(CheckpointError, match="global_step_7, which is not there"):
        store.load({"actor": Group()})


def test_a_run_does_not_start_anew_where_its_checkpoint_was_deleted(tmp_path):
    store = checkpoints(tmp_path, del_local_ckpt_after_load=True)
    store.save(3, {"actor": Group()}, {"kl_coef": 0.5})
    assert store.load({"actor": Group()}) == (3, {"kl_coef": 0.5})
    with pytest.raises(CheckpointError, match="del_local_ckpt_after_load"):
        store.load({"actor": Group()})


def test_numpy_states_of_samplers_are_read_back(tmp_path):
    store = checkpoints(tmp_path)
    drawn = np.random.RandomState(3)
    state = {
        "weights": np.linspace(0, 1, 5),
        "mean": np.float64(0.25),
        "random": drawn.get_state(),
        "names": np.array(["a"]),
    }
    store.save(1, {"actor": Group()}, {"prompts": state})
    read = store.load({"actor": Group()})[1]["prompts"]
    assert np.array_equal(read["weights"], state["weights"])
    assert read["mean"] == state["mean"]
    again = np.random.RandomState()
    again.set_state(read["random"])
    assert again.rand() == drawn.rand()


def test_what_could_not_be_read_back_is_refused_before_anything_is_written(tmp_path):
    store, group = checkpoints(tmp_path), Group()
    for state in (
        {"prompts": {"sampler": Group()}},
        {"prompts": np.array([Path("x")], dtype=object)},
        {"prompts": store.save},
    ):
        with pytest.raises(CheckpointError, match=r"the state 'prompts' cannot be saved"):
            store.save(1, {"actor": group}, state)
    assert not list(tmp_path.iterdir())
    store.save(1, {"actor": group}, {})
    (tmp_path / "global_step_1" / "trainer.pt").write_bytes(b"PK half a file")
    with pytest.raises(CheckpointError, match=r"trainer\.pt cannot be read"):
        store.load({"actor": group})


@pytest.mark.parametrize(
    ("keep", "stay"), [(1, [4]), (2, [3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_the_newest_of_each_role_stay(tmp_path, keep, stay):
    store = checkpoints(tmp_path, max_actor_ckpt_to_keep=keep)
    for step in range(1, 5):
        store.save(step, {"actor": Group()}, {})
    assert there(tmp_path) == [f"global_step_{step}/actor" for step in stay]
    assert len(list(tmp_path.glob("global_step_*"))) == len(stay)


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path):
    (tmp_path / "global_step_1_hf" / "actor").mkdir(parents=True)
    store = checkpoints(tmp_path, max_actor_ckpt_to_keep=1)
    for step in (1, 2):
        store.save(step, {"actor": Group()}, {})
    assert there(tmp_path) == ["global_step_1_hf/actor", "global_step_2/actor"]


def test_roles_are_kept_apart(tmp_path):
    store = checkpoints(tmp_path, max_actor_ckpt_to_keep=1, max_critic_ckpt_to_keep=2)
    for step in (1, 2, 3):
        store.save(step, {"actor": Group(), "critic": Group()}, {})
    assert there(tmp_path) == ["global_step_2/critic", "global_step_3/actor", "global_step_3/critic"]


def test_a_path_that_holds_none_is_named(tmp_path):
    store = checkpoints(tmp_path, resume_mode="resume_path", resume_from_path=str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match="gone"):
        store.load({})


def test_disable_starts_from_scratch_and_a_loaded_one_may_be_deleted(tmp_path):
    checkpoints(tmp_path).save(3, {"actor": Group()}, {})
    assert checkpoints(tmp_path, resume_mode="disable").load({}) == (0, {})
    assert checkpoints(tmp_path, del_local_ckpt_after_load=True).load({"actor": Group()})[0] == 3
    assert there(tmp_path) == []
