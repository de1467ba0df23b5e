"""Right values from incident reports as rows of the matrix: what both trainers must write, not only that they agree.

Numbers are those of the project's list of cases. Those of single stages are here, those of the loop and of containers
in ``loop_facts``, that of seeds in ``seed_facts``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from parity_tests.isolated import Bench
from parity_tests.isolated.outputs import isolated_outputs
from parity_tests.matrix import loop_facts
from parity_tests.matrix.axes import ACTOR, AXES, derived
from parity_tests.matrix.cells import CellResult, Outcome
from parity_tests.matrix.fact import Check, Fact, Sheet, differ
from parity_tests.matrix.seed_facts import seeds_of_any_chunking
from runtime.errors import ResourceError
from v1 import data_plane
from v1.agent_loop import row_tags


def rejected_tokens(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([3, 5], mask=[1] * 5 + [0] * 3, advantages=[1.0] * 3 + [-0.5] * 2 + [0.0] * 3)
    series = sheet.update(bench, folder, sheet.config())
    yield from differ("token-mean", [side["actor/pg_loss"] for side in series], [-0.4])


def horizon(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([3, 5], advantages=[1.0] * 3 + [-0.5] * 5)
    mode = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}
    for rows, ranks in ((1, 1), (2, 1), (1, 2)):
        split = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": rows, "trainer.n_gpus_per_node": ranks}
        series = sheet.update(bench, folder, {**sheet.config(), **mode, **split})
        what = f"seq-mean-token-sum-norm in micro-batches of {rows} on {ranks} ranks"
        yield from differ(what, [side["actor/pg_loss"] for side in series], [-0.03125], within=0)


def several_outputs(bench: Bench, folder: Path) -> Check:
    keys = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]
    sheet = Sheet([1] * 4, keys, scores=[1.0, 1.0, 1.0, 0.0])
    for name, right in (("grpo", 0.70710), ("grpo_vectorized", 0.70710), ("rloo", 1.0), ("rloo_vectorized", 1.0)):
        shutil.rmtree(folder, ignore_errors=True)
        found = isolated_outputs(bench, derived(sheet.config(algorithm__adv_estimator=name)), sheet.feed, folder)
        if "returned 3 outputs" not in found.refusals.get("rollout", {}).get("legacy", ""):
            yield "legacy does not refuse a session of three outputs"
        columns = [run.capture.stage(1, "advantage").read("advantages").tolist() for run in found.sides.values()]
        yield from differ(name, columns, [right] * 3 + [-right], within=1e-4)


def inputs_of_estimators(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([2, 2], [(0, 0, 0), (0, 1, 0)], scores=[1.0, 0.5])
    sheet.feed = sheet.feed.with_columns(reward_baselines=torch.tensor([0.25, 0.25]))
    remax = sheet.advantages(bench, folder, algorithm__adv_estimator="remax")
    yield from differ("remax", remax, [0.75, 0.75, 0.25, 0.25])
    both = sheet.advantages(bench, folder, algorithm__adv_estimator="optimal_token_baseline")
    if not all(any(side) for side in both):
        yield "optimal_token_baseline: all advantages are 0"


def any_split(bench: Bench, folder: Path) -> Check:
    """Critic and actor, one mini-batch of 12 rows."""
    sheet = Sheet([3, 5, 1, 8, 2, 7, 4, 6, 3, 2, 8, 1])
    config = sheet.config(algorithm__adv_estimator="gae", critic__ppo_mini_batch_size=12)
    first: dict[str, float] = {}
    splits = [{f"{role}.ppo_micro_batch_size_per_gpu": rows for role in (ACTOR, "critic")} for rows in (1, 2, 3)]
    for split in (*splits, AXES["micro_batch"]["tokens"]):
        for ranks in (1, 2):
            changes = {**config, **split, "trainer.n_gpus_per_node": ranks}
            (side, _) = sheet.stages(bench, folder, changes, ["update_critic", "update_actor"])
            series = {**side["update_critic"].series, **side["update_actor"].series}
            for name in ("critic/loss", "critic/grad_norm", "actor/loss", "actor/grad_norm"):
                right = first.setdefault(name, series[name][0])
                # Losses are equal to the bit; a gradient adds up in float32, in the order of the split.
                if abs(series[name][0] - right) > (1e-5 * abs(right) if name.endswith("norm") else 0):
                    yield f"{name} is {series[name][0]} and {right} in two splits, {split} on {ranks} ranks"


def one_row_left(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([2, 2], [(0, 0, 0), (0, 1, 0)], mask=[0, 0, 1, 1], scores=[100.0, 1.0])
    for name, by_std, right in (("rloo", True, 1.0), ("grpo", False, 1.0), ("grpo", True, 0.999999)):
        changes = {"algorithm__adv_estimator": name, "algorithm__norm_adv_by_std_in_grpo": by_std}
        yield from differ(name, sheet.advantages(bench, folder, **changes), [0, 0, right, right], within=1e-7)


def interleaved_groups(bench: Bench, folder: Path) -> Check:
    keys = [(group, session, 0) for group, size in enumerate((4, 2, 3)) for session in range(size)]
    sheet = Sheet([1] * 9, keys, scores=[4, 0, 2, 2, 1, 0, 3, 6, 0])
    sheet.feed = replace(sheet.feed, row_orders={"balance": [0, 4, 6, 1, 7, 2, 5, 8, 3]})
    changes = {"algorithm__adv_estimator": "grpo", "algorithm__norm_adv_by_std_in_grpo": False}
    yield from differ("grpo", sheet.advantages(bench, folder, **changes), [2, -2, 0, 0, 0.5, -0.5, 0, 3, -3])


def no_balance(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    sheet = Sheet([1] * 4)
    for side in ("legacy", "v1"):
        config = derived({**sheet.config(), "trainer.balance_batch": False, "trainer.use_v1": side == "v1"})
        if "balance" in bench.trainer(side, config).stage_names:
            yield f"{side} balances with trainer.balance_batch=false"


def own_places(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([3, 8, 1, 8, 2, 7, 4, 6])
    columns = []
    for split in ("rows", "tokens"):
        changes = {**sheet.config(), **AXES["micro_batch"][split]}
        sides = sheet.stages(bench, folder, changes, ["old_log_prob"])
        columns += [side["old_log_prob"].read("old_log_probs") for side in sides]
    if not all(column.equal(columns[0]) for column in columns):
        yield "log-probs of dynamic micro-batches are not in the places of those by rows"


def padding_weighs_nothing(bench: Bench, folder: Path) -> Check:
    """Mini-batches of three real rows and one of padding, and of padding alone."""
    lengths = [3, 5, 2, 4, 3, 3, 3, 3]
    real = [1] * 10 + [0] * 16
    sheet = Sheet(lengths, mask=real, advantages=[-1.0 * value for value in real])
    for mode in ("token-mean", "seq-mean-token-mean"):
        changes = {**sheet.config(), f"{ACTOR}.ppo_mini_batch_size": 4, f"{ACTOR}.loss_agg_mode": mode}
        series = sheet.update(bench, folder, changes)
        yield from differ(mode, [side["actor/pg_loss"] for side in series], [1.0, 0.0])
        if any(side["actor/grad_norm"][1] != 0 for side in series):
            yield f"{mode}: a mini-batch of padding has a gradient"


def outcome_behind_an_observation(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([5], mask=[1, 1, 1, 0, 0], scores=[1.0], values=[0.0] * 5)
    sheet.feed = sheet.feed.with_columns(reward_baselines=torch.tensor([0.0]))
    for name in ("gae", "reinforce_plus_plus", "remax"):
        returns = sheet.column(bench, folder, "returns", sheet.config(algorithm__adv_estimator=name))
        yield from differ(name, returns, [1, 1, 1, 0, 0])


def seven_equal(bench: Bench, folder: Path) -> Check:
    sheet = Sheet([2] * 7, [(0, session, 0) for session in range(7)], scores=[3.3] * 7)
    yield from differ("grpo", sheet.advantages(bench, folder, algorithm__adv_estimator="grpo"), [0] * 14, within=0)


def columns_keep_their_rows(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    """Into each container and out again: rows of one length, one row, and prompts of one length beside others."""
    for lengths in ([4, 4, 4, 4], [5], [3, 5, 1]):
        sheet = Sheet(lengths)
        whole = sheet.feed.before("update_actor")
        names = [name for name in whole.columns if name not in ("reward_baselines", "num_turns")]
        for side in ("legacy", "v1"):
            changes = {**sheet.config(), "trainer.use_v1": side == "v1"}
            read = bench.trainer(side, derived(changes)).read_back(whole, names)
            for name in names:
                if not read[name].equal(whole[name]):
                    yield f"{side} gives other values of {name} for rows of {lengths}"


def partitions_apart(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    sheets = {name: Sheet(lengths) for name, lengths in (("fact-a", [2, 2]), ("fact-b", [3, 3]))}
    bench.standing("v1", 1)
    metas = {}
    for name, sheet in sheets.items():
        batch = sheet.feed.before("old_log_prob")
        tags = row_tags(batch, 1)
        data_plane.put_rows(batch, name, tags)
        keys = [str(key) for key in batch.keys]
        metas[name] = data_plane.KVBatchMeta(keys=keys, tags=tags, partition_id=name)
    data_plane.clear(metas["fact-a"].keys, "fact-a")
    read = data_plane.read(metas["fact-b"], ["responses"])
    if not read["responses"].equal(sheets["fact-b"].feed.before("old_log_prob")["responses"]):
        yield "rows of one partition changed when another was cleared"
    data_plane.clear(metas["fact-b"].keys, "fact-b")


FACTS: Sequence[Fact] = (
    Fact("1", "rejected tokens leave the denominator", rejected_tokens),
    Fact("2", "the horizon is the configured length", horizon),
    Fact("3", "old reward keys are heard", loop_facts.old_reward_keys),
    Fact("4", "a session of several outputs counts once", several_outputs),
    Fact("5", "PF-PPO draws whole rows", loop_facts.whole_rows_are_drawn),
    Fact("6", "remax and optimal_token_baseline have their inputs", inputs_of_estimators),
    Fact("7", "768 requests have 768 seeds", seeds_of_any_chunking),
    Fact("8, 9", "columns keep their rows, equal or not", columns_keep_their_rows),
    Fact("10", "any split gives the same loss and gradient", any_split),
    Fact("11", "the row that is left is a group of one", one_row_left),
    Fact("12", "groups are by uid, in any order", interleaved_groups),
    Fact("13", "balance_batch=false is heard", no_balance),
    Fact("14", "a prompt that never finishes is named", loop_facts.stuck_prompt),
    Fact("15", "resumed at the end of an epoch", loop_facts.resumed_between_epochs),
    Fact("16", "dynamic micro-batches put rows back", own_places),
    Fact("17", "padding weighs nothing", padding_weighs_nothing),
    Fact("18", "parts with other timings are put together", loop_facts.parts_with_other_timings),
    Fact("19", "512 rows in 6 parts, 3 rows padded to 8", loop_facts.uneven_parts),
    Fact("20", "partitions are apart", partitions_apart),
    Fact("21", "an outcome behind an observation is not lost", outcome_behind_an_observation),
    Fact("22", "seven equal rewards give 0", seven_equal),
)


def run_facts(bench: Bench, facts: Iterable[Fact], directory: Path) -> Iterator[CellResult]:
    """The result of each case. What else is raised than by an assertion, such as for want of CPUs, is no verdict."""
    for fact in facts:
        started = time.perf_counter()
        try:
            wrong = list(fact.check(bench, directory / f"fact-{fact.number}"))
        except ResourceError:  # some of which are assertions, as in verl
            raise
        except AssertionError as error:
            wrong = [str(error)]
        outcome = Outcome.DIVERGED if wrong else Outcome.PASSED
        yield CellResult(fact.title, {}, 0, outcome, "; ".join(wrong), time.perf_counter() - started)
