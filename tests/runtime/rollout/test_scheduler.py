import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.errors import RolloutError
from runtime.rollout.hf import HFGenerator
from runtime.rollout.scheduler import RequestScheduler
from runtime.rollout.types import GenerationOutput, GenerationRequest, RequestOrder, SamplingParams


class Recorder:
    """A generator that answers at once and keeps what it was given; batches that hold ``poison`` fail."""

    def __init__(self, seconds: float = 0.0, poison: str = "") -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self._seconds, self._poison = seconds, poison

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        self.threads.add(threading.get_ident())
        time.sleep(self._seconds)
        self.batches.append([request.request_id for request in requests])
        if self._poison in self.batches[-1]:
            raise ValueError("out of memory, say")
        return [GenerationOutput([request.order.turn], None, "length") for request in requests]


def request(prompt: int, session: int, turn: int = 0, length: int = 3, seed: int = 0) -> GenerationRequest:
    ids = [(7 * prompt + place) % 90 for place in range(length)]
    params = SamplingParams(max_tokens=8, seed=seed, logprobs=True)
    return GenerationRequest(f"{prompt}_{session}_{turn}", ids, params, RequestOrder(prompt, session, turn))


def scheduler(generator, *, deterministic=True, max_num_seqs=4, timeout_s=30.0) -> RequestScheduler:
    return RequestScheduler(
        generator,
        ThreadPoolExecutor(1),
        deterministic=deterministic,
        max_num_seqs=max_num_seqs,
        timeout_s=timeout_s,
    )


async def play(
    server: RequestScheduler, sessions: list[tuple[int, int]], order_seed: int, turns: Callable[[int], int]
) -> dict[tuple[int, int], list[GenerationOutput]]:
    """Play every session, in an order and with pauses drawn from ``order_seed``; prompt p takes ``turns(p)`` turns."""
    draw = random.Random(order_seed)
    answers: dict[tuple[int, int], list[GenerationOutput]] = {}

    async def run(prompt: int, session: int, pauses: list[float]) -> None:
        answers[prompt, session] = []
        try:
            for turn in range(turns(prompt)):
                await asyncio.sleep(pauses[turn])
                seed = 1000 * prompt + 10 * session + turn
                asked = request(prompt, session, turn, length=5 + 40 * turn + session, seed=seed)
                answers[prompt, session].append(await server.generate(asked))
        finally:
            server.finish((prompt, session))

    started = draw.sample(sessions, len(sessions))
    await asyncio.gather(*(run(*name, [draw.random() / 100 for _ in range(4)]) for name in started))
    return answers


SESSIONS = [(prompt, session) for prompt in range(3) for session in range(2)]


def test_waves_are_the_same_whatever_the_order_of_arrival():
    """Sessions of one to three turns: each wave holds one request of each live session, sorted, cut at four."""
    seen = []
    for order_seed in range(5):
        recorder = Recorder()

        async def main(recorder=recorder, order_seed=order_seed):
            server = scheduler(recorder)
            server.expect(SESSIONS)
            return await play(server, SESSIONS, order_seed, lambda prompt: 1 + prompt % 3)

        answers = asyncio.run(main())
        assert [output.token_ids for output in answers[2, 1]] == [[0], [1], [2]]
        seen.append(recorder.batches)
    first = ["0_0_0", "0_1_0", "1_0_0", "1_1_0"]
    assert seen[0] == [first, ["2_0_0", "2_1_0"], ["1_0_1", "1_1_1", "2_0_1", "2_1_1"], ["2_0_2", "2_1_2"]]
    assert all(batches == seen[0] for batches in seen)


