"""One rank's share of a model under FSDP2: inference and training on packed trajectories.

Plain ``torch.distributed``: the caller has initialised the default process group (gloo on a CPU, NCCL on GPUs) and
calls every method on all ranks. Denominators, gradients and metrics are summed over ranks here and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from runtime.engine.losses import Loss
from runtime.engine.micro_batches import MicroBatchLimit, same_count_on_all_ranks
from runtime.engine.mini_batch import gather_rows
from runtime.engine.models import PolicyModel, ValueModel
from runtime.engine.optim import build_optimizer, clip_and_step
from runtime.engine.spec import EngineSpec, ModelSpec, Role
from runtime.engine.weights import digest_of, fingerprint_of, full_weights
from runtime.errors import BatchSizeError, ConfigError
from runtime.identity import mixed_seed
from runtime.trajectories import TrajectoryBatch
from shared_algos.aggregation import Denominators, to_float32


class Engine:
    """A policy or value model sharded over all ranks, with its optimizer unless it only infers."""

    def __init__(self, spec: EngineSpec, device: torch.device, rank: int, world_size: int) -> None:
        self.spec, self.device, self.rank, self.world_size = spec, device, rank, world_size
        self.model = _sharded_model(spec, device, world_size)
        self.updates = 0
        """Training steps so far, those before a checkpoint included."""
        self.optimizer = self.schedule = None
        if spec.optimizer is not None:
            self.optimizer, self.schedule = build_optimizer(self.model.parameters(), spec.optimizer)

    @torch.no_grad()
    def infer(
        self, batch: TrajectoryBatch, temperature: float = 1.0, also: Collection[str] = ("entropy",)
    ) -> dict[str, Tensor]:
        """``log_probs [T]`` and what else ``also`` names (see ``TokenScores``), or ``values [T]``.

        batch: this rank's rows with ``input_ids`` and ``position_ids``. Micro-batches may reorder rows, results do not.
        Results are float32 on the CPU.
        """
        self.model.eval()
        results: dict[str, Tensor] = {}
        for rows in self._micro_batches(batch, self.spec.infer_limit):
            outputs = self._forward(self._micro_batch(batch, rows), temperature, also)
            places = batch.responses.token_indices(torch.tensor(rows, dtype=torch.int64))
            for name, values in outputs.items():
                column = results.setdefault(name, torch.zeros(batch.responses.num_tokens, dtype=values.dtype))
                # The row that stands in for an empty micro-batch has no place, and its result is dropped.
                column[places] = values[: places.numel()].cpu()
        self._drop_gathered_parameters()
        return results

    def train(
        self,
        batch: TrajectoryBatch,
        mini_batch_rows: int,
        loss: Loss,
        *,
        epochs: int = 1,
        shuffle: bool = False,
        seed: int = 42,
        temperature: float = 1.0,
    ) -> list[dict[str, float]]:
        """Go over this rank's rows ``epochs`` times, one optimizer step a mini-batch; metrics of each step in order.

        mini_batch_rows: this rank's rows of one mini-batch; its k-th slice is its share of global mini-batch k. With
        ``shuffle`` rows are permuted once an epoch by a generator of (seed, epoch), the same on all ranks.
        Raises BatchSizeError when the rows do not divide.
        """
        if mini_batch_rows < 1 or len(batch) % mini_batch_rows:
            raise BatchSizeError(
                f"a rank's {len(batch)} trajectories do not divide into mini-batches of {mini_batch_rows}; "
                "change data.train_batch_size, rollout.n or ppo_mini_batch_size"
            )
        return [
            self.train_mini_batch(batch.select(rows), loss, temperature, draw=(seed, epoch, number))
            for epoch in range(epochs)
            for number, rows in enumerate(_row_order(len(batch), shuffle, seed, epoch).split(mini_batch_rows))
        ]

    def train_mini_batch(
        self, batch: TrajectoryBatch, loss: Loss, temperature: float = 1.0, draw: tuple[int, int, int] = (0, 0, 0)
    ) -> dict[str, float]:
        """One optimizer step on this rank's share of a mini-batch; metrics are those of the whole mini-batch.

        draw: seed (of the training step), epoch and mini-batch, for losses that draw tokens.
        Returns what the loss reports and, under its prefix, ``loss``, ``grad_norm`` (before clipping) and
        ``update_skipped`` (1 when the norm was not finite and nothing was updated). Sums stay float64 over
        micro-batches and ranks and are cast to float32 once, so that they do not depend on the split.
        """
        if self.optimizer is None or self.spec.optimizer is None:
            raise ConfigError("this engine was built without an optimizer and only infers")
        decided: Mapping[str, float] = {}
        if loss.select is not None:
            batch, decided = self._with_selection(batch, loss, temperature, draw)
        self.model.train()
        denominators = self._denominators(batch, loss.horizon)
        totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64, device=self.device))
        for rows in self._micro_batches(batch, self.spec.train_limit):
            micro_batch = self._micro_batch(batch, rows)
            outputs = self._forward(micro_batch, temperature, ("entropy",) if loss.needs_entropy else ())
            part = loss(outputs, micro_batch, denominators)
            # FSDP averages gradients over ranks, but parts add up: their denominators are global already.
            (part.loss * self.world_size).backward()
            for name, value in {**part.metrics, f"{loss.prefix}/loss": part.loss}.items():
                totals[name] += value.detach()
        norm = clip_and_step(self.optimizer, self.spec.optimizer.grad_clip)
        return {
            **self._summed_over_ranks(totals),
            **loss.constants,
            **decided,
            f"{loss.prefix}/grad_norm": norm,
            f"{loss.prefix}/update_skipped": float(not np.isfinite(norm)),
        }

    def lr_step(self) -> float:
        """Move the schedule one training step on; returns the learning rate from now on, as verl reports it."""
        if self.schedule is None:
            raise ConfigError("this engine was built without an optimizer and has no learning rate")
        self.schedule.step()
        self.updates += 1
        return float(self.schedule.get_last_lr()[0])

    def full_state_dict(self) -> dict[str, np.ndarray]:
        """All weights under their Hugging Face names, float32, tied ones once; empty except on rank 0."""
        return full_weights(self.model, self.rank)

    def fingerprint(self) -> int:
        """The sum of this rank's weights read as integers: cheap, and another one after any training step."""
        return fingerprint_of(self.model.parameters())

    def digest(self) -> dict[str, str]:
        """sha256 of each weight's bytes; empty except on rank 0."""
        return digest_of(self.full_state_dict())

    def _forward(self, batch: TrajectoryBatch, temperature: float, also: Collection[str]) -> dict[str, Tensor]:
        if self.spec.role is Role.VALUE:
            return self.model(batch)
        return self.model(batch, temperature, also)

    def _micro_batches(self, batch: TrajectoryBatch, limit: MicroBatchLimit) -> Iterator[list[int]]:
        if not len(batch):
            raise BatchSizeError(
                f"rank {self.rank} has no rows; fill the batch to a multiple of {self.world_size} rows"
            )
        yield from same_count_on_all_ranks(limit.split(batch.sequences.lengths.tolist()), self.device)

    def _micro_batch(self, batch: TrajectoryBatch, rows: list[int]) -> TrajectoryBatch:
        """The rows, on the device. For none, the shortest row with mask 0: other ranks wait for this one's forward."""
        if rows:
            return batch.select(rows).to(self.device)
        stand_in = batch.select([int(batch.sequences.lengths.argmin())])
        mask = torch.zeros(stand_in.responses.num_tokens, dtype=torch.int64)
        return stand_in.with_columns({"response_mask": mask}).to(self.device)

    def _drop_gathered_parameters(self) -> None:
        """Free what a forward gathered: no backward pass does, and the next step would leave those copies stale."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _with_selection(
        self, batch: TrajectoryBatch, loss: Loss, temperature: float, draw: tuple[int, int, int]
    ) -> tuple[TrajectoryBatch, Mapping[str, float]]:
        """This rank's rows with the columns that the loss decides for the whole mini-batch, and its figures."""
        assert loss.select is not None
        log_probs = self.infer(batch, temperature, also=())["log_probs"]
        columns = {name: batch[name] for name in loss.selects_by}
        rows = gather_rows(batch.keys, batch.responses, {"log_probs": log_probs, **columns}, self.device)
        generator = torch.Generator().manual_seed(mixed_seed(*draw))
        selection = loss.select(rows, generator)
        own = {name: column[rows.own] for name, column in selection.columns.items()}
        return batch.with_columns(own), selection.metrics

    def _denominators(self, batch: TrajectoryBatch, horizon: float) -> Denominators:
        local = Denominators.count(batch["response_mask"], batch.responses, horizon)
        counts = torch.tensor([float(local.tokens), float(local.sequences)], dtype=torch.float64, device=self.device)
        dist.all_reduce(counts)
        return Denominators(counts[0], counts[1], horizon)

    def _summed_over_ranks(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Totals by name; a name that a rank does not have (a loss of a recipe may leave one out) counts 0 there."""
        of_ranks: list[Any] = [None] * self.world_size
        dist.all_gather_object(of_ranks, list(totals))
        names = list(dict.fromkeys(chain.from_iterable(of_ranks)))
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        sums = torch.stack([totals.get(name, nothing) for name in names])
        dist.all_reduce(sums)
        return dict(zip(names, to_float32(sums).tolist(), strict=True))


def _sharded_model(spec: EngineSpec, device: torch.device, world_size: int) -> Any:
    """Load the whole model on every rank, then keep this rank's part of each decoder layer and of the rest."""
    model = (PolicyModel if spec.role is Role.POLICY else ValueModel)(spec.model).to(device)
    shard = partial(
        fully_shard,
        mesh=init_device_mesh(device.type, (world_size,)),
        mp_policy=_mixed_precision(spec.model),
        reshard_after_forward=spec.model.reshard_after_forward,
    )
    layers = set(model.hf._no_split_modules or ())
    for module in [module for module in model.modules() if type(module).__name__ in layers]:
        shard(module)
    return shard(model)


def _mixed_precision(spec: ModelSpec) -> MixedPrecisionPolicy:
    if spec.compute_dtype == spec.dtype:
        return MixedPrecisionPolicy()
    # Gradients are reduced in float32, as verl's default mixed precision does.
    return MixedPrecisionPolicy(param_dtype=spec.compute_dtype, reduce_dtype=torch.float32)


def _row_order(rows: int, shuffle: bool, seed: int, epoch: int) -> Tensor:
    if not shuffle:
        return torch.arange(rows)
    return torch.randperm(rows, generator=torch.Generator().manual_seed(mixed_seed(seed, epoch)))
