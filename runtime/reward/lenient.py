"""Managers for functions that may hang or fail: such an answer scores 0 and training goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from runtime.errors import RewardError
from runtime.reward.functions import ComputeScore, call_async, is_async
from runtime.reward.managers import NaiveRewardManager, RewardItem, RewardResult

logger = logging.getLogger(__name__)


class PrimeRewardManager(NaiveRewardManager):
    """As ``naive``, but many answers at once, each for so long at most (verl's ``prime``).

    timeout: seconds of one answer. max_concurrent: answers in work at once. An answer that takes longer, or whose
    function raises or returns no finite number, scores 0; ``timeout`` or ``error`` in the extra info says so. A
    function that is not async runs in a thread, which cannot be stopped: late ones end when they end.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: ComputeScore,
        reward_fn_key: str = "data_source",
        locate: Callable[[int], str] = "row {}".format,
        timeout: float = 300.0,
        max_concurrent: int = 64,
    ) -> None:
        super().__init__(tokenizer, compute_score, reward_fn_key, locate)
        self.timeout = timeout
        self.max_concurrent = max_concurrent
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run_single(self, item: RewardItem) -> RewardResult:
        """Score ``item``; raises RewardError only for a row that lacks what scoring needs."""
        arguments = self.arguments(item)
        self._settle_loop()
        try:
            await self._admitted()
            async with self._slots:
                returned = await asyncio.wait_for(self._call(arguments), self.timeout)
            return self.result(_first(returned), self.where(item))
        except TimeoutError:
            problem: dict[str, Any] = {"timeout": True}
        except Exception as error:  # whatever the user's function raises
            problem = {"error": str(error)}
        logger.warning("%s scores 0: %s", self.where(item), problem)
        return RewardResult(0.0, {"acc": 0.0, **problem})

    def _settle_loop(self) -> None:
        # What asyncio's locks wait on belongs to one loop; a caller may bring a new one each time.
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._new_limits()

    def _new_limits(self) -> None:
        self._slots = asyncio.Semaphore(self.max_concurrent)

    async def _admitted(self) -> None:
        """Wait until the next answer may be scored."""

    async def _call(self, arguments: dict[str, Any]) -> Any:
        if is_async(self.compute_score):
            return await self.compute_score(**arguments)
        return await call_async(await _in_own_thread(lambda: self.compute_score(**arguments)))


class RateLimitedRewardManager(PrimeRewardManager):
    """As ``prime``, with limits a minute, for functions that call a paid service (verl's ``rate_limited``).

    max_rpm: requests a minute. max_tpm: tokens a minute, of which each request counts as
    ``estimated_tokens_per_request``. ``None``: no limit. Every agent-loop worker keeps to them by itself.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: ComputeScore,
        reward_fn_key: str = "data_source",
        locate: Callable[[int], str] = "row {}".format,
        timeout: float = 300.0,
        max_concurrent: int = 1,
        max_rpm: float | None = None,
        max_tpm: float | None = None,
        estimated_tokens_per_request: int = 2000,
    ) -> None:
        super().__init__(tokenizer, compute_score, reward_fn_key, locate, timeout, max_concurrent)
        self.rates = [
            (amount, per_minute)
            for amount, per_minute in ((1, max_rpm), (estimated_tokens_per_request, max_tpm))
            if per_minute is not None
        ]

    def _new_limits(self) -> None:
        super()._new_limits()
        self._buckets = [(amount, TokenBucket(per_minute / 60)) for amount, per_minute in self.rates]

    async def _admitted(self) -> None:
        for amount, bucket in self._buckets:
            await bucket.take(amount)


class TokenBucket:
    """Amounts taken at ``per_second`` on average; what was not taken is kept for one second."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    async def take(self, amount: float) -> None:
        """Wait until ``amount`` has come in."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            # The time from which on the bucket is full again, were nothing more taken; a second's worth may be ahead.
            self._free_at = max(self._free_at, now) + amount / self.per_second
            wait = self._free_at - now - max(1.0, amount / self.per_second)
        if wait > 0:
            await asyncio.sleep(wait)


async def _in_own_thread(call: Callable[[], Any]) -> Any:
    """What ``call`` returns. No pool: threads that never end would fill it up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(outcome: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(outcome) if error is None else future.set_exception(error)

    def run() -> None:
        outcome, failure = None, None
        try:
            outcome = call()
        except Exception as error:  # handed to the caller
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, outcome, failure)

    threading.Thread(target=run, name="reward", daemon=True).start()
    return await future


def _first(returned: Any) -> Any:
    """The score of a function that returns several things, the score first, as PRIME's do."""
    if isinstance(returned, tuple | list):
        if not returned:
            raise RewardError(f"expected a score, got {returned!r}")
        return returned[0]
    return returned
