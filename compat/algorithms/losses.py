"""Policy losses with verl's signatures, on ``[B, R]``: registered in the core, and got from it by name."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import update_wrapper
from typing import Any, TypeVar

import torch
from torch import Tensor

from compat.algorithms.builtin_losses import BUILT_IN_LOSSES, padded_policy_loss
from compat.algorithms.configs import ConfigView
from compat.algorithms.mini_batch import ActiveMiniBatch, activate, warn_once
from compat.algorithms.padded import PaddedRows
from compat.algorithms.signatures import Signature, calls, is_running, module_of, qualname_of, same_definition
from compat.errors import CustomFunctionError
from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig, PolicyLossInputs, Selection
from shared_algos.policy_losses import register_policy_loss as register_packed
from shared_algos.registry import Level

Function = TypeVar("Function", bound=Callable[..., Any])

PARAMETERS = ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config")
"""What every version of verl passes, in the order in which 0.5 passed it by position."""

WEIGHTS = "rollout_is_weights"
"""What verl passes from 0.6 on."""

OLD_METRICS = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
"""The names that verl's actor gave to the values behind the loss, up to 0.6.0."""


def register_policy_loss(name: str) -> Callable[[Function], Function]:
    """Register a function with verl's signature under a name, and return the function as it is.

    ``(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)``, tensors
    ``[B, R]``, ``-> (loss, metrics)``. Older ones do without ``rollout_is_weights`` (up to 0.5), name their parameters
    as they like, or return (loss, clip fraction, KL, lower clip fraction) (up to 0.6.0). ``response_mask`` is bool as
    in verl 0.9, int64 for functions that do without the weights. Masked positions of the other columns are 0, rows
    whose mask is all 0 are not shown; R is the length of the longest.

    A loss divided by ``agg_loss`` (or by the counts of ``config.global_batch_info``) is taken as the micro-batch's
    part of the mini-batch. Any other is taken as a mean over the micro-batch's rows, weighted by their share, and
    reported once as not independent of the split. Metrics are means over tokens and weighted by their share.

    A built-in loss that looks at whole mini-batches (clip_cov, kl_cov, bypass_mode) does so where the function calls it
    by name, too: the function is then run once more, on the mini-batch as a whole.

    A built-in name may be taken over, with a warning. A required parameter that nothing provides is refused when a
    config chooses the loss. Raises ``DuplicateAlgorithmError`` where another function of a recipe has the name.
    """

    def decorate(function: Function) -> Function:
        loss = PaddedLoss(function)
        known = POLICY_LOSSES.get(name).function if name in POLICY_LOSSES.names() else None
        if isinstance(known, PaddedLoss) and same_definition(known.function, function):
            return function
        _register(name, loss, replace=not isinstance(known, PaddedLoss))
        return function

    return decorate


def _register(name: str, loss: PaddedLoss, replace: bool) -> None:
    register_packed(
        name,
        needs=loss.needs,
        level=Level.BATCH,
        reference=loss.signature.function,
        select=loss.select if loss.wraps else None,
        replace=replace,
    )(loss)


def get_policy_loss_fn(name: str) -> Callable[..., Any]:
    """The loss of a name as a function with verl's signature: a recipe's own, or a built-in one on ``[B, R]``.

    A recipe's function that took over a built-in name and asks for it while it runs gets the built-in.

    Raises ``UnknownAlgorithmError`` (a ``ValueError``, as in verl) with the nearest names.
    """
    entry = POLICY_LOSSES.get(name)
    if not isinstance(entry.function, PaddedLoss):
        return padded_policy_loss(entry)
    function = entry.function.function
    if name in BUILT_IN_LOSSES and is_running(function):
        return padded_policy_loss(BUILT_IN_LOSSES[name])
    return function


