"""Counts that the config fixes: prompts, trajectories, mini-batches, micro-batches, ranks."""

from __future__ import annotations

from omegaconf import DictConfig

from runtime.config.notes import ConfigNote
from runtime.config.roles import num_ranks, uses_critic, uses_reference
from runtime.config.types import read_key
from runtime.errors import BatchSizeError, ConfigError

ACTOR, CRITIC = "actor_rollout_ref.actor", "critic"
RANKS = "trainer.nnodes * trainer.n_gpus_per_node"


def check_batch_sizes(config: DictConfig, notes: list[ConfigNote]) -> None:
    """Raise ``BatchSizeError`` naming both keys and both numbers where a count does not divide another."""
    check_positive(
        config, "data.train_batch_size", "actor_rollout_ref.rollout.n", "trainer.nnodes", "trainer.n_gpus_per_node"
    )
    n, ranks = config.actor_rollout_ref.rollout.n, num_ranks(config)
    prompts = config.data.train_batch_size
    if config.data.gen_batch_size is not None and not config.algorithm.filter_groups.enable:
        _divides("data.train_batch_size", prompts, "data.gen_batch_size", config.data.gen_batch_size)
    _divides("data.train_batch_size * actor_rollout_ref.rollout.n", prompts * n, RANKS, ranks)
    for role in (ACTOR, CRITIC) if uses_critic(config) else (ACTOR,):
        _check_mini_batch(config, role, prompts, n, ranks)
    for passes in _forward_passes(config):
        _check_micro_batch(config, *passes, notes)


def check_positive(config: DictConfig, *keys: str) -> None:
    """Raise ``ConfigError`` for a count that is not at least 1; null passes."""
    for key in keys:
        value = read_key(config, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"config key {key!r} must be an integer of at least 1, got {value!r}")


def _check_mini_batch(config: DictConfig, role: str, prompts: int, n: int, ranks: int) -> None:
    key = f"{role}.ppo_mini_batch_size"
    check_positive(config, key, f"{role}.ppo_epochs")
    size = read_key(config, key)
    if size > prompts:
        raise BatchSizeError(
            f"{key}={size} prompts is more than data.train_batch_size={prompts}; make the mini-batch at most {prompts}"
        )
    _divides("data.train_batch_size", prompts, key, size)
    _divides(f"{key} * actor_rollout_ref.rollout.n", size * n, RANKS, ranks)


def _divides(what: str, count: int, divisor_key: str, divisor: int) -> None:
    if count % divisor:
        below, above = count - count % divisor, count + divisor - count % divisor
        nearest = f"{below} or {above}" if below else f"{above}"
        raise BatchSizeError(
            f"{what} = {count} does not divide by {divisor_key} = {divisor}; make it {nearest}, or change the divisor"
        )


def _forward_passes(config: DictConfig) -> list[tuple[str, str, str]]:
    """Keys of each pass that is cut into micro-batches: its size, its dynamic switch, its token budget."""
    rollout, ref = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
    log_prob = ("log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu")
    ppo = ("ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu")
    forward = ("forward_micro_batch_size_per_gpu", "use_dynamic_bsz", "forward_max_token_len_per_gpu")
    roles = [(ACTOR, ppo), (rollout, log_prob)]
    roles += [(ref, log_prob)] if uses_reference(config) else []
    roles += [(CRITIC, ppo), (CRITIC, forward)] if uses_critic(config) else []
    return [(f"{role}.{size}", f"{role}.{dynamic}", f"{role}.{budget}") for role, (size, dynamic, budget) in roles]


def _check_micro_batch(config: DictConfig, size: str, dynamic: str, budget: str, notes: list[ConfigNote]) -> None:
    """verl demands a size or a token budget; without either we take the rank's whole mini-batch and say so."""
    check_positive(config, size)
    if read_key(config, dynamic):
        check_positive(config, budget)
        longest = config.data.max_prompt_length + config.data.max_response_length
        if read_key(config, budget) < longest:
            raise BatchSizeError(
                f"{budget}={read_key(config, budget)} tokens cannot hold one sequence of data.max_prompt_length + "
                f"data.max_response_length = {longest}; make it at least {longest}"
            )
    elif read_key(config, size) is None:
        message = f"null and {dynamic.rpartition('.')[2]} is off: a rank takes its whole mini-batch at once (memory)"
        notes.append(ConfigNote(size, "default", message))
