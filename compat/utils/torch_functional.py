"""``verl.utils.torch_functional``: log-probs and masks of padded tensors, padding, schedules, values over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from compat.algorithms.torch_functional import (
    clip_by_value,
    entropy_from_logits,
    logprobs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from compat.jagged import jagged, unjag
from compat.utils.errors import NotBuiltError, PartitionError, PromptLengthError
from runtime.engine.optim import lr_factor
from runtime.engine.spec import OptimizerSpec

TRUNCATIONS = ("left", "right", "middle", "error")


def gather_from_labels(data: Tensor, label: Tensor) -> Tensor:
    """``data [..., V]`` at ``label [...]``."""
    return data.gather(-1, label.unsqueeze(-1)).squeeze(-1)


logprobs_from_logits_naive = logprobs_from_logits_v2 = logprobs_from_logits


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """Entropy of softmax(``logits [T, V]``), float32 ``[T]``, so many rows at a time."""
    return torch.cat([entropy_from_logits(rows.float()) for rows in logits.split(chunk_size)])


def calculate_sum_pi_squared_from_logits(logits: Tensor) -> Tensor:
    """Sum of squared probabilities of softmax(``logits [..., V]``)."""
    return torch.exp(torch.logsumexp(2.0 * logits, dim=-1) - 2.0 * torch.logsumexp(logits, dim=-1))


def log_probs_from_logits_response(input_ids: Tensor, logits: Tensor, response_length: int) -> Tensor:
    """Log-probs of the last ``response_length`` tokens of ``input_ids [B, S]``, of ``logits [B, S, V]``."""
    return logprobs_from_logits(logits[:, -response_length - 1 : -1], input_ids[:, -response_length:])


def get_response_mask(response_id: Tensor, eos_token: int | list[int] = 2, dtype: torch.dtype = torch.int64) -> Tensor:
    """1 up to and with the first end-of-sequence token of each row of ``response_id [B, R]``."""
    ends = torch.isin(response_id, torch.tensor(eos_token, device=response_id.device)).long()
    return ((ends.cumsum(dim=1) - ends) == 0).to(dtype)


def pad_2d_list_to_length(
    response: Sequence[Sequence[Any]], pad_token_id: Any, max_length: int | None = None
) -> Tensor:
    """Lists of different lengths as rows, right-padded to the longest, or to ``max_length`` where that is more."""
    width = max([*(len(row) for row in response), max_length or 0])
    return torch.tensor([[*row, *[pad_token_id] * (width - len(row))] for row in response])


def pad_sequence_to_length(tensors: Tensor, max_seq_len: int, pad_token_id: Any, left_pad: bool = False) -> Tensor:
    """``tensors [B, S]`` padded to ``[B, max_seq_len]``; wider ones as they are."""
    missing = max(0, max_seq_len - tensors.shape[-1])
    return functional.pad(tensors, (missing, 0) if left_pad else (0, missing), value=pad_token_id)


def postprocess_data(
    input_ids: Tensor,
    attention_mask: Tensor,
    max_length: int,
    pad_token_id: int,
    left_pad: bool = True,
    truncation: str = "error",
) -> tuple[Tensor, Tensor]:
    """Both ``[B, S]`` padded or cut to ``[B, max_length]``.

    truncation: ``left`` keeps the end, ``right`` the start, ``middle`` both, ``error`` raises ``PromptLengthError``.
    """
    if truncation not in TRUNCATIONS:
        raise NotBuiltError(f"truncation={truncation!r} is not one of {', '.join(TRUNCATIONS)}")
    width = input_ids.shape[-1]
    if width <= max_length:
        return (
            pad_sequence_to_length(input_ids, max_length, pad_token_id, left_pad),
            pad_sequence_to_length(attention_mask, max_length, 0, left_pad),
        )
    if truncation == "error":
        raise PromptLengthError(f"{width} tokens are more than max_length={max_length}; raise it, or set a truncation")
    head = {"left": 0, "right": max_length, "middle": max_length // 2}[truncation]
    kept = [*range(head), *range(width - (max_length - head), width)]
    return input_ids[:, kept], attention_mask[:, kept]


def tokenize_and_postprocess_data(
    prompt: str, tokenizer: Any, max_length: int, pad_token_id: int, left_pad: bool = True, truncation: str = "error"
) -> tuple[Tensor, Tensor]:
    """Tokens of ``prompt`` and their mask, each ``[1, max_length]``; see :func:`postprocess_data`."""
    encoded = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    return postprocess_data(
        encoded["input_ids"], encoded["attention_mask"], max_length, pad_token_id, left_pad, truncation
    )


def remove_pad_token(input_ids: Tensor, attention_mask: Tensor) -> list[list[int]]:
    """The tokens of each left-padded row of ``input_ids [B, S]``."""
    lengths = attention_mask.sum(dim=1).tolist()
    return [row[len(row) - length :].tolist() for row, length in zip(input_ids, lengths, strict=True)]


def get_unpad_data(attention_mask: Tensor) -> tuple[Tensor, Tensor, int]:
    """Flat positions of the tokens that exist, cumulative lengths int32 ``[B+1]``, the longest row."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    ends = functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return attention_mask.flatten().nonzero().flatten(), ends, int(lengths.max())


