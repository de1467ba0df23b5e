"""The bits of a response do not depend on what it is decoded with (FACTS.md, "Bitwise decoding on a CPU")."""

import os
import random

import pytest
import torch

from runtime.rollout.hf import HFGenerator
from runtime.rollout.types import GenerationOutput, GenerationRequest, RequestOrder, SamplingParams

PROMPT_LENGTHS = (5, 17, 30, 31, 48, 62, 63, 64, 65, 90, 100, 126, 127, 128, 150, 192)
"""On both sides of a bucket's end, so that one batch mixes prompts of one, two, three and four buckets."""


def make_requests(vocabulary: int, max_tokens: int) -> list[GenerationRequest]:
    """Sixteen requests; more than half of them end early, so that rows leave the batch on the way."""
    draw = random.Random(0)
    return [
        GenerationRequest(
            f"request {number}",
            [draw.randrange(vocabulary) for _ in range(length)],
            SamplingParams(
                max_tokens=max_tokens // 3 if number % 3 == 0 else max_tokens,
                temperature=0.7,
                top_p=0.9 if number % 4 == 1 else 1.0,
                seed=1000 + number,
                logprobs=True,
            ),
            RequestOrder(number, 0),
        )
        for number, length in enumerate(PROMPT_LENGTHS)
    ]


def splits(count: int) -> dict[str, list[list[int]]]:
    shuffled = list(range(count))
    random.Random(1).shuffle(shuffled)
    return {
        "again": [list(range(count))],
        "shuffled": [shuffled],
        "7+9": [shuffled[:7], shuffled[7:]],
        "2+3+11": [shuffled[:2], shuffled[2:5], shuffled[5:]],
        "one by one": [[row] for row in range(count)],
    }


def decode(generator: HFGenerator, requests: list[GenerationRequest], split: list[list[int]]) -> list[GenerationOutput]:
    """The outputs of ``requests``, in their order, each part of ``split`` generated on its own."""
    outputs: dict[int, GenerationOutput] = {}
    for rows in split:
        outputs |= dict(zip(rows, generator.generate([requests[row] for row in rows]), strict=True))
    return [outputs[row] for row in range(len(requests))]


@pytest.mark.parametrize("threads", [1, 2])
def test_responses_are_bitwise_the_same_in_any_batch(threads):
    assert os.environ["MKL_CBWR"] == "AVX2", "tests/conftest.py sets it before torch is imported"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = HFGenerator("tiny://model?seed=0")
        requests = make_requests(vocabulary=100, max_tokens=40)
        together = generator.generate(requests)
        for name, split in splits(len(requests)).items():
            apart = decode(generator, requests, split)
            different = [row for row, output in enumerate(together) if apart[row] != output]
            assert not different, f"{name}: {different}"
    finally:
        torch.set_num_threads(before)
    assert {output.stop_reason for output in together} == {"stop", "length"}
