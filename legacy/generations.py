"""What a recipe's loop does with texts: samples to the log, generations to JSONL files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compat.protocol import DataProto
from runtime.arrays import plain_value


class GenerationLogs:
    """Methods of verl's ``RayPPOTrainer`` that write generations."""

    config: Any
    tokenizer: Any
    global_steps: int
    _dump_executor: ThreadPoolExecutor

    def _init_dump_executor(self) -> None:
        self._dump_executor = ThreadPoolExecutor(max_workers=1)

    def _shutdown_dump_executor(self) -> None:
        """Wait until every file is written."""
        self._dump_executor.shutdown(wait=True)

    def _dump_generations(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        gts: Sequence[Any],
        scores: Sequence[float],
        reward_extra_infos_dict: Mapping[str, Sequence[Any]],
        dump_path: str,
    ) -> None:
        """Write one JSON line a trajectory to ``dump_path/STEP.jsonl``; columns of another length are left out."""
        columns: dict[str, Sequence[Any]] = {
            "input": inputs,
            "output": outputs,
            "gts": gts,
            "score": scores,
            "step": [self.global_steps] * len(inputs),
            **{name: values for name, values in reward_extra_infos_dict.items() if len(values) == len(inputs)},
        }
        file = Path(dump_path) / f"{self.global_steps}.jsonl"
        self._dump_executor.submit(_write, file, columns)

    def _log_rollout_data(
        self,
        batch: DataProto,
        reward_extra_infos_dict: Mapping[str, Sequence[Any]],
        timing_raw: dict[str, float],  # noqa: ARG002
        rollout_data_dir: str,
    ) -> None:
        """Write the trajectories of ``batch`` to ``rollout_data_dir/STEP.jsonl``."""
        answers: Any = batch.non_tensor_batch.get("reward_model", [{}] * len(batch))
        truths = [(answer or {}).get("ground_truth") for answer in answers]
        self._dump_generations(
            self.tokenizer.batch_decode(batch["prompts"], skip_special_tokens=True),
            self.tokenizer.batch_decode(batch["responses"], skip_special_tokens=True),
            truths,
            batch["token_level_scores"].sum(-1).tolist(),
            reward_extra_infos_dict,
            rollout_data_dir,
        )

    def _maybe_log_val_generations(
        self, inputs: Sequence[str], outputs: Sequence[str], scores: Sequence[float]
    ) -> None:
        """Log ``trainer.log_val_generations`` samples, always the same ones of the same prompts."""
        wanted = int(self.config.trainer.get("log_val_generations") or 0)
        samples = sorted(zip(inputs, outputs, scores, strict=True))
        np.random.default_rng(42).shuffle(samples)
        for prompt, answer, score in samples[:wanted]:
            print(f"validation, step {self.global_steps}: {prompt!r} -> {answer!r} (score {score})")


def _write(file: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps({name: plain_value(value) for name, value in zip(columns, row, strict=True)}) for row in rows]
    file.write_text("\n".join(lines) + "\n")
