"""The recipe's functions in the core's registries, random batches in the packed layout, and losses computed on them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from shared_algos.advantages import ADVANTAGES, AdvantageInputs
from shared_algos.aggregation import Denominators, LossOutput
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.segments import Segments

RECIPE = Path(__file__).with_name("recipe.py")
HORIZON = 16.0
ACTOR = OmegaConf.create(
    {
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "clip_ratio_c": 3.0,
        "loss_scale_factor": None,
        "policy_loss": {"loss_mode": "recipe", "penalty": 0.5},
    }
)


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def recipe(registries: None) -> ModuleType:  # noqa: ARG001
    """The recipe's module, freshly run, so that its functions are registered."""
    spec = importlib.util.spec_from_file_location("recipe_of_the_tests", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Batch:
    """Columns ``[T]`` and ``[B]`` of B rows; every row is a session of its own."""

    segments: Segments
    groups: Tensor
    sessions: Tensor
    mask: Tensor
    rewards: Tensor
    values: Tensor
    old: Tensor
    new: Tensor
    advantages: Tensor
    weights: Tensor

    def take(self, rows: Tensor | Sequence[int]) -> Batch:
        """The given rows in the given order."""
        rows = torch.as_tensor(rows, dtype=torch.int64)
        tokens = self.segments.token_indices(rows)
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "segments"}
        picked = {name: c[rows if name in ("groups", "sessions") else tokens] for name, c in columns.items()}
        return Batch(segments=Segments.from_lengths(self.segments.lengths[rows]), **picked)

    def inputs(self, **more: object) -> AdvantageInputs:
        zeros = torch.zeros_like(self.sessions)
        columns = {"values": self.values, **more}
        return AdvantageInputs(self.rewards, self.mask, self.segments, self.groups, self.sessions, zeros, **columns)

    def denominators(self) -> Denominators:
        return Denominators.count(self.mask, self.segments, HORIZON)

    def loss(
        self,
        name: str,
        mode: str = "token-mean",
        denominators: Denominators | None = None,
        weighted: bool = False,
        config: PolicyLossConfig | None = None,
    ) -> tuple[LossOutput, Tensor]:
        """A loss by name and its gradient ``[T]``."""
        new = self.new.clone().requires_grad_()
        inputs = PolicyLossInputs(
            new,
            self.old,
            self.advantages,
            self.mask,
            self.segments,
            denominators or self.denominators(),
            rollout_is_weights=self.weights if weighted else None,
        )
        config = config or PolicyLossConfig(clip_ratio_high=0.28, source=ACTOR)
        output = compute_policy_loss(name, inputs, replace(config, loss_agg_mode=mode))
        output.loss.backward()
        return output, new.grad


def _random_batch(seed: int, dtype: torch.dtype = torch.float32, rejected: bool = True) -> Batch:
    """2 to 6 groups of 1 to 5 rows of 1 to 11 tokens in random order, with masked tokens and, if wanted, whole rows."""
    random = torch.Generator().manual_seed(seed)

    def numbers(low: int, high: int, size: int) -> Tensor:
        return torch.randint(low, high, (size,), generator=random)

    per_group = numbers(1, 6, int(numbers(2, 7, 1)))
    groups = torch.arange(len(per_group)).repeat_interleave(per_group)
    order = torch.randperm(len(groups), generator=random)
    segments = Segments.from_lengths(numbers(1, 12, len(groups)))
    mask = (torch.rand(segments.num_tokens, generator=random) < 0.8).long()
    mask[segments.offsets[:-1]] = 1
    if rejected:
        mask *= segments.spread(torch.rand(len(groups), generator=random) < 0.9)
    rewards, values, old, step, advantages, weights = torch.randn(
        6, segments.num_tokens, generator=random, dtype=torch.float64
    ).to(dtype)
    last = segments.offsets[1:] - 1
    outcomes = torch.zeros_like(rewards).index_copy_(0, last, rewards[last])
    return Batch(
        segments,
        groups[order],
        torch.arange(len(groups))[order],
        mask,
        outcomes,
        values,
        old,
        old + 0.5 * step,
        advantages,
        weights.exp(),
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
    """``random_batch(seed, dtype=torch.float32, rejected=True)``: the same batch for the same seed."""
    return _random_batch
