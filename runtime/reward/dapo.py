"""DAPO's soft punishment of overlong answers (arXiv:2503.14476, section 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from runtime.errors import ConfigError
from runtime.reward.functions import ComputeScore
from runtime.reward.managers import NaiveRewardManager, RewardItem, RewardResult


@dataclass(frozen=True)
class OverlongBuffer:
    """The last ``len`` tokens of ``max_resp_len``, over which the penalty grows from 0 to ``penalty_factor``."""

    max_resp_len: int
    len: int
    penalty_factor: float
    log: bool

    @classmethod
    def from_settings(cls, settings: Any, max_resp_len: int | None) -> OverlongBuffer | None:
        """The buffer that ``overlong_buffer_cfg`` describes (a mapping or an object); ``None`` where it is off.

        Raises ConfigError naming the keys.
        """
        read: Any = getattr(settings, "get", lambda name, default: getattr(settings, name, default))
        if settings is None or not read("enable", False):
            return None
        length, key = read("len", 0), "reward.reward_kwargs.overlong_buffer_cfg"
        if max_resp_len is None:
            raise ConfigError(f"{key}.enable=true needs reward.reward_kwargs.max_resp_len, the longest response")
        if not 0 < length <= max_resp_len:
            raise ConfigError(
                f"{key}.len={length} must be above 0 and at most max_resp_len={max_resp_len}; "
                f"{key}.enable=false turns the penalty off"
            )
        return cls(max_resp_len, length, read("penalty_factor", 1.0), read("log", False))

    def penalty(self, num_tokens: int) -> float:
        """What a response of ``num_tokens`` loses, 0 or below.

        >>> OverlongBuffer(max_resp_len=20, len=4, penalty_factor=1.0, log=False).penalty(18)
        -0.5
        """
        return min((self.max_resp_len - self.len - num_tokens) / self.len * self.penalty_factor, 0.0)


class DAPORewardManager(NaiveRewardManager):
    """As ``naive``, less a penalty for responses that reach into the overlong buffer (verl's ``dapo``)."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: ComputeScore,
        reward_fn_key: str = "data_source",
        locate: Callable[[int], str] = "row {}".format,
        max_resp_len: int | None = None,
        overlong_buffer_cfg: Any = None,
    ) -> None:
        super().__init__(tokenizer, compute_score, reward_fn_key, locate)
        self.overlong_buffer = OverlongBuffer.from_settings(overlong_buffer_cfg, max_resp_len)

    def adjusted(self, item: RewardItem, result: RewardResult) -> RewardResult:
        """Less the penalty; with ``log`` set, the extra info has ``overlong_reward`` and ``overlong``."""
        if self.overlong_buffer is None:
            return result
        penalty = self.overlong_buffer.penalty(len(item.response_ids))
        logged = {"overlong_reward": penalty, "overlong": penalty < 0} if self.overlong_buffer.log else {}
        return RewardResult(result.reward_score + penalty, {**result.reward_extra_info, **logged})
