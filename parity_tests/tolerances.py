"""How far the values of each stage may be apart: 0 for algorithms, the measured spread for what a model computes.

``docs/parity.md`` tells how the table was measured, and which rule applies when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from parity_tests.capture import Capture, setting
from parity_tests.verdict import EXACT, Tolerance
from parity_tests.weights import WEIGHTS_STAGE
from runtime.errors import ConfigError
from runtime.fields import STAGE_NAMES, STAGES
from runtime.trainer.hooks import INITIAL_STAGE
from shared_algos.advantages import ADVANTAGES

TABLE: Mapping[str, Mapping[str, Tolerance]] = {
    INITIAL_STAGE: {"float32": Tolerance(1e-6, 1e-7), "bfloat16": Tolerance(1e-3, 1e-4)},
    "rollout.rollout_log_probs": {"float32": Tolerance(1e-4, 2e-5), "bfloat16": Tolerance(2e-2, 2e-3)},
    "old_log_prob": {"float32": Tolerance(1e-4, 2e-5), "bfloat16": Tolerance(2e-2, 2e-3)},
    "ref_log_prob": {"float32": Tolerance(1e-4, 2e-5), "bfloat16": Tolerance(2e-2, 2e-3)},
    "values": {"float32": Tolerance(1e-4, 2e-5), "bfloat16": Tolerance(5e-2, 1e-2)},
    "advantage": {"float32": Tolerance(1e-3, 2e-4), "bfloat16": Tolerance(1e-1, 2e-2)},
    "update_critic": {"float32": Tolerance(1e-4, 1e-4), "bfloat16": Tolerance(2e-3, 2e-3)},
    "update_actor": {"float32": Tolerance(1e-4, 1e-4), "bfloat16": Tolerance(2e-3, 2e-3)},
    WEIGHTS_STAGE: {"float32": Tolerance(1e-4, 1e-6), "bfloat16": Tolerance(2e-3, 5e-6)},
}
"""By stage or ``stage.field``, then by the dtype in which the model computes. A stage that is not here is judged by its
bits everywhere; ``advantage`` is, too, but for what it makes of a model's outputs (see ``tolerances_of``)."""

_DTYPE_KEYS = {
    "rollout.rollout_log_probs": "actor_rollout_ref.rollout.dtype",
    "ref_log_prob": "actor_rollout_ref.ref.fsdp_config.dtype",
    "values": "critic.fsdp.dtype",
    "update_critic": "critic.fsdp.dtype",
}
_ACTOR_DTYPE = "actor_rollout_ref.actor.fsdp_config.dtype"
_SPELLINGS = {"float32": "float32", "fp32": "float32", "float": "float32"}
_COARSE = "bfloat16"
"""What any dtype below float32 is judged as: float16 is finer, so its spread lies below."""

_MODEL_FIELDS = {"rollout_log_probs", "old_log_probs", "sum_pi_squared", "ref_log_prob", "values"}
_ADVANTAGE_COLUMNS = next(stage.writes + stage.may_write for stage in STAGES if stage.name == "advantage")


def tolerances_of(config: Mapping[str, Any]) -> dict[str, Tolerance]:
    """The table for the dtypes of one run, by stage and ``stage.field``.

    The columns of ``advantage`` are exact unless its estimator, a KL in the reward or a rollout correction reads what a
    model computed.
    """
    found = {place: by_dtype[_dtype(config, place)] for place, by_dtype in TABLE.items()}
    return found | exact_advantages(config)


def exact_advantages(config: Mapping[str, Any]) -> dict[str, Tolerance]:
    """The columns of ``advantage`` that no output of a model reaches under ``config``: all of them, or none."""
    return {} if _advantage_reads_models(config) else {f"advantage.{name}": EXACT for name in _ADVANTAGE_COLUMNS}


