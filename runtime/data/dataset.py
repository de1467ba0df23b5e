"""The prompt dataset of verl recipes: rows of data files as raw messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from runtime.data.chat import encode_chat
from runtime.data.files import ROW_NUMBER, read_files
from runtime.errors import DataError
from runtime.user_code import load_object


class RLHFDataset(Dataset):
    """Rows of parquet, json and jsonl files, concatenated (verl's ``RLHFDataset``).

    data_files: one path or several, see :func:`runtime.fs.copy_to_local`. config: the group ``data``; a key that is
    missing has verl's default. max_samples: keep so many rows, drawn by ``seed`` when ``shuffle`` is set, else the
    first; -1: all. Reading a config gives a null ``seed`` the value of ``runtime.seed``; a bare group draws by 0.

    A row holds its file's columns and ``raw_prompt`` (list of messages), ``dummy_tensor`` (uint8 ``[1]``, so that a
    legacy batch has a tensor), ``index``, ``tools_kwargs`` and ``interaction_kwargs`` of ``extra_info``, and
    ``row_number`` (int). Prompts are tokenized here only to drop those longer than ``max_prompt_length`` when
    ``filter_overlong_prompts`` is set.

    Raises DataError naming file and column, or file and row.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        config: Mapping[str, Any] | DictConfig,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        self.data_files = [data_files] if isinstance(data_files, str | os.PathLike) else list(data_files)
        self.tokenizer = tokenizer
        self.processor = processor
        self.config = config
        self.prompt_key: str = config.get("prompt_key", "prompt")
        self.max_prompt_length: int = config.get("max_prompt_length", 1024)
        self.max_samples = max_samples
        self.locate: Callable[[int], str] = "row {}".format
        self._read_files_and_tokenize()

    def __len__(self) -> int:
        return len(self.dataframe)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = dict(self.dataframe[int(item)])
        extra_info = row["extra_info"] = row.get("extra_info") or {}
        return {
            **row,
            "raw_prompt": self._messages(row),
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
            "index": extra_info.get("index", 0),
            # Arrow gives every row every key of a struct, with None where a row had none.
            "tools_kwargs": extra_info.get("tools_kwargs") or {},
            "interaction_kwargs": extra_info.get("interaction_kwargs") or {},
        }

    def _read_files_and_tokenize(self) -> None:
        """Read ``data_files`` into ``dataframe``; what a subclass overrides to get rows from elsewhere."""
        needed = {self.prompt_key: "the chat messages (data.prompt_key)"}
        table, self.locate = read_files([str(file) for file in self.data_files], needed)
        self._check_rows(table)
        self.dataframe = self.maybe_filter_out_long_prompts(self._sampled(table, self.max_samples))

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset) -> datasets.Dataset:
        """Drop rows with more than ``max_prompt_length`` prompt tokens, when ``filter_overlong_prompts`` is set."""
        if not self.config.get("filter_overlong_prompts", True):
            return dataframe
        fits = partial(
            _fits,
            tokenizer=self.tokenizer,
            limit=self.max_prompt_length,
            template_kwargs=as_dict(self.config.get("apply_chat_template_kwargs")),
        )
        kept = dataframe.filter(
            fits,
            input_columns=[self.prompt_key],
            num_proc=_processes(self.config.get("filter_overlong_prompts_workers", 1)),
            desc=f"Dropping prompts longer than {self.max_prompt_length} tokens",
            keep_in_memory=True,
            load_from_cache_file=False,
        )
        if len(dataframe) and not len(kept):
            raise DataError(
                f"all {len(dataframe)} prompts of {self.data_files} have more than data.max_prompt_length="
                f"{self.max_prompt_length} tokens; raise it or set data.filter_overlong_prompts=false"
            )
        return kept

    def _messages(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return self._build_messages(row, self.prompt_key)

    def _build_messages(self, example: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        """The messages of a row, copied so that an agent loop may add to them."""
        return [dict(message) for message in example[key]]

    def _sampled(self, table: datasets.Dataset, max_samples: int) -> datasets.Dataset:
        if not 0 < max_samples < len(table):
            return table
        if not self.config.get("shuffle", False):
            return table.select(range(max_samples))
        # verl draws afresh in every process when there is no seed; both trainers have to draw the same rows.
        draw = np.random.default_rng(self.config.get("seed") or 0)
        return table.select(draw.choice(len(table), size=max_samples, replace=False).tolist())

    def _check_rows(self, table: datasets.Dataset) -> None:
        for row, messages in enumerate(table[self.prompt_key]):
            if not _is_chat(messages):
                raise DataError(
                    f"{self.locate(row)}: column {self.prompt_key!r} holds {_shortened(messages)}; expected a list of "
                    'chat messages such as [{"role": "user", "content": "2+3=?"}]'
                )
        for kind in ("image", "video", "audio"):
            column = self.config.get(f"{kind}_key", f"{kind}s")
            filled = _first_filled(table[column]) if column in table.column_names else None
            if filled is not None:
                raise DataError(
                    f"{self.locate(filled)}: column {column!r} is not empty; only text prompts can be trained on"
                )


def build_dataset(
    data_files: str | Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    config: DictConfig,
    processor: Any = None,
    max_samples: int = -1,
) -> RLHFDataset | NumberedRows:
    """Build ``data.custom_cls`` (a class by file and name) or :class:`RLHFDataset` (verl's ``create_rl_dataset``).

    Every row has ``row_number``: its position, where a class of the user's own does not bring one.
    """
    dataset_class = custom_class(config) or RLHFDataset
    dataset = dataset_class(
        data_files=data_files, tokenizer=tokenizer, config=config, processor=processor, max_samples=max_samples
    )
    return numbered(dataset)


def numbered(dataset: Any) -> Any:
    """``dataset`` if its rows have a ``row_number``, else the same rows with one."""
    return dataset if type(dataset) is RLHFDataset or isinstance(dataset, NumberedRows) else NumberedRows(dataset)


def custom_class(config: DictConfig) -> type | None:
    """The class that ``data.custom_cls`` names, ``None`` without one. Raises DataError for what is no dataset."""
    custom = config.get("custom_cls")
    if custom is None or custom.get("path") is None:
        return None
    found = load_object(custom.path, custom.name, DataError)
    if not (isinstance(found, type) and issubclass(found, Dataset)):
        raise DataError(f"{custom.path}: {custom.name!r} is not a subclass of torch.utils.data.Dataset")
    return found


class NumberedRows(Dataset):
    """A dataset whose rows get their position as ``row_number`` when they have none."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Recipes reach into their own dataset. Before __init__, when unpickling, there is none to look into.
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, item: int) -> dict[str, Any]:
        return {ROW_NUMBER: int(item), **self.dataset[item]}

    def locate(self, row_number: int) -> str:
        """File and row, where the dataset knows; its own position otherwise."""
        locate = getattr(self.dataset, "locate", None)
        return locate(row_number) if locate else f"{type(self.dataset).__name__} row {row_number}"


def _fits(messages: list[dict[str, Any]], tokenizer: Any, limit: int, template_kwargs: dict[str, Any]) -> bool:
    return len(encode_chat(tokenizer, messages, apply_chat_template_kwargs=template_kwargs)) <= limit


def _is_chat(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and len(messages) > 0
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
        and all("content" in message for message in messages)
    )


def _first_filled(values: Any) -> int | None:
    return next((row for row, value in enumerate(values) if value), None)


def _processes(workers: int | None) -> int | None:
    # None keeps the filter in this process; one worker would start another for nothing.
    return min(workers, os.cpu_count() or 1) if workers and workers > 1 else None


def as_dict(config: Any) -> dict[str, Any]:
    """A group of the config, a mapping or ``None`` as a dict."""
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else dict(config or {})  # type: ignore[return-value]


def _shortened(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."