def test_a_real_model_answers_the_same_bitwise_whatever_the_order_of_arrival():
    generator = HFGenerator("tiny://model?seed=0")

    async def main(order_seed):
        server = scheduler(generator)
        server.expect(SESSIONS)
        return await play(server, SESSIONS, order_seed, lambda prompt: 1 + prompt % 2)

    answers = [asyncio.run(main(order_seed)) for order_seed in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len({tuple(outputs[0].token_ids) for outputs in answers[0].values()}) == len(SESSIONS)


def test_steps_follow_each_other():
    recorder = Recorder()

    async def main():
        server = scheduler(recorder)
        for step in range(3):
            server.expect(SESSIONS[: 2 + step])
            await play(server, SESSIONS[: 2 + step], step, lambda _: 1)

    asyncio.run(main())
    assert [len(batch) for batch in recorder.batches] == [2, 3, 4]


def test_a_session_that_ends_without_asking_does_not_hold_up_the_others():
    recorder = Recorder()

    async def main():
        server = scheduler(recorder)
        server.expect([(0, 0), (0, 1)])
        waiting = asyncio.create_task(server.generate(request(0, 0)))
        await asyncio.sleep(0.05)
        assert not recorder.batches
        server.finish((0, 1))
        return await waiting

    assert asyncio.run(main()).token_ids == [0]


def test_a_session_that_never_comes_is_given_up_by_name():
    async def main():
        server = scheduler(Recorder(), timeout_s=0.1)
        server.expect([(0, 0), (0, 1), (4, 2)])
        outcomes = await asyncio.gather(
            server.generate(request(0, 0)), server.generate(request(0, 1)), return_exceptions=True
        )
        with pytest.raises(RolloutError, match="session 2 of prompt 4 was not expected in this step, or was given up"):
            await server.generate(request(4, 2))
        return outcomes

    for outcome, name in zip(asyncio.run(main()), ("0_0_0", "0_1_0"), strict=True):
        assert isinstance(outcome, RolloutError)
        assert str(outcome).startswith(f"request '{name}': gave up after 0.1 s without news of session 2 of prompt 4;")


def test_an_unexpected_request_a_second_request_and_an_unfinished_step_are_refused():
    async def main():
        server = scheduler(Recorder())
        with pytest.raises(RolloutError, match="session 0 of prompt 0 was not expected"):
            await server.generate(request(0, 0))
        server.expect([(0, 0), (0, 1)])
        waiting = asyncio.create_task(server.generate(request(0, 0)))
        await asyncio.sleep(0)
        with pytest.raises(RolloutError, match=r"'0_0_1'.*already waiting for request '0_0_0'"):
            await server.generate(request(0, 0, turn=1))
        with pytest.raises(
            RolloutError, match="expects 1 sessions, but session 0 of prompt 0, session 1 of prompt 0 of"
        ):
            server.expect([(1, 0)])
        server.finish((0, 1))
        await waiting

    asyncio.run(main())


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_error_reaches_every_request_of_its_batch_and_no_other(deterministic):
    async def main():
        server = scheduler(Recorder(poison="0_1_0"), deterministic=deterministic, max_num_seqs=2)
        server.expect(SESSIONS[:4])
        return await asyncio.gather(
            *(server.generate(request(*session)) for session in SESSIONS[:4]), return_exceptions=True
        )

    failed, poisoned, *well = asyncio.run(main())
    assert str(failed) == "request '0_0_0': its batch of 2 failed: ValueError: out of memory, say"
    assert str(poisoned).startswith("request '0_1_0': its batch of 2 failed")
    assert all(isinstance(outcome, RolloutError) for outcome in (failed, poisoned))
    assert [output.stop_reason for output in well] == ["length", "length"]


def test_a_generator_that_answers_too_few_is_an_error_and_no_hang():
    class Forgetful(Recorder):
        def generate(self, requests):
            return super().generate(requests)[1:]

    async def main():
        await scheduler(Forgetful(), deterministic=False).generate(request(0, 0))

    with pytest.raises(RolloutError, match="'0_0_0': its batch of 1 failed: ValueError"):
        asyncio.run(main())


def test_requests_that_arrive_together_share_a_batch_and_later_ones_fill_the_next():
    recorder = Recorder(seconds=0.1)

    async def main():
        server = scheduler(recorder, deterministic=False, max_num_seqs=4)
        early = [asyncio.create_task(server.generate(request(0, session))) for session in range(6)]
        await asyncio.sleep(0.06)  # the first four are being decoded
        late = [asyncio.create_task(server.generate(request(1, session))) for session in range(2)]
        await asyncio.gather(*early, *late)

    asyncio.run(main())
    assert recorder.batches == [["0_0_0", "0_1_0", "0_2_0", "0_3_0"], ["0_4_0", "0_5_0", "1_0_0", "1_1_0"]]


def test_the_event_loop_stays_free_and_calls_wait_for_the_batch_on_one_thread():
    recorder = Recorder(seconds=0.2)
    main_thread = threading.get_ident()
    ticks = 0

    async def main():
        nonlocal ticks
        server = scheduler(recorder, deterministic=False)
        waiting = asyncio.create_task(server.generate(request(0, 0)))
        await asyncio.sleep(0.05)
        between = asyncio.create_task(server.call(lambda: (threading.get_ident(), len(recorder.batches))))
        while not waiting.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return await between

    thread, batches_before = asyncio.run(main())
    assert ticks > 5
    assert batches_before == 1
    assert recorder.threads == {thread}
    assert thread != main_thread


def test_a_cancelled_agent_loop_leaves_its_wave_whole():
    recorder = Recorder(seconds=0.05)

    async def main():
        server = scheduler(recorder)
        server.expect([(0, 0), (0, 1)])
        cancelled = asyncio.create_task(server.generate(request(0, 0)))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await server.generate(request(0, 1))

    assert asyncio.run(main()).token_ids == [0]
    assert recorder.batches == [["0_0_0", "0_1_0"]]
