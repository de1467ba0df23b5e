"""The policy and the value model: a transformer of the Hugging Face hub, read at the tokens that RL needs.

Everything that touches a parameter happens inside ``forward``, because only there has FSDP gathered them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.utils import logging as transformers_logging

from runtime.engine.attention import PACKED_CAUSAL
from runtime.engine.log_probs import ROW_MULTIPLE, token_log_probs
from runtime.engine.spec import ModelSpec
from runtime.errors import ConfigError
from runtime.trajectories import TrajectoryBatch

# Some architectures change the logits after the head; log-probs from hidden states would leave that out.
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """A causal language model that returns log-probabilities of response tokens."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.packed, self.chunk_rows = spec.use_remove_padding, spec.chunk_rows
        with _quiet_loading():
            self.hf = AutoModelForCausalLM.from_pretrained(spec.path, **_loading_arguments(spec))
        changed = [name for name in _LOGIT_CHANGES if getattr(self.hf.config, name, None) not in (None, 1.0)]
        if changed:
            raise ConfigError(
                f"model {spec.path!r} sets {', '.join(changed)}, which the engine's log-probs do not apply; "
                "choose a model without it"
            )
        _enable_checkpointing(self.hf, spec)

    def forward(
        self, batch: TrajectoryBatch, temperature: float = 1.0, also: Collection[str] = ("entropy",)
    ) -> dict[str, Tensor]:
        """``log_probs [T]`` of ``softmax(logits / temperature)``, and what ``also`` names (see ``TokenScores``)."""
        hidden = _predicting_states(self.hf.base_model, batch, self.packed)
        head = self.hf.get_output_embeddings()
        labels = batch["input_ids"][batch.predictors + 1]
        scores = token_log_probs(
            hidden,
            head.weight,
            labels,
            temperature,
            head.bias,
            with_entropy="entropy" in also,
            with_sum_pi_squared="sum_pi_squared" in also,
            chunk_rows=self.chunk_rows,
        )
        return {name: values for name, values in scores._asdict().items() if values is not None}


class ValueModel(nn.Module):
    """A token classifier with one label: the value of the state before each response token."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.packed = spec.use_remove_padding
        arguments = _loading_arguments(spec)
        arguments["config"].num_labels = 1
        # The classifier's dropout defaults to 0.1, which would make values random in train mode.
        arguments["config"].classifier_dropout = 0.0
        with _quiet_loading():
            self.hf, report = AutoModelForTokenClassification.from_pretrained(
                spec.path, output_loading_info=True, **arguments
            )
        if any(name.startswith("score.") for name in report["missing_keys"]):
            _seed_head(self.hf.score, spec.seed, self.hf.config.initializer_range)
        _enable_checkpointing(self.hf, spec)

    def forward(self, batch: TrajectoryBatch) -> dict[str, Tensor]:
        """``values [T]``, float32: read at the token before each response token, as verl's critic does."""
        hidden = _predicting_states(self.hf.base_model, batch, self.packed).float()
        # A matmul with one column takes another kernel for each row count; a sum over each row's own products does not.
        values = (hidden * self.hf.score.weight.float()).sum(-1)
        return {"values": values if self.hf.score.bias is None else values + self.hf.score.bias.float()}


def _loading_arguments(spec: ModelSpec) -> dict[str, Any]:
    attention = PACKED_CAUSAL if spec.use_remove_padding else "sdpa"
    config = AutoConfig.from_pretrained(
        spec.path, trust_remote_code=spec.trust_remote_code, attn_implementation=attention, **spec.override_config
    )
    # A cache would turn off the packed path's mask-free attention and is useless in training.
    config.use_cache = False
    return {
        "config": config,
        "dtype": spec.dtype,
        "attn_implementation": attention,
        "trust_remote_code": spec.trust_remote_code,
    }


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """No progress bar a rank, and no report on a value head that is missing: ``_seed_head`` makes it."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _enable_checkpointing(model: Any, spec: ModelSpec) -> None:
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _seed_head(head: nn.Linear, seed: int, std: float) -> None:
    """Draw a new value head from ``seed``, so that all ranks and both trainers start from the same one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(torch.empty(head.weight.shape).normal_(0.0, std, generator=generator))
        if head.bias is not None:
            head.bias.zero_()


def _predicting_states(decoder: nn.Module, batch: TrajectoryBatch, packed: bool) -> Tensor:
    """Last hidden states ``[T, H]`` at the token before each response token."""
    return _packed_states(decoder, batch) if packed else _padded_states(decoder, batch)


def _packed_states(decoder: nn.Module, batch: TrajectoryBatch) -> Tensor:
    lengths = batch.sequences.lengths.tolist()
    filler = -batch.sequences.num_tokens % ROW_MULTIPLE
    input_ids, position_ids = batch["input_ids"], batch["position_ids"]
    if filler:
        # One more sequence that nothing reads keeps the row count at a multiple, for bits that do not depend on it.
        lengths.append(filler)
        input_ids = torch.cat([input_ids, input_ids.new_zeros(filler)])
        position_ids = torch.cat([position_ids, torch.arange(filler, device=position_ids.device)])
    hidden = decoder(
        input_ids=input_ids[None], position_ids=position_ids[None], sequence_lengths=lengths, use_cache=False
    ).last_hidden_state
    return hidden[0][batch.predictors]


def _padded_states(decoder: nn.Module, batch: TrajectoryBatch) -> Tensor:
    rows, places = batch.sequences.rows, batch.sequences.positions
    shape = (len(batch), int(batch.sequences.lengths.max()))

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put_((rows, places), values)

    hidden = decoder(
        input_ids=padded(batch["input_ids"]),
        position_ids=padded(batch["position_ids"]),
        attention_mask=padded(torch.ones_like(batch["input_ids"])),
        use_cache=False,
    ).last_hidden_state
    return hidden[rows[batch.predictors], places[batch.predictors]]
