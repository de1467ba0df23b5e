"""Random ragged batches in the packed layout, and what can be done to one without changing what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from shared_algos.advantages import AdvantageInputs
from shared_algos.aggregation import Denominators, LossOutput
from shared_algos.kl import kl_loss
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.segments import Segments
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss

HORIZON = 12


@dataclass
class Batch:
    """Columns ``[T]`` (old, new, rewards, ...) and ``[B]`` (groups, sessions, indices) of B ragged rows."""

    segments: Segments
    mask: Tensor
    rewards: Tensor
    values: Tensor
    old: Tensor
    new: Tensor
    targets: Tensor
    """``[T]``: advantages for a policy loss, returns for a value loss."""
    groups: Tensor
    sessions: Tensor
    indices: Tensor

    def take(self, rows: Tensor) -> Batch:
        """The given rows in the given order."""
        tokens = self.segments.token_indices(rows)
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "segments"}
        picked = {name: c[rows if name in ("groups", "sessions", "indices") else tokens] for name, c in columns.items()}
        return Batch(segments=Segments.from_lengths(self.segments.lengths[rows]), **picked)

    def padded(self, width: int) -> Batch:
        """Every row filled up to ``width`` tokens, the new ones mask 0, reward 0 and NaN in every other column."""
        segments = Segments.from_lengths([width] * self.segments.num_rows)
        place = segments.offsets[:-1][self.segments.rows] + self.segments.positions
        changes = {}
        for name, fill in (
            {"mask": 0, "rewards": 0.0} | dict.fromkeys(("values", "old", "new", "targets"), torch.nan)
        ).items():
            column = getattr(self, name)
            changes[name] = column.new_full((segments.num_tokens,), fill).index_copy(0, place, column)
        return replace(self, segments=segments, **changes)

    def inputs(self) -> AdvantageInputs:
        """Inputs of any estimator."""
        return AdvantageInputs(
            self.rewards, self.mask, self.segments, self.groups, self.sessions, self.indices, values=self.values
        )

    def denominators(self) -> Denominators:
        return Denominators.count(self.mask, self.segments, HORIZON)

    def loss(self, name: str, mode: str, denominators: Denominators) -> tuple[LossOutput, Tensor]:
        """A loss by name (``value``, ``kl`` or a policy loss) and its gradient ``[T]``."""
        new = self.new.clone().requires_grad_()
        common = (self.mask, self.segments, denominators)
        if name == "value":
            config = ValueLossConfig(loss_agg_mode=mode)
            output = compute_value_loss(ValueLossInputs(new, self.old, self.targets, *common), config)
        elif name == "kl":
            output = LossOutput(kl_loss(new, self.old, *common, "k3", mode), {})
        else:
            inputs = PolicyLossInputs(new, self.old, self.targets, *common)
            output = compute_policy_loss(name, inputs, PolicyLossConfig(loss_agg_mode=mode))
        output.loss.backward()
        return output, new.grad


def _random_batch(seed: int, dtype: torch.dtype = torch.float32) -> Batch:
    """Up to 6 groups of 1 to 5 sessions of 1 to 3 outputs of 0 to 11 tokens, in random order, some masked whole."""
    random = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, size: int) -> Tensor:
        return torch.randint(low, high, (size,), generator=random)

    per_group = numbers(1, 6, int(numbers(1, 7, 1)))
    groups = torch.arange(len(per_group)).repeat_interleave(per_group)
    outputs = Segments.from_lengths(numbers(1, 4, len(groups)))
    order = torch.randperm(outputs.num_tokens, generator=random)
    segments = Segments.from_lengths(numbers(0, 12, len(order)))
    mask = (torch.rand(segments.num_tokens, generator=random) < 0.8).long()
    mask *= segments.spread(torch.rand(len(order), generator=random) < 0.9)
    columns = torch.randn(5, segments.num_tokens, generator=random, dtype=torch.float64).to(dtype)
    return Batch(
        segments,
        mask,
        *columns,
        groups=groups[outputs.rows][order],
        sessions=Segments.from_lengths(per_group).positions[outputs.rows][order],
        indices=outputs.positions[order],
    )


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Waking a second thread costs more than these small sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """``random_batch(seed, dtype=torch.float32)``: the same batch for the same seed."""
    return _random_batch
