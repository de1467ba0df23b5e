"""What an old launch command or recipe asks of engines and layouts that are not built, where results do not hang on it.

Applied where old code runs (``settle_config``, ``main_ppo``) and told there; ``verlift train`` refuses these settings,
since who types them today should hear that another engine answers.
"""

from __future__ import annotations

from runtime.config.conversions import CONVERSIONS, Conversion, Values
from runtime.config.tables import old_defaults

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"
ENGINE = f"{ROLLOUT}.name"
SERVERS = ("vllm", "sglang", "sglang_async", "trtllm")
"""Rollout engines of verl that sample from softmax(logits / temperature) with the same cuts as ours."""
NO_CUT = 0
"""``top_k`` without a cut, as rollout of verl with transformers wrote it; vLLM writes -1."""

COUNTED_OVER_RANKS = {
    f"{ACTOR}.ppo_micro_batch_size": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{REF}.log_prob_micro_batch_size": f"{REF}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_micro_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
}
"""Micro-batch sizes of verl up to 0.2 and what they are in each rank."""
RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node")

SPLIT = "ulysses_sequence_parallel_size"
ACTOR_SPLIT, CRITIC_SPLIT = (f"{ACTOR}.{SPLIT}", f"{ACTOR}.fsdp_config.{SPLIT}"), (f"critic.{SPLIT}",)
REF_SPLIT = (f"{REF}.{SPLIT}", f"{REF}.fsdp_config.{SPLIT}")
BUDGETS = {
    f"{ACTOR}.ppo_max_token_len_per_gpu": ACTOR_SPLIT,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": ACTOR_SPLIT,
    f"{REF}.log_prob_max_token_len_per_gpu": REF_SPLIT,
    "critic.ppo_max_token_len_per_gpu": CRITIC_SPLIT,
    "critic.forward_max_token_len_per_gpu": CRITIC_SPLIT,
}
"""Token budgets of a rank, and the keys that say over how many ranks its sequences are split."""


def convert_engine(old: Values) -> Values | None:
    """``rollout.name=vllm`` is played by ``hf``.

    >>> convert_engine({"actor_rollout_ref.rollout.name": "vllm"})
    {'actor_rollout_ref.rollout.name': 'hf'}
    """
    return {ENGINE: "hf"} if old[ENGINE] in SERVERS else None


def convert_top_k(old: Values) -> Values | None:
    """``top_k=0`` of verl's rollout with transformers cuts nothing, which is -1."""
    (key,) = old
    return {key: -1} if _is_count(old[key]) and old[key] == NO_CUT else None


def convert_micro_batch(key: str, old: Values) -> Values | None:
    """A micro-batch size over all ranks, as verl cuts it up: floor division, and at least one row.

    >>> sizes = {"critic.ppo_micro_batch_size": 64, "trainer.nnodes": 1, "trainer.n_gpus_per_node": 8}
    >>> convert_micro_batch("critic.ppo_micro_batch_size", sizes)
    {'critic.ppo_micro_batch_size_per_gpu': 8}
    """
    ranks = 1
    for name in RANKS:
        count = old.get(name, old_defaults()[name])
        ranks *= count if _is_count(count) else 0
    if not _is_count(old[key]) or old[key] < 1 or ranks < 1:
        return None
    return {COUNTED_OVER_RANKS[key]: max(1, old[key] // ranks)}


def convert_split(old: Values) -> Values | None:
    """Sequences split over ranks (Ulysses) are whole here, and the ranks that shared one pool their token budgets.

    >>> old = {"critic.ulysses_sequence_parallel_size": 2, "critic.ppo_max_token_len_per_gpu": 4096}
    >>> convert_split(old)
    {'critic.ulysses_sequence_parallel_size': 1, 'critic.ppo_max_token_len_per_gpu': 8192}
    """
    sizes = {key: value for key, value in old.items() if key not in BUDGETS}
    if not all(_is_count(size) and size >= 1 for size in sizes.values()) or set(sizes.values()) <= {1}:
        return None
    new = dict.fromkeys(sizes, 1)
    for budget, splits in BUDGETS.items():
        if budget in old:
            new[budget] = old[budget] * _ranks_of(splits, sizes) if _is_count(old[budget]) else old[budget]
    return new


def _ranks_of(splits: tuple[str, ...], sizes: Values) -> int:
    """The ranks that a sequence is split over; the reference's, where unset, follow the actor's."""
    given = [sizes[key] for key in splits if key in sizes]
    if not given and splits == REF_SPLIT:
        return _ranks_of(ACTOR_SPLIT, sizes)
    return max(given, default=1)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _micro_batch(key: str) -> Conversion:
    return Conversion(
        (key,),
        lambda old: convert_micro_batch(key, old),
        "it counted over all ranks; results do not depend on it",
        beside=RANKS,
    )


OLD_CODE = (
    *CONVERSIONS,
    Conversion(
        (ENGINE,),
        convert_engine,
        "played by this build's own engine hf; tokens are sampled from the same distribution, not the same tokens",
    ),
    *(Conversion((key,), convert_top_k, "no cut") for key in (f"{ROLLOUT}.top_k", f"{ROLLOUT}.val_kwargs.top_k")),
    *(_micro_batch(key) for key in COUNTED_OVER_RANKS),
    Conversion(
        (*ACTOR_SPLIT, *REF_SPLIT, *CRITIC_SPLIT, *BUDGETS),
        convert_split,
        "sequences are not split over ranks: more memory, same result",
    ),
)
"""``CONVERSIONS``, and those for code that was written for verl."""
