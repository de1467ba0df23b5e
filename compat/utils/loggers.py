"""``verl.utils.logger``: lines that name their rank or step."""

from __future__ import annotations

import datetime
import logging
import numbers
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist


class LocalLogger:
    """Prints the numbers of each step on one line."""

    def __init__(self, print_to_console: bool = True) -> None:
        self.print_to_console = print_to_console

    def flush(self) -> None:
        """There is nothing pending."""

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Print ``step:N - name:value - ...``."""
        if self.print_to_console:
            print(concat_dict_to_str(data, step), flush=True)


def concat_dict_to_str(dict: Mapping[str, Any], step: int) -> str:
    """The line of :class:`LocalLogger`; what is no number is left out."""
    parts = [f"{name}:{value!r}" for name, value in dict.items() if isinstance(value, numbers.Number)]
    return " - ".join([f"step:{step}", *parts])


class DecoratorLoggerBase:
    """Says things in the name of ``role``, to ``logger`` or the console, on rank 0 unless told otherwise."""

    def __init__(
        self,
        role: str,
        logger: logging.Logger | None = None,
        level: int = logging.DEBUG,
        rank: int = 0,
        log_only_rank_0: bool = True,
    ) -> None:
        self.role, self.logger, self.level, self.rank, self.log_only_rank_0 = role, logger, level, rank, log_only_rank_0

    def logging_function(self, log_str: str) -> None:
        """Log or print one line."""
        if self.log_only_rank_0 and self.rank != 0:
            return
        if self.logger is None:
            print(f"{self.role} {log_str}", flush=True)
        else:
            self.logger.log(self.level, f"{self.role} {log_str}")


def print_rank_0(message: str) -> None:
    """Print on rank 0, or where there are no ranks."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(message, flush=True)


def print_with_rank(message: str, rank: int = 0, log_only_rank_0: bool = False) -> None:
    """Print with the rank before it."""
    if not log_only_rank_0 or rank == 0:
        print(f"[Rank {rank}] {message}", flush=True)


def print_with_rank_and_timer(message: str, rank: int = 0, log_only_rank_0: bool = False) -> None:
    """Print with the time and the rank before it."""
    if not log_only_rank_0 or rank == 0:
        print(f"[{datetime.datetime.now():%Y-%m-%d %H:%M:%S}] [Rank {rank}] {message}", flush=True)


def log_with_rank(
    message: str, rank: int, logger: logging.Logger, level: int = logging.INFO, log_only_rank_0: bool = False
) -> None:
    """Log with the rank before it."""
    if not log_only_rank_0 or rank == 0:
        logger.log(level, f"[Rank {rank}] {message}")
