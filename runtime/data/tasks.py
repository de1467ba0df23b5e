"""Task files in verl's schema: from reasoning-gym, and from GSM8K's questions and answers."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from runtime.data.files import read_files
from runtime.errors import DataError
from runtime.reward.gsm8k import extract_solution
from runtime.reward.reasoning_gym_task import ENTRY_KEY, PREFIX

GSM8K_INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
"""What verl's preprocessing script adds to every question; old recipes and their reward functions rely on it."""


def write_rows(rows: Iterable[Mapping[str, Any]], out: str | os.PathLike[str]) -> int:
    """Write ``rows`` as parquet to ``out``, whole or not at all; returns their number."""
    target = Path(out).expanduser()
    if target.suffix != ".parquet":
        raise DataError(f"{target}: the name of the file to write must end in .parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    table = Dataset.from_list([dict(row) for row in rows])
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as workshop:
        written = Path(workshop) / target.name
        table.to_parquet(written)
        written.replace(target)
    return len(table)


def reasoning_gym_rows(
    task: str, rows: int, seed: int, settings: Mapping[str, Any] | None = None, split: str = "train", system: str = ""
) -> list[dict[str, Any]]:
    """``rows`` rows of the reasoning-gym task ``task``, with all that its verifier needs in ``extra_info``.

    settings: the task's own parameters, such as ``{"min_terms": 2}``. system: a system message for every prompt.

    Raises DataError naming a task or setting that reasoning-gym does not have, or a row that its verifier would judge
    differently after a trip through JSON.
    """
    dataset = _reasoning_gym_dataset(task, dict(settings or {}), rows, seed)
    return [_reasoning_gym_row(dataset, task, index, split, system) for index in range(rows)]


def gsm8k_rows(files: Sequence[str], split: str = "train") -> list[dict[str, Any]]:
    """Rows of GSM8K from parquet, json or jsonl files with the columns ``question`` and ``answer``.

    The ground truth is the number after ``####``, without commas, as in verl's preprocessing script.

    Raises DataError naming file and column, or file and row.
    """
    table, locate = read_files(
        list(files), {"question": "the problem", "answer": "its solution, ending in #### NUMBER"}
    )
    return [_gsm8k_row(locate(index), row["question"], row["answer"], index, split) for index, row in enumerate(table)]


def _reasoning_gym_dataset(task: str, settings: dict[str, Any], rows: int, seed: int) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS) or sorted(DATASETS)
        raise DataError(f"reasoning-gym has no task {task!r}; did you mean one of {near}?")
    known = sorted(set(DATASETS[task][1].__dataclass_fields__) - {"seed", "size"})
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise DataError(f"reasoning-gym's {task} has no setting {unknown}; it has {known}")
    try:
        return reasoning_gym.create_dataset(task, size=rows, seed=seed, **settings)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"reasoning-gym's {task} refuses {settings} with {rows} rows: {error}") from error


def _reasoning_gym_row(dataset: Any, task: str, index: int, split: str, system: str) -> dict[str, Any]:
    entry = dataset[index]
    stored = json.dumps(entry, default=str)
    answer = entry["answer"]
    if answer is not None and dataset.score_answer(answer, json.loads(stored)) != dataset.score_answer(answer, entry):
        raise DataError(
            f"reasoning-gym's {task} cannot be stored: row {index} is scored differently when read from JSON"
        )
    chat = [{"role": "system", "content": system}] if system else []
    return {
        "data_source": f"{PREFIX}{task}",
        "prompt": [*chat, {"role": "user", "content": entry["question"]}],
        "ability": "reasoning",
        # Some tasks accept many answers and name none; the verifier reads the entry.
        "reward_model": {"style": "rule", "ground_truth": answer or ""},
        "extra_info": {"index": index, "split": split, ENTRY_KEY: stored},
    }


def _gsm8k_row(where: str, question: Any, answer: Any, index: int, split: str) -> dict[str, Any]:
    truth = extract_solution(answer, "strict") if isinstance(answer, str) else None
    if truth is None or not isinstance(question, str):
        raise DataError(f"{where}: expected a question and an answer that ends in '#### NUMBER', got answer {answer!r}")
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{question} {GSM8K_INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }
