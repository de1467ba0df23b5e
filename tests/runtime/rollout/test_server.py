import asyncio
import os
from typing import Any

import pytest
import ray
import torch
from omegaconf import OmegaConf

from runtime.errors import ConfigError, RolloutError
from runtime.identity import PromptIdentity
from runtime.rollout.generators import generator_builder
from runtime.rollout.server import RolloutServer, generation_threads
from runtime.rollout.types import GenerationRequest, RequestOrder, SamplingParams

SESSIONS = [(prompt, session) for prompt in range(2) for session in range(3)]


def config(**rollout):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {"path": "tiny://model?seed=0", "trust_remote_code": False},
                "rollout": {"name": "hf", "dtype": "float32", "max_num_seqs": 256, "deterministic": True} | rollout,
            },
            "trainer": {"device": "cpu"},
            "runtime": {"torch_threads": 1, "rollout_timeout_s": 30},
        }
    )


def request(prompt: int, session: int) -> GenerationRequest:
    identity = PromptIdentity(seed=42, partition="train", step=1, row=prompt)
    params = SamplingParams(max_tokens=6, seed=identity.request_seed(session), logprobs=True)
    return GenerationRequest(f"{identity.uid}_{session}_0", [1, 9 + prompt], params, RequestOrder(prompt, session))


async def step(server: RolloutServer):
    await server.expect(SESSIONS)
    answers = await asyncio.gather(*(server.generate(request(*session)) for session in reversed(SESSIONS)))
    for session in SESSIONS:
        await server.finish(session)
    return answers


def test_a_step_sleep_and_new_weights():
    server = RolloutServer(config())

    async def main():
        first = await step(server)
        weights = {name: value.numpy().copy() for name, value in server._generator._model.state_dict().items()}
        await server.update_weights(weights, version=(1, 2))
        assert await server.holds() == (1, 2)
        await server.sleep()
        assert await server.holds() is None
        await server.update_weights(weights)
        assert await server.holds() is None  # nobody has named these
        again = await step(server)
        await server.update_weights({name: value * 0 for name, value in weights.items()})
        return first, again, await step(server)

    first, again, after = asyncio.run(main())
    assert first == again
    assert len({tuple(output.token_ids) for output in first}) == len(SESSIONS)
    uniform = -torch.tensor(104.0).log()
    assert all(torch.allclose(torch.tensor(output.log_probs), uniform) for output in after)


def test_the_generator_runs_with_the_threads_of_the_config():
    server = RolloutServer(config())
    assert asyncio.run(server._scheduler.call(torch.get_num_threads)) == 1
    assert generation_threads(OmegaConf.create({"runtime": {"torch_threads": None}})) == os.cpu_count()


def test_vllm_and_unknown_engines_are_refused():
    with pytest.raises(ConfigError, match=r"vllm.*later release"):
        RolloutServer(config(name="vllm"))
    with pytest.raises(ConfigError, match=r"'hff'; the rollout engines are \['hf'\]"):
        generator_builder("hff")


@pytest.mark.ray
def test_as_an_actor_it_answers_as_in_process_and_its_errors_keep_their_type(cluster):  # noqa: ARG001
    expected = asyncio.run(step(RolloutServer(config())))
    actor: Any = ray.remote(RolloutServer).options(num_cpus=0.1, max_concurrency=100).remote(config())
    try:
        ray.get(actor.expect.remote(SESSIONS))
        answers = ray.get([actor.generate.remote(request(*session)) for session in reversed(SESSIONS)], timeout=60)
        assert answers == expected
        with pytest.raises(RolloutError, match="session 0 of prompt 7 was not expected"):
            ray.get(actor.generate.remote(request(7, 0)), timeout=60)
    finally:
        ray.kill(actor)
