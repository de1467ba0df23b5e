"""The dataset that recipes know as ``verl.utils.dataset.rl_dataset.RLHFDataset``."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from compat.padding import position_ids_of
from runtime.data import RLHFDataset as Rows
from runtime.data import encode_chat, fit_prompt
from runtime.data.dataset import as_dict
from runtime.errors import DataError
from runtime.fs import copy_to_local


class RLHFDataset(Rows):
    """Rows of data files as messages, and as padded prompt tokens (verl's ``RLHFDataset`` of every version).

    Beside what ``runtime.data.RLHFDataset`` gives, a row has ``input_ids``, ``attention_mask`` and ``position_ids``
    (int64 ``[max_prompt_length]``, left-padded, cut as ``truncation`` says) and ``raw_prompt_ids`` (the same tokens
    without padding, a list), as up to verl 0.6; ``return_prompt_tokens=false`` in the config leaves them out.

    For subclasses the seams are verl's: ``_download``, ``_read_files_and_tokenize``, ``maybe_filter_out_long_prompts``,
    ``_build_messages(example, key)`` or, as up to 0.6, ``_build_messages(example)``, and ``__getitem__``. So are the
    attributes that they read.

    Raises DataError naming file and row, and PromptTooLongError where ``truncation`` is ``error``.
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
        self.original_data_files = list(self.data_files)
        self.cache_dir = os.path.expanduser(config.get("cache_dir", "~/.cache/verl/rlhf"))
        self.image_key: str = config.get("image_key", "images")
        self.video_key: str = config.get("video_key", "videos")
        self.truncation: str = config.get("truncation", "error")
        self.return_raw_chat: bool = config.get("return_raw_chat", False)
        self.return_full_prompt: bool = config.get("return_full_prompt", False)
        self.return_prompt_tokens: bool = config.get("return_prompt_tokens", True)
        self.filter_overlong_prompts: bool = config.get("filter_overlong_prompts", True)
        self.apply_chat_template_kwargs = as_dict(config.get("apply_chat_template_kwargs"))
        self.num_workers: int | None = config.get("filter_overlong_prompts_workers", 1)
        self.need_tools_kwargs: bool = config.get("need_tools_kwargs", False)
        self.chat_template_func = config.get("chat_template_func", None)
        self.filter_prompts: bool = config.get("filter_prompts", True)
        self.shuffle: bool = config.get("shuffle", False)
        self.seed: int | None = config.get("seed")
        self.serialize_dataset = False
        self._download()
        super().__init__(self.data_files, tokenizer, config, processor, max_samples)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = super().__getitem__(item)
        return {**row, **self._prompt_tokens(row["raw_prompt"], item)} if self.return_prompt_tokens else row

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset | None = None) -> datasets.Dataset:
        """Drop rows with more than ``max_prompt_length`` prompt tokens, when ``filter_overlong_prompts`` is set."""
        table = self.dataframe if dataframe is None else dataframe
        if not self._builds_its_own_messages:
            return super().maybe_filter_out_long_prompts(table)
        if not self.filter_overlong_prompts:
            return table
        lengths = [len(self._encode(self._messages(dict(row)))) for row in table]
        return table.select([row for row, length in enumerate(lengths) if length <= self.max_prompt_length])

    def resume_dataset_state(self) -> None:
        """Read the files again, as after loading a checkpoint that does not hold the rows."""
        self.data_files = list(self.original_data_files)
        self._download()
        self._read_files_and_tokenize()

    def split(self, num_splits: int) -> list[RLHFDataset]:
        """``num_splits`` datasets of equally many rows each, in order; what is left over is dropped.

        Raises DataError when there are fewer rows than parts.
        """
        rows = len(self) // num_splits if isinstance(num_splits, int) and num_splits > 0 else 0
        if rows == 0:
            raise DataError(f"{len(self)} rows cannot be split into {num_splits} parts")
        parts = []
        for start in range(0, rows * num_splits, rows):
            part = copy.copy(self)
            part.dataframe = self.dataframe.select(range(start, start + rows))
            parts.append(part)
        return parts

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Replace ``data_files`` by local copies; of those that the config named, where ``use_origin_parquet``."""
        files = self.original_data_files if use_origin_parquet else self.data_files
        self.data_files = [copy_to_local(str(file)) for file in files]

    @property
    def _builds_its_own_messages(self) -> bool:
        return type(self)._build_messages is not RLHFDataset._build_messages

    def _messages(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        # Up to verl 0.6 the method knew its key.
        takes_key = "key" in inspect.signature(self._build_messages).parameters
        return self._build_messages(row, key=self.prompt_key) if takes_key else self._build_messages(row)  # type: ignore[call-arg]

    def _check_rows(self, table: datasets.Dataset) -> None:
        # A subclass that makes messages may make them of anything.
        if not self._builds_its_own_messages:
            super()._check_rows(table)

    def _encode(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return encode_chat(self.tokenizer, messages, apply_chat_template_kwargs=self.apply_chat_template_kwargs)

    def _prompt_tokens(self, messages: Sequence[Mapping[str, Any]], item: int) -> dict[str, Any]:
        ids = fit_prompt(self._encode(messages), self.max_prompt_length, self.truncation, f"row {item}")
        padding = self.max_prompt_length - len(ids)
        pad_id: Any = self.tokenizer.pad_token_id
        attention_mask = torch.tensor([0] * padding + [1] * len(ids), dtype=torch.int64)
        return {
            "input_ids": torch.tensor(
                [self.tokenizer.eos_token_id if pad_id is None else pad_id] * padding + ids, dtype=torch.int64
            ),
            "attention_mask": attention_mask,
            "position_ids": position_ids_of(attention_mask),
            "raw_prompt_ids": ids,
        }
