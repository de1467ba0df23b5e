"""Random ragged batches in the packed layout, and what can be done to one without changing what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

import pytest
import torch
from torch import Tensor

from shared_algos.advantages import AdvantageInputs
from shared_algos.aggregation import Denominators, LossOutput
from shared_algos.entropy import entropy_loss
from shared_algos.kl import kl_loss
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, compute_policy_loss, select_tokens
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.segments import Segments
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss

HORIZON = 12
ROW_COLUMNS = ("groups", "sessions", "indices", "baselines", "components")
NAN_IN_PADDING = ("values", "old", "new", "targets", "sum_pi_squared", "is_weights")


def policy_loss_config(name: str, mode: str) -> tuple[str, PolicyLossConfig]:
    """The registered name and settings under which every loss has something to decide in a batch of this size.

    ``bypass_mode/FORM`` is bypass mode with that loss type.
    """
    name, _, form = name.partition("/")
    correction = RolloutCorrectionConfig(
        rollout_is="token",
        rollout_is_batch_normalize=True,
        rollout_rs="seq_mean_k1",
        rollout_rs_threshold="0.5_2.0",
        loss_type=form or "ppo_clip",
    )
    config = PolicyLossConfig(
        loss_agg_mode=mode,
        clip_cov_ratio=0.2,
        clip_cov_lb=0.1,
        kl_cov_ratio=0.2,
        dro_beta=0.5,
        rollout_correction=correction,
    )
    return name, config


@dataclass
class Batch:
    """Columns ``[T]`` (old, new, rewards, ...) and of ``ROW_COLUMNS``, ``[B]``, of B ragged rows."""

    segments: Segments
    mask: Tensor
    rewards: Tensor
    values: Tensor
    old: Tensor
    new: Tensor
    targets: Tensor
    """``[T]``: advantages for a policy loss, returns for a value loss."""
    sum_pi_squared: Tensor
    """``[T]``, of either sign, as no real one is."""
    is_weights: Tensor
    groups: Tensor
    sessions: Tensor
    indices: Tensor
    baselines: Tensor
    """``[B]``: rewards of greedy responses."""
    components: Tensor
    """``[B, 3]``: components of the reward."""
    decided: dict[str, Tensor] = field(default_factory=dict)
    """``[T]`` each, optional inputs of policy losses, see ``selected``."""

    def take(self, rows: Tensor) -> Batch:
        """The given rows in the given order."""
        tokens = self.segments.token_indices(rows)
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("segments", "decided")}
        picked = {name: c[rows if name in ROW_COLUMNS else tokens] for name, c in columns.items()}
        decided = {name: column[tokens] for name, column in self.decided.items()}
        return Batch(segments=Segments.from_lengths(self.segments.lengths[rows]), decided=decided, **picked)

    def padded(self, width: int) -> Batch:
        """Every row filled up to ``width`` tokens, the new ones mask 0, reward 0 and NaN in every other column."""
        segments = Segments.from_lengths([width] * self.segments.num_rows)
        place = segments.offsets[:-1][self.segments.rows] + self.segments.positions
        changes = {}
        for name, fill in ({"mask": 0, "rewards": 0.0} | dict.fromkeys(NAN_IN_PADDING, torch.nan)).items():
            column = getattr(self, name)
            changes[name] = column.new_full((segments.num_tokens,), fill).index_copy(0, place, column)
        return replace(self, segments=segments, **changes)

    def inputs(self) -> AdvantageInputs:
        """Inputs of any estimator."""
        return AdvantageInputs(
            self.rewards,
            self.mask,
            self.segments,
            self.groups,
            self.sessions,
            self.indices,
            values=self.values,
            old_log_probs=self.old,
            sum_pi_squared=self.sum_pi_squared,
            rollout_is_weights=self.is_weights,
            reward_baselines=self.baselines,
            reward_components=self.components,
        )

    def suited(self, name: str) -> Batch:
        """The batch as the estimator accepts it: without sessions that are alone in their group for grpo_passk."""
        if name != "grpo_passk":
            return self
        live = self.segments.sum(self.mask) > 0
        sessions = torch.stack([self.groups[live], self.sessions[live]]).unique(dim=1)
        alone = (sessions[0][:, None] == self.groups).sum(0) == 1
        return replace(self, mask=self.mask * self.segments.spread(~alone))

    def denominators(self) -> Denominators:
        return Denominators.count(self.mask, self.segments, HORIZON)

    def selected(self, name: str, mode: str = "token-mean") -> Batch:
        """With weights, and with what policy loss ``name`` decides about the whole batch; rows take it with them."""
        if name in ("value", "kl", "entropy"):
            return self
        inputs = PolicyLossInputs(self.new, self.old, self.targets, self.mask, self.segments, self.denominators())
        name, config = policy_loss_config(name, mode)
        selection = select_tokens(name, inputs, config, torch.Generator().manual_seed(1))
        decided = {"rollout_is_weights": self.values.exp()} | ({} if selection is None else selection.columns)
        return replace(self, mask=decided.pop("response_mask", self.mask), decided=decided)

    def loss(self, name: str, mode: str, denominators: Denominators) -> tuple[LossOutput, Tensor]:
        """A loss by name (``value``, ``kl``, ``entropy`` or a policy loss) and its gradient ``[T]``."""
        new = self.new.clone().requires_grad_()
        common = (self.mask, self.segments, denominators)
        if name == "value":
            config = ValueLossConfig(loss_agg_mode=mode)
            output = compute_value_loss(ValueLossInputs(new, self.old, self.targets, *common), config)
        elif name == "kl":
            output = LossOutput(kl_loss(new, self.old, *common, "k3", mode), {})
        elif name == "entropy":
            output = LossOutput(entropy_loss(new, *common, mode), {})
        else:
            name, config = policy_loss_config(name, mode)
            output = compute_policy_loss(
                name, PolicyLossInputs(new, self.old, self.targets, *common, **self.decided), config
            )
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
    columns = torch.randn(7, segments.num_tokens, generator=random, dtype=torch.float64).to(dtype)
    columns[2:4] = -columns[2:4].abs()  # old and new are log-probs
    columns[0] *= segments.spread(torch.rand(len(order), generator=random) < 0.7)  # some rows earn nothing
    return Batch(
        segments,
        mask,
        *columns,
        groups=groups[outputs.rows][order],
        sessions=Segments.from_lengths(per_group).positions[outputs.rows][order],
        indices=outputs.positions[order],
        baselines=torch.randn(len(order), generator=random, dtype=torch.float64).to(dtype),
        components=torch.randn(len(order), 3, generator=random, dtype=torch.float64).to(dtype),
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
