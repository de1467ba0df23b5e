"""Clean sweeps: random configs on random batches, on which the two trainers must not differ by a bit.

Each sweep has a seed of its own, the one before it plus one, so that an alarm is repeated alone.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from parity_tests.isolated import Bench
from parity_tests.isolated.synthetic import Size
from parity_tests.matrix.axes import ACTOR, AXES, CORRECTION, ROLLOUT, RULES, derived, fits
from parity_tests.matrix.cells import SEVERAL_OUTPUTS, CellResult, Outcome, fed, judge
from parity_tests.matrix.covering import Cell
from runtime.errors import ConfigError
from shared_algos.aggregation import AGGREGATIONS
from shared_algos.kl import KL_PENALTIES

MORE: Mapping[str, Sequence[Any]] = {
    "algorithm.gamma": (1.0, 0.99),
    "algorithm.lam": (1.0, 0.95, 0.0),
    "algorithm.norm_adv_by_std_in_grpo": (True, False),
    "algorithm.kl_penalty": KL_PENALTIES,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.use_pf_ppo": (False, False, True),
    f"{CORRECTION}.rollout_is": (None, "token", "sequence"),
    f"{CORRECTION}.rollout_rs": (None, "token_k1", "seq_mean_k2", "seq_max_k3"),
    f"{CORRECTION}.rollout_rs_threshold": (1.5, 4.0),
    f"{ACTOR}.kl_loss_type": KL_PENALTIES,
    f"{ACTOR}.entropy_coeff": (0.0, 0.01),
    f"{ACTOR}.ppo_epochs": (1, 2),
    f"{ACTOR}.shuffle": (False, True),
    f"{ACTOR}.clip_ratio_low": (0.2, 0.1),
    f"{ACTOR}.clip_ratio_high": (0.2, 0.28),
    f"{ACTOR}.loss_scale_factor": (None, 5.0),
    f"{ACTOR}.grad_clip": (1.0, 0.01),
    "critic.cliprange_value": (0.5, 0.1),
    "critic.loss_agg_mode": AGGREGATIONS,
    f"{ROLLOUT}.temperature": (1.0, 0.7),
    "trainer.balance_batch": (True, False),
}
"""Keys that the matrix leaves alone, and what they are drawn from."""


def drawn(seed: int) -> tuple[Cell, Size, DictConfig]:
    """A cell of the matrix, sizes and a config that go together; values that are refused together are drawn again."""
    draw = random.Random(seed)
    while True:
        cell = {axis: draw.choice(list(values)) for axis, values in AXES.items()}
        mini_batch = draw.choice((1, 2))
        prompts, sessions = mini_batch * draw.choice((2, 3)), draw.choice((2, 3, 4))
        size = Size(prompts, sessions, prompt_limit=draw.choice((4, 32)), response_limit=draw.choice((3, 16)))
        changes: dict[str, Any] = {key: draw.choice(values) for key, values in MORE.items()}
        for axis, value in cell.items():
            changes |= AXES[axis][value]
        changes |= {
            "data.train_batch_size": size.prompts,
            "data.max_prompt_length": size.prompt_limit,
            "data.max_response_length": size.response_limit,
            f"{ROLLOUT}.n": size.sessions,
            f"{ACTOR}.ppo_mini_batch_size": mini_batch,
        }
        try:
            if fits(cell):
                return cell, size, derived(changes)
        except ConfigError:
            continue


def sweep(bench: Bench, directory: Path, count: int, seed: int) -> Iterator[CellResult]:
    """``count`` sweeps from ``seed`` on; captures of those that raise an alarm stay below ``directory``."""
    for number in range(seed, seed + count):
        started = time.perf_counter()
        cell, size, config = drawn(number)
        folder = directory / f"sweep-{number}"
        rules = [SEVERAL_OUTPUTS] if SEVERAL_OUTPUTS.holds(cell) else []
        # What is rejected, or of several outputs, may leave one session of a group wherever groups are small.
        possible = [rule for rule in RULES if rule.stage == "advantage" and rule.when["estimator"] == cell["estimator"]]
        outcome, detail = judge(fed(bench, config, cell["shape"], folder, number, size), rules, possible)
        if outcome is not Outcome.DIVERGED:
            shutil.rmtree(folder, ignore_errors=True)
        yield CellResult("/".join(cell.values()), cell, number, outcome, detail, time.perf_counter() - started)
