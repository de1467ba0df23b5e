"""Rollout engines by the name that ``rollout.name`` gives."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from runtime.devices import compute_repeatably, device_of
from runtime.errors import ConfigError
from runtime.rollout.types import Generator

GeneratorBuilder = Callable[[DictConfig], Generator]


def build_generator(config: DictConfig) -> Generator:
    """The engine that ``actor_rollout_ref.rollout.name`` names, with its model loaded.

    Raises ConfigError for a name that is not known, or not supported yet.
    """
    compute_repeatably(config)
    return generator_builder(config.actor_rollout_ref.rollout.name)(config)


def generator_builder(name: str) -> GeneratorBuilder:
    """What builds the engine ``name``; ConfigError when there is none, so that a config is checked before it runs."""
    if name == "vllm":
        raise ConfigError(
            "actor_rollout_ref.rollout.name is 'vllm', which comes with a later release (extra `vllm`); use 'hf'"
        )
    if name not in GENERATORS:
        raise ConfigError(f"actor_rollout_ref.rollout.name is {name!r}; the rollout engines are {sorted(GENERATORS)}")
    return GENERATORS[name]


def _build_hf(config: DictConfig) -> Generator:
    from runtime.rollout.hf import HFGenerator

    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    return HFGenerator(
        model.path,
        dtype=rollout.dtype,
        device=device_of(config).type,
        max_num_seqs=rollout.max_num_seqs,
        trust_remote_code=model.trust_remote_code,
    )


GENERATORS: dict[str, GeneratorBuilder] = {"hf": _build_hf}
"""Engines by name; each takes the whole config and returns a generator whose model is loaded."""
