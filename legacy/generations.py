"""What a recipe's loop does with texts: samples to the log, generations to JSONL files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from compat.protocol import DataProto
from compat.utils.tracking import ValidationGenerationsLogger
from runtime.generations import samples_to_show, write_generations
from runtime.validation_metrics import named_figures, process_validation_metrics


class GenerationLogs:
    """Methods of verl's ``RayPPOTrainer`` that write generations."""

    config: Any
    tokenizer: Any
    global_steps: int

    @cached_property
    def validation_generations_logger(self) -> ValidationGenerationsLogger:
        """What shows samples of a validation."""
        return ValidationGenerationsLogger(self.config.trainer.project_name, self.config.trainer.experiment_name)

    @cached_property
    def _dump_executor(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1)

    def _init_dump_executor(self) -> None:
        """Nothing to do: the writer starts with the first file."""

    @cached_property
    def _dumps(self) -> list[Future[None]]:
        """The files that are being written, or have been."""
        return []

    def _shutdown_dump_executor(self) -> None:
        """Wait until every file is written. Raises what hindered the first that is not; files may be written again."""
        waiting, self._dumps[:] = list(self._dumps), []
        for dump in waiting:
            dump.result()

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
        self._dumps.append(self._dump_executor.submit(write_generations, file, columns))

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
        if wanted:
            samples = samples_to_show(inputs, outputs, scores, wanted)
            self.validation_generations_logger.log(self.config.trainer.logger, samples, self.global_steps)

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
        figures = process_validation_metrics(data_sources, sample_uids, reward_extra_infos_dict)
        return named_figures(figures, np.concatenate(sample_turns) if len(sample_turns) else np.array([]))

    def _merge_validation_results(
        self, result_a: Mapping[str, Any] | None, result_b: Mapping[str, Any] | None
    ) -> dict[str, float]:
        """The figures of two parts of a validation, each as ``_validate(merged=True)`` returns it, or ``None``."""
        parts = [part for part in (result_a, result_b) if part is not None and len(part["data_sources"])]
        if not parts:
            return {}
        infos = [part["reward_extra_infos_dict"] for part in parts]
        names = dict.fromkeys(name for of_part in infos for name in of_part)
        return self._val_metrics_update(
            np.concatenate([sources for part in parts for sources in part["data_sources"]]),
            [uid for part in parts for uid in part["sample_uids"]],
            {name: [value for of_part in infos for value in of_part.get(name, ())] for name in names},
            [turns for part in parts for turns in part["sample_turns"]],
        )
