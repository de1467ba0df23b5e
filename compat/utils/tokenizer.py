"""``verl.utils.tokenizer``: tokenizers and processors by name or path."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from runtime.errors import DataError


def hf_tokenizer(name_or_path: str, correct_pad_token: bool = True, correct_gemma2: bool = True, **kwargs: Any) -> Any:
    """The Hugging Face tokenizer at ``name_or_path``; ``tiny://model`` works too.

    correct_pad_token: a tokenizer without a padding token pads with its end-of-sequence token. correct_gemma2: the
    chat model gemma-2-2b-it ends its turns with ``<end_of_turn>`` (107), which its tokenizer does not say.
    """
    from transformers import AutoTokenizer

    if correct_gemma2 and "gemma-2-2b-it" in str(name_or_path):
        kwargs |= {"eos_token": "<end_of_turn>", "eos_token_id": 107}
    tokenizer = AutoTokenizer.from_pretrained(_local(name_or_path), **kwargs)
    if correct_pad_token:
        set_pad_token_id(tokenizer)
    return tokenizer


def hf_processor(name_or_path: str, **kwargs: Any) -> Any:
    """The multi-modal processor at ``name_or_path``, or None for a model of text only."""
    from transformers import AutoProcessor, PreTrainedTokenizerBase

    try:
        processor = AutoProcessor.from_pretrained(_local(name_or_path), **kwargs)
    except (OSError, ValueError, ImportError) as error:
        warnings.warn(f"{name_or_path} has no multi-modal processor ({type(error).__name__})", stacklevel=2)
        return None
    is_multi_modal = "Processor" in type(processor).__name__ and not isinstance(processor, PreTrainedTokenizerBase)
    return processor if is_multi_modal else None


def set_pad_token_id(tokenizer: Any) -> None:
    """Let a tokenizer without a padding token pad with its end-of-sequence token, with a warning."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id
        warnings.warn(f"the tokenizer has no padding token; it pads with {tokenizer.eos_token!r}", stacklevel=2)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def normalize_token_ids(tokenized_output: Any) -> list[int]:
    """The ids of one text as plain integers, from any form that ``apply_chat_template(tokenize=True)`` answers in.

    Raises ``TypeError`` (a ``DataError``) for what holds no ids.
    """
    ids = tokenized_output
    if isinstance(ids, Mapping) and "input_ids" in ids:
        ids = ids["input_ids"]
    elif hasattr(ids, "input_ids"):
        ids = ids.input_ids
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(ids, list | tuple) and len(ids) == 1 and isinstance(ids[0], list | tuple):
        ids = ids[0]
    if not isinstance(ids, list | tuple):
        raise TokenIdsError(f"a list of token ids is needed, got {type(ids).__name__}: {ids!r}")
    return [_token_id(value) for value in ids]


class TokenIdsError(DataError, TypeError):
    """What should be token ids is something else."""


def _token_id(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise TokenIdsError(f"a token id must be an integer, got {type(value).__name__}: {value!r}") from None


def get_processor_token_id(processor: Any, token_name: str) -> int | None:
    """The id of a processor's special token (``image``, ``video``, ``audio``), or None where it has none."""
    token_id = getattr(processor, f"{token_name}_token_id", None)
    if token_id is not None:
        return int(token_id)
    token, tokenizer = getattr(processor, f"{token_name}_token", None), getattr(processor, "tokenizer", None)
    if token is None or tokenizer is None:
        return None
    found = tokenizer.convert_tokens_to_ids(token)
    return None if found is None else int(found)


def _local(name_or_path: str) -> str:
    """``tiny://`` models made local; hub names and paths as they are."""
    from runtime.fs import copy_to_local

    return copy_to_local(name_or_path) if str(name_or_path).startswith("tiny://") else str(name_or_path)
