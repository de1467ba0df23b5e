"""What a recipe's loop does with texts: samples to the log, generations to JSONL files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from compat.ppo.validation_metrics import process_validation_metrics
from compat.protocol import DataProto
from compat.utils.tracking import ValidationGenerationsLogger
from runtime.arrays import plain_value


class GenerationLogs:
    """Methods of verl's ``RayPPOTrainer`` that write generations."""

    config: Any
    tokenizer: Any
    global_steps: int
    validation_generations_logger: ValidationGenerationsLogger
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
        """Show ``trainer.log_val_generations`` samples, always the same ones of the same prompts."""
        wanted = int(self.config.trainer.get("log_val_generations") or 0)
        samples = sorted(zip(inputs, outputs, scores, strict=True))
        np.random.default_rng(42).shuffle(samples)
        if wanted:
            self.validation_generations_logger.log(self.config.trainer.logger, samples[:wanted], self.global_steps)

    def _val_metrics_update(
        self,
        data_sources: Sequence[str],
        sample_uids: Sequence[str],
        reward_extra_infos_dict: Mapping[str, Sequence[Any]],
        sample_turns: Sequence[np.ndarray],
    ) -> dict[str, float]:
        """Figures of a validation under verl's names: ``val-core/`` for the mean, best and majority of all n answers.

        The variable of ``val-core`` is ``acc`` where there is one, else ``reward``; all else is ``val-aux/``.
        """
        metrics: dict[str, float] = {}
        for source, variables in process_validation_metrics(data_sources, sample_uids, reward_extra_infos_dict).items():
            core = "acc" if "acc" in variables else "reward"
            for variable, figures in variables.items():
                most = max(int(name.rpartition("@")[2].partition("/")[0]) for name in figures)
                for name, value in figures.items():
                    is_core = variable == core and name.startswith(("mean", "maj", "best")) and f"@{most}" in name
                    metrics[f"val-{'core' if is_core else 'aux'}/{source}/{variable}/{name}"] = value
        if len(sample_turns):
            turns = np.concatenate(sample_turns)
            figures = {"min": turns.min(), "max": turns.max(), "mean": turns.mean()}
            metrics |= {f"val-aux/num_turns/{name}": value for name, value in figures.items()}
        return metrics


def _write(file: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps({name: plain_value(value) for name, value in zip(columns, row, strict=True)}) for row in rows]
    file.write_text("\n".join(lines) + "\n")