def tolerances_between(left: Capture, right: Capture) -> tuple[dict[str, Tolerance], str | None]:
    """What two captures are judged by, and a note that says so: bits, where their fingerprints match, else the table.

    Of two dtypes the coarser decides. verl adds in float32 what an advantage is made of, so that no advantage of a
    recorder's capture is judged by bits.
    """
    if left.manifest.get("fingerprint", {}) == right.manifest.get("fingerprint", {}):
        return {}, None
    ours, theirs = tolerances_of(left.config), tolerances_of(right.config)
    wider = {place: max(ours.get(place, EXACT), theirs.get(place, EXACT), key=_width) for place in ours | theirs}
    if left.partial or right.partial:
        wider = {place: tolerance for place, tolerance in wider.items() if not place.startswith("advantage.")}
    return wider, f"the fingerprints differ, so that these are judged by tolerance, all else by bits: {told(wider)}"


def told(tolerances: Mapping[str, Tolerance]) -> str:
    """The tolerances that allow anything, as ``stage max 1e-05 mean 1e-06``."""
    return ", ".join(
        f"{place} max {tolerance.max_abs:g} mean {tolerance.mean_abs:g}"
        for place, tolerance in tolerances.items()
        if not tolerance.exact
    )


def read_tolerances(path: Path) -> dict[str, Tolerance]:
    """Read a YAML file of ``stage: {max_abs: ..., mean_abs: ...}``, as ``verlift parity calibrate`` writes it.

    Raises ConfigError naming the file and the key: an unknown stage, an algorithm stage (only bits decide there), a
    number that is missing, negative or not finite, or a mean above the maximum.
    """
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML, encodings and OmegaConf have no class of error in common
        raise ConfigError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold stage: {{max_abs: ..., mean_abs: ...}}, not a {type(content).__name__}")
    return {str(place): _parse(f"{path}: {place}", str(place), entry) for place, entry in content.items()}


def as_yaml(tolerances: Mapping[str, Tolerance], comment: str) -> str:
    """The text of a file that ``read_tolerances`` reads; ``comment`` stands above."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f"{place}: {{max_abs: {t.max_abs:.1e}, mean_abs: {t.mean_abs:.1e}}}" for place, t in tolerances.items()]
    return "\n".join([*lines, ""])


def _parse(where: str, place: str, entry: Any) -> Tolerance:
    stages = {name.split(".")[0] for name in TABLE}
    stage = place.split(".")[0]
    if stage not in {*STAGE_NAMES, *stages}:
        raise ConfigError(f"{where} is not a stage; known: {', '.join(TABLE)}, and STAGE.FIELD for one field of those")
    if stage not in stages or (stage == "rollout" and place not in TABLE):
        raise ConfigError(f"{where} is computed by algorithms and judged by bits everywhere; leave it out")
    if not isinstance(entry, dict) or entry.keys() != {"max_abs", "mean_abs"}:
        raise ConfigError(f"{where} must hold max_abs and mean_abs, and nothing else; it holds {entry!r}")
    for name, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ConfigError(f"{where}.{name} is {value!r}; give a finite number of 0 or more")
    if entry["mean_abs"] > entry["max_abs"]:
        raise ConfigError(f"{where}.mean_abs {entry['mean_abs']} is above max_abs {entry['max_abs']}; no mean can be")
    return Tolerance(float(entry["max_abs"]), float(entry["mean_abs"]))


def _dtype(config: Mapping[str, Any], place: str) -> str:
    """``float32`` or ``bfloat16``; float32, the stricter, where a config does not say."""
    dtype = setting(config, _DTYPE_KEYS.get(place, _ACTOR_DTYPE)) or "float32"
    return _SPELLINGS.get(str(dtype).removeprefix("torch."), _COARSE)


def _advantage_reads_models(config: Mapping[str, Any]) -> bool:
    readers = ("use_kl_in_reward", "rollout_correction.rollout_is", "rollout_correction.rollout_rs")
    if any(setting(config, f"algorithm.{key}") for key in readers):
        return True
    name = setting(config, "algorithm.adv_estimator")
    # An estimator of the user's that is not registered here may read anything.
    return name not in ADVANTAGES.names() or bool(_MODEL_FIELDS & ADVANTAGES.get(name).needs)


def _width(tolerance: Tolerance) -> float:
    return tolerance.max_abs
