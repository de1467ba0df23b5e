"""Cases of the loop, of configs and of containers; see ``facts``."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from compat.errors import DataProtoError, UnequalSplitError
from compat.protocol import DataProto, DataProtoConfig, pad_dataproto_to_divisor, unpad_dataproto
from parity_tests.isolated import Bench
from parity_tests.matrix.axes import ACTOR, ROLLOUT, Changes, derived
from parity_tests.matrix.fact import Check, Sheet
from parity_tests.run import for_parity
from runtime import containers
from runtime.config import load_config
from runtime.errors import BatchSizeError, DataError, RolloutError
from runtime.identity import PromptIdentity
from v1.data_plane import KVBatchMeta

_SIDES = ("legacy", "v1")
_SCORED = "verlift/toy_letters"
_DEADLINE, _HANGS = 8, 16
"""Seconds: long enough for two short sessions beside other work; the one that hangs ends before the next case."""


def old_reward_keys(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    old = ["custom_reward_function.path=R.py", "reward_model.reward_manager=dapo"]
    for side in _SIDES:
        reward = load_config("tiny", [f"trainer.use_v1={side == 'v1'}", *old]).config.reward
        found = (reward.custom_reward_function.path, reward.reward_manager.name)
        if found != ("R.py", "dapo"):
            yield f"{side} scores with {found}, and the old keys ask for R.py and dapo"


def whole_rows_are_drawn(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    sheet = Sheet([3, 5, 2, 4, 6, 1], scores=[0.0, 1.0, 0.25, 0.5, 2.0, -1.0])
    given = sheet.feed.before("resample")
    names = [name for name in given.columns if name not in ("reward_baselines", "num_turns")]
    draws = []
    for side in _SIDES:
        changes = {
            **sheet.config(algorithm__adv_estimator="gae"),
            "algorithm.use_pf_ppo": True,
            "trainer.use_v1": side == "v1",
        }
        trainer = bench.trainer(side, derived(changes))
        trainer.global_steps = 1
        trainer.place(given.keys)
        fed = trainer.put(given)
        try:
            drawn, _ = trainer.resample(fed)
            read = trainer.read(drawn, names)
        finally:
            trainer.drop(fed)
        rows = [given.keys.index(key) for key in read.keys]
        draws.append(rows)
        expected = given.select(rows)
        for name in names:
            if not read[name].equal(expected[name]):
                yield f"{side}: {name} did not move with its row"
    if draws[0] != draws[1] or len(set(draws[0])) == len(draws[0]):
        yield f"rows drawn: {draws}, expected the same twice, and one of them more than once"


def stuck_prompt(bench: Bench, folder: Path) -> Check:
    """The reward of one prompt of two does not come: the step fails at its deadline and names the uid."""
    reward = _file(
        folder / "reward.py",
        "import asyncio\n\n\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        f"    await asyncio.sleep({_HANGS} if data_source == 'stuck' else 0)\n    return 0.5\n",
    )
    changes = {
        **_of_two(folder / "two.jsonl", sources=(_SCORED, "stuck")),
        "reward.custom_reward_function.path": str(reward),
        "runtime.rollout_timeout_s": _DEADLINE,
    }
    config = derived(changes)
    stuck = PromptIdentity(config.runtime.seed, "train", 1, 1).uid
    expected = f"1 of 2 prompts have not finished after {_DEADLINE} s: uid {stuck}"
    started = time.monotonic()

    def told_by(side: str) -> str:
        try:
            _fit(bench, side, for_parity(config, side, 1, folder / side))
        except RolloutError as error:
            return str(error)
        return "nothing"

    for side, told in _on_both(told_by):
        if not told.startswith(expected):
            yield f"{side} told {told}, expected {expected}"
    # What is late must not end in the next case.
    time.sleep(max(0.0, started + _HANGS + 4 - time.monotonic()))


def resumed_between_epochs(bench: Bench, folder: Path) -> Check:
    """Two steps are an epoch of four prompts. Saved behind the second, a run of four steps goes on with the third."""
    shutil.rmtree(folder, ignore_errors=True)
    changes = {**_of_two(folder / "four.jsonl", sources=(_SCORED,) * 4), "trainer.save_freq": 2}

    def steps_of(side: str) -> list[int] | str:
        ran: list[int] = []
        for steps in (2, 4):
            config = for_parity(derived(changes), side, steps, folder / side)
            try:
                _fit(bench, side, config, [_StepsSeen(folder / f"{side}.steps")])
            except DataError as error:
                return str(error)
            ran = [int(line) for line in (folder / f"{side}.steps").read_text().split()]
        return ran

    for side, ran in _on_both(steps_of):
        if ran != [1, 2, 3, 4]:
            yield f"{side} gave {ran} with a resume behind the second step, expected the steps 1, 2, 3, 4"


def parts_with_other_timings(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    """As workers answer: each with its own timing and metrics, all with one step."""
    parts = [
        DataProto.from_dict(
            tensors={"a": torch.tensor([row])},
            meta_info={"timing": {"generate": row + 0.25}, "metrics": {"loss": row + 0.5}, "global_steps": 7},
        )
        for row in range(2)
    ]
    try:
        meta = DataProto.concat(parts).meta_info
    except DataProtoError as error:
        yield str(error)
        return
    kept = json.dumps(meta, default=str)
    if meta.get("global_steps") != 7 or not all(number in kept for number in ("0.25", "1.25", "0.5", "1.5")):
        yield f"meta_info of two parts became {kept}: a value is lost"


def uneven_parts(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    rows = DataProto.from_dict(tensors={"a": torch.arange(512)})
    meta = KVBatchMeta(keys=[f"u{row}_0_0" for row in range(512)], tags=[{}] * 512, partition_id="fact")
    for name, split, kind in (
        ("DataProto", lambda: rows.chunk(6), UnequalSplitError),
        ("KVBatchMeta", lambda: containers.shard(meta, 6), BatchSizeError),
    ):
        yield from _refused_with_both_numbers(name, split, kind)
    rows.meta_info[DataProtoConfig.auto_padding_key] = True
    if [len(part) for part in rows.chunk(6)] != [86] * 5 + [82]:  # as verl cuts them
        yield f"512 rows in 6 parts with auto-padding: {[len(part) for part in rows.chunk(6)]}"
    few = DataProto.from_dict(tensors={"a": torch.arange(3)})
    padded, size = pad_dataproto_to_divisor(few, 8)
    back = unpad_dataproto(padded, size).to_tensordict()["a"]
    if (len(padded), size, back.tolist()) != (8, 5, [0, 1, 2]):
        yield f"3 rows padded to a divisor of 8: {len(padded)} rows, {size} of padding"


def _refused_with_both_numbers(name: str, split: Callable[[], Any], kind: type[Exception]) -> Check:
    try:
        split()
    except kind as error:
        if "512" not in str(error) or "6" not in str(error):
            yield f"{name} refuses 512 rows in 6 parts without both numbers: {error}"
    else:
        yield f"{name} cuts 512 rows into 6 parts"


class _StepsSeen:
    """A stage hook that writes the number of each step whose policy was updated."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, record: Any) -> None:
        if record.stage == "update_actor":
            with self.path.open("a") as stream:
                stream.write(f"{record.step}\n")


def _fit(bench: Bench, side: str, config: DictConfig, hooks: Any = ()) -> None:
    trainer = bench.trainer(side, config, hooks, plays=True)
    try:
        trainer.fit()
    finally:
        trainer.close()


def _on_both(work: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """The side and what ``work(side)`` gave, both at once."""
    with ThreadPoolExecutor(len(_SIDES)) as pool:
        yield from zip(_SIDES, pool.map(work, _SIDES), strict=True)


def _of_two(path: Path, sources: tuple[str, ...]) -> Changes:
    """A step of two prompts and one short session each; ``path`` gets a row a source."""
    rows = (
        {"data_source": source, "prompt": [{"role": "user", "content": "Write a to r."}], "extra_info": {"index": row}}
        | {"reward_model": {"style": "rule", "ground_truth": "abc"}}
        for row, source in enumerate(sources)
    )
    _file(path, "\n".join(map(json.dumps, rows)))
    return {
        "data.train_files": str(path),
        "data.train_batch_size": 2,
        "data.shuffle": False,
        "data.max_response_length": 4,
        f"{ROLLOUT}.n": 1,
        f"{ACTOR}.ppo_mini_batch_size": 2,
        "algorithm.adv_estimator": "reinforce_plus_plus",
    }


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
