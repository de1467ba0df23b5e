"""From data files to batches of prompts, and from messages to prompt tokens."""

from runtime.data.chat import encode_chat, fit_prompt
from runtime.data.dataset import RLHFDataset, build_dataset
from runtime.data.files import RowLocator
from runtime.data.loader import build_dataloader, collate_fn

__all__ = [
    "RLHFDataset",
    "RowLocator",
    "build_dataloader",
    "build_dataset",
    "collate_fn",
    "encode_chat",
    "fit_prompt",
]