def split_dict_tensor_into_batches(tensors: TensorDict, batch_size: int) -> list[TensorDict]:
    """Parts of ``batch_size`` rows. Raises ``PartitionError`` where they do not divide."""
    if tensors.batch_size[0] % batch_size:
        raise PartitionError(f"{tensors.batch_size[0]} rows do not divide into batches of {batch_size}")
    return list(tensors.split(batch_size))


def post_process_logits(input_ids: Tensor, logits: Tensor, temperature: float, top_k: Any, top_p: Any) -> Tensor:  # noqa: ARG001
    """``logits`` divided by the temperature in place; top-k and top-p do not change log-probs, as in verl."""
    return logits if temperature == 1.0 else logits.div_(temperature)


def compute_grad_norm(model: nn.Module) -> float:
    """The sum of squares of all gradients (not its root, as in verl)."""
    return sum(
        float(parameter.grad.detach().square().sum()) for parameter in model.parameters() if parameter.grad is not None
    )


def expand_as_nested(tensor: Tensor, nested_tensor: Tensor) -> Tensor:
    """One value a row ``[B]`` repeated over the tokens of a jagged ``[B, j]``."""
    _, segments = unjag(nested_tensor)
    if len(tensor) != len(segments.lengths):
        raise PartitionError(f"{len(tensor)} values and {len(segments.lengths)} rows: give one for each row")
    return jagged(tensor.repeat_interleave(segments.lengths), segments)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """From 0 in equal steps over the warm-up, then constant."""
    spec = _schedule("constant", num_warmup_steps)
    return LambdaLR(optimizer, lr_factor(spec), last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    min_lr_ratio: float | None = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    init_lr_ratio: float | None = None,
    zero_indexed_step: bool = True,
) -> LambdaLR:
    """From ``init_lr_ratio`` in equal steps over the warm-up, then a cosine down to ``min_lr_ratio``.

    zero_indexed_step: the first step is step 0.
    """
    factor = lr_factor(_schedule("cosine", num_warmup_steps, num_training_steps, min_lr_ratio or 0.0, num_cycles))
    start, first = init_lr_ratio or 0.0, 0 if zero_indexed_step else 1

    def at(step: int) -> float:
        step += first
        return start + (1 - start) * factor(step) if step < num_warmup_steps else factor(step)

    return LambdaLR(optimizer, at, last_epoch)


def get_wsd_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    stable_ratio: float = 0.9,
) -> LambdaLR:
    """Warm-up from 0, constant for ``stable_ratio`` of the rest, then a cosine down to ``min_lr_ratio``, held."""
    decay_starts = num_warmup_steps + int(max(0, num_training_steps - num_warmup_steps) * stable_ratio)
    warm_up = lr_factor(_schedule("constant", num_warmup_steps))
    decay = lr_factor(_schedule("cosine", 0, max(1, num_training_steps - decay_starts), 0.0, num_cycles))

    def at(step: int) -> float:
        if step < decay_starts:
            return warm_up(step)
        return (
            min_lr_ratio + (1 - min_lr_ratio) * decay(step - decay_starts)
            if step < num_training_steps
            else min_lr_ratio
        )

    return LambdaLR(optimizer, at, last_epoch)


