"""Sessions with several outputs, which the legacy trainer refuses: V1 against the core and against plain rows.

Stages that read sessions (reward, advantage) are set against the core, called here on the packed batch. To all others
an output is a row like any other: there the legacy trainer is fed the same rows, each as a session of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from parity_tests.capture import CaptureHook
from parity_tests.compare import compare
from parity_tests.isolated.bench import Bench
from parity_tests.isolated.feed import Feed
from parity_tests.isolated.runs import Isolated, SideRun, refusal, run_side, run_stage
from parity_tests.run import finish_capture, for_parity
from runtime.advantage import AdvantageStage
from runtime.errors import RolloutError
from runtime.identity import TrajectoryKey
from runtime.reward import RewardStage
from runtime.trainer.hooks import StageHook, StageRecord
from runtime.trainer.kl import kl_controller
from shared_algos.errors import AlgorithmError

Names = Mapping[TrajectoryKey, TrajectoryKey]


class NamedBack:
    """A hook that hands records on under the names that rows had before they were made sessions."""

    def __init__(self, hook: StageHook, names: Names) -> None:
        self.hook, self.names = hook, names

    def __call__(self, record: StageRecord) -> None:
        batch = record.batch
        if batch is not None:
            record = replace(record, batch=replace(batch, keys=tuple(self.names[key] for key in batch.keys)))
        self.hook(record)


def isolated_outputs(bench: Bench, config: DictConfig, feed: Feed, directory: Path) -> Isolated:
    """``isolated`` for a feed whose sessions have several outputs.

    The legacy side is the core and the legacy trainer in turn; the refusal of the rows as they are is its
    ``rollout``.
    """
    own = for_parity(config, "legacy", 1, directory / "legacy")
    hook = CaptureHook(directory / "legacy")
    names = _as_sessions(feed)
    legacy = bench.trainer("legacy", own, [NamedBack(hook, {new: old for old, new in names.items()})])
    refusals: dict[str, str] = {}
    try:
        legacy.put(feed.before("reward"))
    except RolloutError as error:
        refusals["rollout"] = refusal(error)
    plain = _renamed(feed, names)
    for stage in legacy.stage_names[1:]:
        try:
            if stage in _CORE:
                hook(_CORE[stage](config, feed))
            else:
                run_stage(legacy, plain, stage)
        except AlgorithmError as error:
            refusals[stage] = refusal(error)
    sides = {
        "legacy": SideRun(finish_capture(own, directory / "legacy"), refusals),
        "v1": run_side(bench, "v1", config, feed, directory / "v1"),
    }
    return Isolated(sides, compare(sides["legacy"].capture, sides["v1"].capture, by_position=False))


def _core_reward(config: DictConfig, feed: Feed) -> StageRecord:
    batch = feed.before("reward")
    rewarded = RewardStage.from_config(config)(batch)
    return StageRecord(feed.step, "reward", replace(batch, columns=rewarded.columns, objects=rewarded.objects))


def _core_advantage(config: DictConfig, feed: Feed) -> StageRecord:
    batch = feed.before("advantage")
    columns, scalars = AdvantageStage.from_config(config)(batch, kl_controller(config).value)
    series = {name: (value,) for name, value in scalars.items()}
    return StageRecord(feed.step, "advantage", replace(batch, columns=columns, objects={}), series)


_CORE = {"reward": _core_reward, "advantage": _core_advantage}


def _as_sessions(feed: Feed) -> dict[TrajectoryKey, TrajectoryKey]:
    """Each row as a session of its own, in the same canonical order."""
    counts: dict[str, int] = {}
    names = {}
    for key in feed.written["rollout"].keys:
        names[key] = TrajectoryKey(key.uid, counts.get(key.uid, 0), 0)
        counts[key.uid] = names[key].session_id + 1
    return names


def _renamed(feed: Feed, names: Names) -> Feed:
    written = {
        stage: replace(batch, keys=tuple(names[key] for key in batch.keys)) for stage, batch in feed.written.items()
    }
    return replace(feed, written=written)
