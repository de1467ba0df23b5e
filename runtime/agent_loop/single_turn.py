"""The simplest loop: one prompt, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.agent_loop.base import AGENT_LOOPS, AgentLoopBase, AgentLoopOutput
from runtime.data.chat import encode_chat, fit_prompt


@AGENT_LOOPS.register("single_turn_agent")
class SingleTurnAgentLoop(AgentLoopBase):
    """Apply the chat template, generate once, stop (verl's ``SingleTurnAgentLoop``).

    A sample without ``raw_prompt`` brings its prompt as token ids, ``raw_prompt_ids``, as verl's rows up to 0.6 do.
    """

    async def run(self, sample: Mapping[str, Any]) -> AgentLoopOutput:
        data = self.config.data
        prompt_ids = fit_prompt(
            self._encoded(sample),
            max_prompt_length=data.max_prompt_length,
            truncation=data.truncation,
            where=self.client.session.where,
        )
        answer = await self.client.generate(prompt_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=list(answer.token_ids),
            response_mask=[1] * len(answer.token_ids),
            response_logprobs=None if answer.log_probs is None else list(answer.log_probs),
        )

    def _encoded(self, sample: Mapping[str, Any]) -> list[int]:
        if "raw_prompt" not in sample and "raw_prompt_ids" in sample:
            return [int(token) for token in sample["raw_prompt_ids"]]
        template_kwargs = dict(self.config.data.apply_chat_template_kwargs)
        return encode_chat(self.tokenizer, sample["raw_prompt"], apply_chat_template_kwargs=template_kwargs)