def _schedule(
    kind: str, warmup: int, total: int = 1, min_lr_ratio: float = 0.0, num_cycles: float = 0.5
) -> OptimizerSpec:
    return OptimizerSpec(
        lr=1.0,
        lr_warmup_steps=warmup,
        lr_warmup_steps_ratio=0.0,
        total_training_steps=max(1, total),
        lr_scheduler_type=kind,
        min_lr_ratio=min_lr_ratio,
        num_cycles=num_cycles,
    )


def broadcast_dict_tensor(tensors: Any, src: int, group: Any) -> None:
    """Every tensor as rank ``src`` has it, in place on all ranks of ``group`` (a collective call)."""
    for name in sorted(tensors.keys()):
        dist.broadcast(tensors[name], src=src, group=group)


def allgather_dict_tensors(tensors: Any, size: int, group: Any, dim: int = 0) -> Any:
    """Every tensor of the ``size`` ranks of ``group``, concatenated along ``dim`` (a collective call)."""
    gathered = {}
    for name in sorted(tensors.keys()):
        parts = [torch.empty_like(tensors[name]) for _ in range(size)]
        dist.all_gather(parts, tensors[name].contiguous(), group=group)
        gathered[name] = torch.cat(parts, dim=dim)
    if isinstance(tensors, TensorDict):
        return TensorDict(gathered, batch_size=tensors.batch_size[0] * size)
    return gathered


def allgather_dict_into_dict(data: dict[str, Any], group: Any = None) -> dict[str, list[Any]]:
    """The values of each name on every rank that has it, in rank order (a collective call)."""
    of_ranks: list[Any] = [None] * dist.get_world_size(group=group)
    dist.all_gather_object(of_ranks, data, group=group)
    collected: dict[str, list[Any]] = {}
    for name, value in (item for one in of_ranks for item in one.items()):
        collected.setdefault(name, []).append(value)
    return collected


def distributed_masked_mean(local_tensor: Tensor, local_mask: Tensor) -> Tensor:
    """Mean over mask-1 elements of all ranks (a collective call)."""
    total, count = masked_sum(local_tensor, local_mask), local_mask.sum()
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


def distributed_mean_max_min_std(
    local_tensor: Tensor, compute_max: bool = True, compute_min: bool = True, compute_std: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Mean, maximum, minimum and unbiased standard deviation over all ranks (collective calls)."""
    count = torch.tensor(local_tensor.numel(), device=local_tensor.device)
    dist.all_reduce(count)
    mean = _reduced(local_tensor.sum()) / count
    largest = _reduced(local_tensor.max(), dist.ReduceOp.MAX) if compute_max else None
    least = _reduced(local_tensor.min(), dist.ReduceOp.MIN) if compute_min else None
    std = (_reduced((local_tensor - mean).square().sum()) / (count - 1)).sqrt() if compute_std else None
    return mean, largest, least, std


def _reduced(value: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    dist.all_reduce(value, op=operation)
    return value


__all__ = [
    "allgather_dict_into_dict",
    "allgather_dict_tensors",
    "broadcast_dict_tensor",
    "calculate_sum_pi_squared_from_logits",
    "clip_by_value",
    "compute_grad_norm",
    "distributed_masked_mean",
    "distributed_mean_max_min_std",
    "entropy_from_logits",
    "entropy_from_logits_with_chunking",
    "expand_as_nested",
    "gather_from_labels",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_response_mask",
    "get_unpad_data",
    "get_wsd_schedule_with_warmup",
    "log_probs_from_logits_response",
    "logprobs_from_logits",
    "logprobs_from_logits_naive",
    "logprobs_from_logits_v2",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "pad_2d_list_to_length",
    "pad_sequence_to_length",
    "post_process_logits",
    "postprocess_data",
    "remove_pad_token",
    "split_dict_tensor_into_batches",
    "tokenize_and_postprocess_data",
]
