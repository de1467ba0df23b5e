import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.errors import ConfigError, DataError, RolloutError
from runtime.fs import local_model
from runtime.rollout.hf import HFGenerator
from runtime.rollout.types import GenerationRequest, RequestOrder, SamplingParams

TINY = "tiny://model?seed=0"


def request(length: int, number: int = 0, **params) -> GenerationRequest:
    draw = random.Random(number)
    prompt = [draw.randrange(100) for _ in range(length)]
    settings = SamplingParams(**({"max_tokens": 12, "seed": number, "logprobs": True} | params))
    return GenerationRequest(f"request {number}", prompt, settings, RequestOrder(number, 0))


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(local_model(TINY), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def generator():
    return HFGenerator(TINY, eos_token_ids=[])


def test_greedy_tokens_are_those_of_transformers_generate(model, generator):
    requests = [
        request(length, number, max_tokens=70, do_sample=False) for number, length in enumerate([3, 60, 64, 130])
    ]
    for asked, output in zip(requests, generator.generate(requests), strict=True):
        prompt = torch.tensor([asked.prompt_ids])
        expected = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=70,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert output.token_ids == expected[0, prompt.shape[1] :].tolist()
        assert output.stop_reason == "length"


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_those_of_a_plain_forward(model, generator, temperature):
    requests = [
        request(length, number, temperature=temperature, max_tokens=60) for number, length in enumerate([3, 40, 90])
    ]
    for asked, output in zip(requests, generator.generate(requests), strict=True):
        tokens = torch.tensor([[*asked.prompt_ids, *output.token_ids]])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(asked.prompt_ids) - 1 : -1]
        chosen = torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.log_probs), chosen, rtol=0, atol=1e-5)


def test_a_response_ends_with_the_first_eos_token_and_keeps_it(generator):
    asked = request(20, max_tokens=30)
    [free] = generator.generate([asked])
    second, later = free.token_ids[5], free.token_ids[11]
    first = min(free.token_ids.index(second), free.token_ids.index(later))
    stopping = HFGenerator(TINY, eos_token_ids=[later, second])
    [stopped] = stopping.generate([asked])
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.log_probs == free.log_probs[: first + 1]
    assert stopped.stop_reason == "stop"
    [ignoring] = stopping.generate([request(20, max_tokens=30, ignore_eos=True)])
    assert ignoring == free


def test_an_eos_token_as_the_last_allowed_one_is_a_stop(generator):
    [free] = generator.generate([request(20, max_tokens=6)])
    last = free.token_ids.index(free.token_ids[-1])
    [output] = HFGenerator(TINY, eos_token_ids=[free.token_ids[-1]]).generate([request(20, max_tokens=last + 1)])
    assert (len(output.token_ids), output.stop_reason) == (last + 1, "stop")


def test_eos_tokens_come_from_the_generation_config_one_or_several(tmp_path, model):
    assert HFGenerator(TINY).eos_token_ids == {model.generation_config.eos_token_id}
    several = HFGenerator(TINY)._model
    several.generation_config.eos_token_id = [2, 7]
    several.save_pretrained(tmp_path)
    assert HFGenerator(str(tmp_path)).eos_token_ids == {2, 7}


def test_more_requests_than_max_num_seqs_give_the_same_answers_in_order(generator):
    requests = [request(10 + number, number, max_tokens=1 + number) for number in range(11)]
    cut = HFGenerator(TINY, eos_token_ids=[], max_num_seqs=4).generate(requests)
    assert cut == generator.generate(requests)
    assert [len(output.token_ids) for output in cut] == list(range(1, 12))


def test_no_requests_and_no_log_probs(generator):
    assert generator.generate([]) == []
    assert generator.generate([request(5, logprobs=False)])[0].log_probs is None


def test_a_fresh_seed_gives_another_response(generator):
    responses = {tuple(generator.generate([request(9, seed=seed)])[0].token_ids) for seed in range(8)}
    assert len(responses) == 8


def test_new_weights_change_the_answers_to_those_of_the_model_they_came_from():
    other = "tiny://model?seed=1"
    generator, requests = HFGenerator(TINY), [request(20, number) for number in range(4)]
    before, expected = generator.generate(requests), HFGenerator(other).generate(requests)
    assert before != expected
    source = AutoModelForCausalLM.from_pretrained(local_model(other), dtype=torch.float32)
    generator.update_weights({name: value.numpy() for name, value in source.state_dict().items()})
    assert generator.generate(requests) == expected


def test_sleep_refuses_to_generate_and_wake_up_restores():
    generator = HFGenerator(TINY)
    before = generator.generate([request(8)])
    generator.sleep()
    with pytest.raises(RolloutError, match="wake_up"):
        generator.generate([request(8)])
    generator.wake_up()
    assert generator.generate([request(8)]) == before


def test_broken_weights_are_an_error_that_names_the_request():
    generator = HFGenerator(TINY)
    weights = {name: value.numpy().copy() for name, value in generator._model.state_dict().items()}
    weights["model.norm.weight"][3] = float("nan")
    generator.update_weights(weights)
    with pytest.raises(RolloutError, match=r"'request 5'.*token 0.*NaN"):
        generator.generate([request(8, 5)])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(4090, 3), r"'request 3' has 4090 prompt tokens and asks for 12 more.* 4096 positions"),
        (
            GenerationRequest("high", [5, 104], SamplingParams(max_tokens=1), RequestOrder(0, 0)),
            "'high' has token id 104",
        ),
        (GenerationRequest("low", [-1, 5], SamplingParams(max_tokens=1), RequestOrder(0, 0)), "'low' has token id -1"),
    ],
)
def test_a_prompt_the_model_cannot_take_is_refused_by_name(generator, asked, message):
    with pytest.raises(RolloutError, match=message):
        generator.generate([asked])


def test_an_empty_prompt_a_bad_dtype_and_a_missing_model_are_refused(tmp_path):
    with pytest.raises(RolloutError, match="'r' has an empty prompt"):
        GenerationRequest("r", [], SamplingParams(max_tokens=1), RequestOrder(0, 0))
    with pytest.raises(ConfigError, match="'float33'"):
        HFGenerator(TINY, dtype="float33")
    with pytest.raises(ConfigError, match="max_num_seqs is 0"):
        HFGenerator(TINY, max_num_seqs=0)
    with pytest.raises(DataError, match="nowhere"):
        HFGenerator(str(tmp_path / "nowhere"))
