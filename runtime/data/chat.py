"""From chat messages to prompt tokens: what agent loops and the overlong filter both do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from runtime.errors import ConfigError, PromptTooLongError
from runtime.fs import local_model


def load_tokenizer(model: DictConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of ``actor_rollout_ref.model``: that of ``tokenizer_path``, or of ``path`` when it is null."""
    return AutoTokenizer.from_pretrained(
        local_model(model.tokenizer_path or model.path), trust_remote_code=model.trust_remote_code
    )


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    apply_chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of ``messages`` under the tokenizer's chat template, ending in the generation prompt.

    tools: JSON schemas that the template shows to the model.
    apply_chat_template_kwargs: the config's ``data.apply_chat_template_kwargs``.
    """
    keywords = {"add_generation_prompt": True, **(apply_chat_template_kwargs or {})}
    # With return_dict, which transformers 5 turned on by default, the ids would come inside a mapping.
    ids: Any = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tools=[dict(tool) for tool in tools] if tools else None,
        tokenize=True,
        return_dict=False,
        **keywords,
    )
    return list(ids)


def fit_prompt(ids: Sequence[int], max_prompt_length: int, truncation: str, where: str) -> list[int]:
    """Cut ``ids`` to at most ``max_prompt_length`` tokens as ``data.truncation`` says (verl's ``postprocess_data``).

    truncation: ``left`` keeps the end, ``right`` the beginning, ``middle`` both, ``error`` raises PromptTooLongError.
    where: file and row, for the message.
    """
    ids = list(ids)
    if truncation not in ("error", "left", "right", "middle"):
        raise ConfigError(f"data.truncation={truncation!r} is not known: expected 'error', 'left', 'right' or 'middle'")
    if len(ids) <= max_prompt_length:
        return ids
    if truncation == "left":
        return ids[len(ids) - max_prompt_length :]
    if truncation == "right":
        return ids[:max_prompt_length]
    if truncation == "middle":
        head = max_prompt_length // 2
        return ids[:head] + ids[len(ids) - (max_prompt_length - head) :]
    raise PromptTooLongError(
        f"{where}: the prompt has {len(ids)} tokens, data.max_prompt_length is {max_prompt_length}; "
        "raise it, set data.filter_overlong_prompts=true, or set data.truncation to left, right or middle"
    )