class PolicyLossRegistry(MutableMapping[str, Callable[..., Any]]):
    """verl's ``POLICY_LOSS_REGISTRY``, a view of the core's: names to functions with verl's signature."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in POLICY_LOSSES.names():
            raise KeyError(name)
        return get_policy_loss_fn(name)

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        """Register ``function``, in place of whatever has the name."""
        _register(name, PaddedLoss(function), replace=True)

    def __delitem__(self, name: str) -> None:
        """Drop a recipe's function; a built-in one that it took over is back."""
        POLICY_LOSSES.restore(name, BUILT_IN_LOSSES.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(POLICY_LOSSES.names())

    def __len__(self) -> int:
        return len(POLICY_LOSSES.names())


class PaddedLoss:
    """The core's policy loss around a function with one of verl's signatures."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function, updated=())
        self.__module__, self.__qualname__ = module_of(function), qualname_of(function)
        self.function = function
        self.signature = Signature.of(function)
        self.names = _names_by_position(self.signature)
        self.takes_weights = self.signature.accepts(WEIGHTS)
        self.needs = set(self.signature.required) - {*self.names.values(), WEIGHTS, "rollout_log_probs"}
        self.wraps = sorted(name for name, entry in BUILT_IN_LOSSES.items() if entry.select and calls(function, name))

    def __call__(self, inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
        """The micro-batch's part of the loss. Raises ``CustomFunctionError`` for a result that is none of verl's."""
        if inputs.rollout_is_weights is not None and not self.takes_weights and "bypass_mode" not in self.wraps:
            raise CustomFunctionError(
                f"policy loss {self.signature.function} has no parameter {WEIGHTS!r}, so that the weights of "
                "algorithm.rollout_correction.rollout_is would have no effect; add it, or set rollout_is=null"
            )
        rows, counts = _shown_rows(inputs)
        if not rows.rows.numel():
            # Nothing to show the function; other ranks wait for the backward pass, so the graph must be there.
            return LossOutput(inputs.at_mask(inputs.log_probs).double().sum(), {})
        mini_batch = ActiveMiniBatch(
            self.signature.function, inputs.denominators, config, selection=self._selection(inputs, rows)
        )
        with activate(mini_batch):
            returned = self.function(**self._arguments(inputs, config, rows, mini_batch))
        loss, metrics = self._loss_and_metrics(returned, inputs)
        if not mini_batch.divided:
            loss = loss * (rows.rows.numel() / mini_batch.sequences)
            warn_once(self.signature.function, "is not divided by agg_loss: " + _NOT_INVARIANT)
        share = float(counts.sum()) / mini_batch.tokens
        return LossOutput(loss, {name: value * share for name, value in metrics.items()})

    def select(self, inputs: PolicyLossInputs, config: PolicyLossConfig, generator: torch.Generator) -> Selection:
        """What the built-in loss that the function calls decides about a whole mini-batch."""
        rows, _ = _shown_rows(inputs)
        mini_batch = ActiveMiniBatch(self.signature.function, inputs.denominators, config, generator=generator)
        if rows.rows.numel():
            with activate(mini_batch):
                self.function(**self._arguments(inputs, config, rows, mini_batch))
        if mini_batch.selected is None:
            return Selection()
        shape = (rows.rows.numel(), rows.width)
        columns = {name: rows.pack(column.view(shape)) for name, column in mini_batch.selected.columns.items()}
        return Selection(**columns, metrics=mini_batch.selected.metrics)

    def _selection(self, inputs: PolicyLossInputs, rows: PaddedRows) -> Selection | None:
        """The rows' share of what ``select`` decided; ``None`` where nobody asked for it."""
        if inputs.selected is not None:
            return Selection(selected=rows.pad(inputs.selected).flatten())
        if self.wraps != ["bypass_mode"]:
            return None
        weights = inputs.rollout_is_weights
        return Selection(
            response_mask=rows.pad(inputs.response_mask).flatten(),
            rollout_is_weights=None if weights is None else rows.pad(weights).flatten(),
        )

    def _arguments(
        self, inputs: PolicyLossInputs, config: PolicyLossConfig, rows: PaddedRows, mini_batch: ActiveMiniBatch
    ) -> dict[str, Any]:
        mask = rows.pad(inputs.response_mask.bool())
        weights = inputs.rollout_is_weights
        values = {
            "old_log_prob": rows.pad(inputs.at_mask(inputs.old_log_probs)),
            "log_prob": rows.pad(inputs.at_mask(inputs.log_probs)),
            "advantages": rows.pad(inputs.at_mask(inputs.advantages)),
            "response_mask": mask if self.takes_weights else mask.long(),
            "loss_agg_mode": config.loss_agg_mode,
            "config": ConfigView({"global_batch_info": mini_batch.info}, config.source, config),
        }
        arguments = {self.names[name]: value for name, value in values.items() if name in self.names}
        if self.takes_weights:
            arguments[WEIGHTS] = None if weights is None else rows.pad(inputs.at_mask(weights.detach()))
        # Between 0.5 and 0.6 verl passed these, or None where the loss was not to correct by them.
        if "rollout_log_probs" in self.signature.required:
            arguments["rollout_log_probs"] = None
        return arguments

    def _loss_and_metrics(self, returned: Any, inputs: PolicyLossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss as float64 scalar and its metrics, in any of verl's forms."""
        match returned:
            case (loss, Mapping() as metrics):
                pass
            case (loss, _, _, _):
                metrics = dict(zip(OLD_METRICS, returned[1:], strict=True))
            case _:
                got = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
                raise self._refused(f"returned {got}; expected (loss, metrics), or the four values of verl up to 0.6.0")
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            got = f"{loss.dtype} {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise self._refused(f"returned a loss that is {got}; expected one floating-point number as a tensor")
        if inputs.log_probs.requires_grad and not loss.requires_grad:
            raise self._refused("returned a loss without gradient: it does not depend on log_prob, or was detached")
        device = inputs.log_probs.device
        return loss.reshape(()).double(), {name: self._metric(name, metrics[name], device) for name in metrics}

    def _metric(self, name: Any, value: Any, device: torch.device) -> Tensor:
        is_number = isinstance(value, numbers.Real) or (
            isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
        )
        if not isinstance(name, str) or not is_number:
            got = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise self._refused(f"returned the metric {name!r} as {got}; expected one number under a text")
        number = value.detach() if isinstance(value, Tensor) else value
        return torch.as_tensor(float(number), dtype=torch.float64, device=device)

    def _refused(self, reason: str) -> CustomFunctionError:
        return CustomFunctionError(f"policy loss {self.signature.function} {reason}")


_NOT_INVARIANT = (
    "its value is taken as a mean over the rows of each micro-batch, so that it depends on how the mini-batch is split"
)


def _shown_rows(inputs: PolicyLossInputs) -> tuple[PaddedRows, Tensor]:
    """The rows with a mask-1 token, and how many each row has, ``[B]``."""
    counts = inputs.segments.sum(inputs.response_mask.bool())
    return PaddedRows((counts > 0).nonzero().squeeze(1), inputs.segments), counts


def _names_by_position(signature: Signature) -> dict[str, str]:
    """The function's own name of each of ``PARAMETERS`` that it takes.

    A required parameter under another name is what verl 0.5 passed at its position.
    """
    names = {name: name for name in PARAMETERS if signature.accepts(name)}
    own = {*PARAMETERS, WEIGHTS, "rollout_log_probs"}
    for position, name in zip(PARAMETERS, signature.required, strict=False):
        if name not in own and (position not in signature.required):
            names[position] = name
    return names
