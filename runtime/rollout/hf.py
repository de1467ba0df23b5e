"""``rollout.name=hf``: batched decoding with a Hugging Face model, on any device, with nothing else installed.

On a CPU with ``MKL_CBWR=AVX2`` in the environment before the process starts, a request's tokens and log-probs are
bitwise the same in any batch. Measured to be enough, and needed: every matmul has at least ``MIN_ROWS`` rows, keys and
values come in whole buckets (``kv_cache.BUCKET``), and a prompt is prefilled among prompts of its own bucket, so that
the place of its tokens depends on its length alone. Elsewhere equal batches give equal bits, which is what
``rollout.deterministic`` arranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.errors import ConfigError, RolloutError
from runtime.fs import local_model
from runtime.rollout.kv_cache import BucketedCache, bucketed
from runtime.rollout.sampler import Draw, Sampler
from runtime.rollout.types import GenerationOutput, GenerationRequest
from runtime.rollout.weights import load_weights

MIN_ROWS = 4
"""Rows of the smallest batch: below 4 MKL takes another matmul kernel, whose sums round differently (measured)."""

PREFILL_TOKENS = 16384
"""Prompt tokens, padding included, of one prefill: bounds the memory of activations for many or long prompts."""


@dataclass
class _Response:
    """A request and what has been generated for it so far."""

    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def done(self) -> bool:
        return self.stopped or len(self.tokens) == self.request.params.max_tokens

    def append(self, token: int, log_prob: float, eos_token_ids: frozenset[int]) -> None:
        if log_prob != log_prob:
            raise RolloutError(
                f"request {self.request.request_id!r}: the logits of response token {len(self.tokens)} hold NaN or "
                "infinity; the model's weights are broken, look at the last update's gradient norm"
            )
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        self.stopped = token in eos_token_ids and not self.request.params.ignore_eos

    def output(self) -> GenerationOutput:
        log_probs = self.log_probs if self.request.params.logprobs else None
        return GenerationOutput(self.tokens, log_probs, "stop" if self.stopped else "length")


@dataclass
class _Batch:
    """N rows in step: row i holds ``responses[i]``, and rows beyond ``responses`` repeat row 0 to fill ``MIN_ROWS``.

    starts: the cache slot of each row's first prompt token, int64 ``[N]``; the slots before it are padding.
    logits: of the next token, ``[N, V]``.
    """

    responses: list[_Response]
    sampler: Sampler
    starts: Tensor
    cache: BucketedCache
    logits: Tensor

    def record(self, draw: Draw, eos_token_ids: frozenset[int]) -> None:
        """Append one token to every response that is not done."""
        tokens, log_probs = draw.tokens.tolist(), draw.log_probs.tolist()
        for row, response in enumerate(self.responses):
            if not response.done:
                response.append(tokens[row], log_probs[row], eos_token_ids)

    def shrink(self, tokens: Tensor) -> Tensor:
        """Drop finished rows once they are half of the batch, and return the ``tokens`` of the rows that stay.

        Not sooner, because to drop rows copies the cache.
        """
        live = [row for row, response in enumerate(self.responses) if not response.done]
        rows = filled(live)
        if 2 * len(rows) > len(self.starts):
            return tokens
        index = torch.tensor(rows, device=self.starts.device)
        self.responses = [self.responses[row] for row in live]
        self.sampler = self.sampler.select(rows)
        self.starts = self.starts[index]
        self.cache.select(index)
        return tokens[index]


class HFGenerator:
    """Generates with a Hugging Face causal language model; implements ``types.Generator``.

    model_path: what ``runtime.fs.local_model`` reads. dtype: a torch dtype's name. max_num_seqs: rows decoded at once.
    eos_token_ids: what ends a response; by default what the model's generation config says.

    Raises ConfigError for a dtype or limit that cannot be, DataError for a model that cannot be read.
    """

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        max_num_seqs: int = 256,
        eos_token_ids: Sequence[int] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if max_num_seqs < 1:
            raise ConfigError(f"rollout.max_num_seqs is {max_num_seqs}; a batch has at least 1 request")
        self._device = torch.device(device)
        self._max_num_seqs = max_num_seqs
        self._model = _load(model_path, dtype, trust_remote_code).to(self._device)
        self._eos_token_ids = frozenset(_eos_token_ids(self._model) if eos_token_ids is None else eos_token_ids)
        self._asleep = False

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end a response."""
        return self._eos_token_ids

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Answer ``requests`` in their order, ``max_num_seqs`` at a time.

        Raises RolloutError, naming the request, for a prompt the model cannot take and for logits that are not finite.
        """
        if self._asleep:
            raise RolloutError("the rollout engine is asleep; call wake_up() before generate()")
        for request in requests:
            self._check(request)
        responses = [_Response(request) for request in requests]
        for start in range(0, len(responses), self._max_num_seqs):
            self._complete(responses[start : start + self._max_num_seqs])
        return [response.output() for response in responses]

    def update_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copy ``weights`` over the model's, in place; see :func:`runtime.rollout.weights.load_weights`."""
        load_weights(self._model, weights)

    def sleep(self) -> None:
        """Move the model to host memory, so that training has the device; on a CPU there is nothing to give back."""
        self._asleep = True
        self._model.to("cpu")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake_up(self) -> None:
        """Move the model back to its device."""
        self._model.to(self._device)
        self._asleep = False

    def _check(self, request: GenerationRequest) -> None:
        vocabulary = self._model.get_input_embeddings().num_embeddings
        low, high = min(request.prompt_ids), max(request.prompt_ids)
        if low < 0 or high >= vocabulary:
            bad = low if low < 0 else high
            raise RolloutError(
                f"request {request.request_id!r} has token id {bad}, outside the model's vocabulary of {vocabulary}; "
                "the tokenizer and the model do not belong together"
            )
        room = getattr(self._model.config, "max_position_embeddings", None)
        length, new = len(request.prompt_ids), request.params.max_tokens
        if room is not None and length + new > room:
            raise RolloutError(
                f"request {request.request_id!r} has {length} prompt tokens and asks for {new} more, but the model has "
                f"{room} positions; lower data.max_prompt_length or data.max_response_length"
            )

    def _complete(self, responses: list[_Response]) -> None:
        """Fill ``responses``, which are decoded together."""
        batch = self._start(responses)
        for position in range(max(response.request.params.max_tokens for response in responses)):
            draw = batch.sampler(batch.logits, position)
            batch.record(draw, self._eos_token_ids)
            if all(response.done for response in batch.responses):
                return
            self._step(batch, batch.shrink(draw.tokens))

    def _start(self, responses: Sequence[_Response]) -> _Batch:
        """Prefill every prompt among those of its width, then put all of them into one batch."""
        rows: list[_Response] = []
        caches: list[BucketedCache] = []
        logits: list[Tensor] = []
        for group in _prefill_groups(responses):
            cache, last = self._prefill([response.request.prompt_ids for response in group])
            rows += group
            caches.append(cache)
            logits.append(last)
        cache = BucketedCache.merge(caches)
        index = filled(list(range(len(rows))))
        lengths = torch.tensor([len(rows[row].request.prompt_ids) for row in index], device=self._device)
        starts = cache.length - lengths
        cache.select(torch.tensor(index, device=self._device))
        sampler = Sampler([rows[row].request.params for row in index], self._device)
        return _Batch(rows, sampler, starts, cache, torch.cat(logits)[index])

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[BucketedCache, Tensor]:
        """The cache and the last token's logits ``[n, V]`` of n prompts of one width."""
        rows = filled(list(range(len(prompts))))
        width = bucketed(len(prompts[0]))
        input_ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for place, row in enumerate(rows):
            input_ids[place, width - len(prompts[row]) :] = torch.tensor(prompts[row])
        starts = width - torch.tensor([len(prompts[row]) for row in rows])
        cache = BucketedCache()
        logits = self._forward(input_ids.to(self._device), starts.to(self._device), cache)
        cache.select(torch.arange(len(prompts), device=self._device))
        return cache, logits[: len(prompts)]

    def _step(self, batch: _Batch, tokens: Tensor) -> None:
        """Feed ``tokens [N]``; the batch's logits are then those of the token after them."""
        batch.logits = self._forward(tokens[:, None], batch.starts, batch.cache)

    def _forward(self, input_ids: Tensor, starts: Tensor, cache: BucketedCache) -> Tensor:
        """The last token's logits ``[N, V]`` for ``input_ids [N, L]`` that follow what ``cache`` holds."""
        slots = torch.arange(cache.length + input_ids.shape[1], device=self._device)
        positions = slots[cache.length :] - starts[:, None]
        output = self._model(
            input_ids=input_ids,
            attention_mask=(slots >= starts[:, None]).long(),
            position_ids=positions.clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def filled(rows: list[int]) -> list[int]:
    """``rows``, the first of them repeated until there are ``MIN_ROWS``."""
    return rows + rows[:1] * (MIN_ROWS - len(rows))


def _prefill_groups(responses: Sequence[_Response]) -> Iterator[list[_Response]]:
    """Cut into groups of one prompt width, at most ``PREFILL_TOKENS`` tokens each; order within a width is kept.

    The width is a function of the prompt's length alone, not of the longest prompt beside it.
    """

    def width_of(response: _Response) -> int:
        return bucketed(len(response.request.prompt_ids))

    for width, members in groupby(sorted(responses, key=width_of), key=width_of):
        group = list(members)
        size = max(MIN_ROWS, PREFILL_TOKENS // width)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _load(model_path: str, dtype: str, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise ConfigError(f"rollout.dtype is {dtype!r}; use the name of a torch dtype, such as float32 or bfloat16")
    logging.disable_progress_bar()  # of a worker process: its bars would cut through the driver's
    model = AutoModelForCausalLM.from_pretrained(
        local_model(model_path), dtype=torch_dtype, trust_remote_code=trust_remote_code
    )
    return model.eval()


def _eos_token_ids(model: Any) -> list[int]:
    ids = model.generation_config.eos_token_id
    ids = model.config.eos_token_id if ids is None else ids
    if ids is None:
        raise ConfigError("the model's generation config names no eos token; give eos_token_ids")
    return [ids] if isinstance(ids, int) else list(ids)
