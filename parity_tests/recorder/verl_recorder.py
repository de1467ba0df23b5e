"""Record what each stage of verl's legacy trainer wrote, in the capture format of `verlift parity`.

Copy this file beside your trainer; it needs torch, numpy and safetensors. In `fit()`, after the batch is united with
what was generated and before `_balance_batch`, call `recorder.stage(step, "rollout", batch)`, and so after each stage;
at the end `recorder.close(config)`. Then `verlift parity compare` sets it against a run of verlift.
"""

import hashlib
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

TOKENS = (
    "responses",
    "response_mask",
    "rollout_log_probs",
    "old_log_probs",
    "ref_log_prob",
    "entropy",
    "sum_pi_squared",
)
SCORES = ("rm_scores", "token_level_scores", "token_level_rewards", "values", "advantages", "returns")
LEVELS = dict.fromkeys((*TOKENS, *SCORES, "rollout_is_weights"), "response")
LEVELS |= {"prompts": "prompt", "input_ids": "sequence", "position_ids": "sequence"}
LEVELS |= {"reward_baselines": "row", "num_turns": "row"}
OLD_NAMES = {"entropys": "entropy", "loss_mask": "response_mask", "__num_turns__": "num_turns"}
AGAIN = {"reward": ["rm_scores", "token_level_scores"], "advantage": ["response_mask"]}  # written, changed or not
GARBAGE = ("advantages", "returns")  # what verl leaves there where response_mask is 0 means nothing: recorded as 0
MOVING = ("balance", "resample")  # these write no columns but put rows elsewhere: told as the series row_order
KEY = "recorder_key"  # in non_tensor_batch, so that it follows its row through balancing and resampling


class Recorder:
    """Writes to `directory`, which must be new. `levels`: more columns, name -> response, prompt, sequence or row."""

    def __init__(self, directory, levels=None):
        self.root, self.levels = Path(directory), {**LEVELS, **(levels or {})}
        self.root.mkdir(parents=True)
        self.step, self.prompts, self.digests = None, {}, {}

    def stage(self, step, name, batch, series=None):
        """Write the columns of a `DataProto` that the stage wrote or changed; `series`: floats by metric.

        Rows are written in the order of prompt and session, however they are balanced; at first sight of a step they
        are named, so record it before they are: uid, which session of it, 0 (one output a session).
        """
        if step != self.step:
            self.step, self.prompts, self.digests = step, {}, {}
        keys, order, places = self._rows(batch.non_tensor_batch)
        series = dict(series or {}) | ({"row_order": places} if name in MOVING else {})
        masks, columns, objects = _masks(batch.batch, order), {}, {}
        for given, column in [*batch.batch.items(), *batch.non_tensor_batch.items()]:
            new = OLD_NAMES.get(given, given)
            if new in self.levels and (new == given or new not in batch.batch):
                columns[new] = _packed(
                    new, torch.as_tensor(column).detach().cpu()[order], masks[self.levels[new]], masks
                )
            elif given in batch.non_tensor_batch and name == "rollout" and given != KEY:
                objects[given] = [_plain(column[row], given) for row in order]
        told = {new: _described(values, self.levels[new]) for new, values in columns.items()}
        written = [new for new in told if self.digests.get(new) != told[new] or new in AGAIN.get(name, ())]
        self.digests.update(told)
        path = self.root / f"step_{step}" / f"{name}.json"
        if path.exists():
            raise FileExistsError(f"{path}: stage {name!r} of step {step} is recorded twice")
        if written:
            _whole(path.with_suffix(".safetensors"), lambda to: save_file({new: columns[new] for new in written}, to))
        _write_json(
            path,
            {
                "step": step,
                "stage": name,
                "keys": [keys[row] for row in order],
                "prompt_lengths": masks["prompt"].sum(1).tolist(),
                "response_lengths": masks["response"].sum(1).tolist(),
                "columns": {new: told[new] for new in written},
                "objects": objects,
                "digests": {},
                "series": {
                    metric: [repr(float(x)) for x in np.atleast_1d(values)] for metric, values in series.items()
                },
            },
        )

    def close(self, config):
        """Make the capture whole. config: `OmegaConf.to_container(config, resolve=True)` of the trainer."""
        files = {
            path.relative_to(self.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.glob("step_*/*.json"))
        }
        content = {
            "format": "verlift-capture",
            "version": 2,
            "files": files,
            "config": _plain(config, "config"),
            "versions": {"torch": torch.__version__},
            "seeds": {},
            "fingerprint": {"trainer": "recorded"},
            "partial": True,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        _write_json(self.root / "manifest.json", {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()})

    def _rows(self, arrays):
        """The key of each row, the rows in canonical order, and each row's place in it."""
        if KEY not in arrays:
            sessions: Counter = Counter()
            arrays[KEY] = np.empty(len(arrays["uid"]), dtype=object)
            for row, uid in enumerate(arrays["uid"]):
                arrays[KEY][row] = f"{uid}_{sessions[uid]}_0"
                sessions[uid] += 1
        split = [key.rsplit("_", 2) for key in arrays[KEY]]
        names = [(self.prompts.setdefault(uid, len(self.prompts)), int(session)) for uid, session, _ in split]
        place = {name: number for number, name in enumerate(sorted(set(names)))}
        return list(arrays[KEY]), sorted(range(len(names)), key=names.__getitem__), [place[name] for name in names]


def _masks(tensors, order):
    """Which tokens exist, by level. Prompts are padded on the left, responses on the right."""
    exists, width = tensors["attention_mask"][order].bool().cpu(), tensors["responses"].shape[1]
    mask = tensors.get("response_mask", tensors.get("loss_mask", tensors["attention_mask"]))
    return {
        "sequence": exists,
        "prompt": exists[:, :-width],
        "response": exists[:, -width:],
        "row": torch.ones(len(order), dtype=torch.bool),
        "trained": mask[order][:, -width:].bool().cpu(),
    }


def _packed(name, column, mask, masks):
    if column.dim() == 3:  # position ids of several axes: [B, k, S]
        column = column.transpose(1, 2)
    if name in GARBAGE:
        column = column.masked_fill(~masks["trained"], 0)
    return (column.long() if name == "num_turns" else column)[mask].clone()


def _described(values, level):
    digest = hashlib.sha256(values.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
    return {
        "dtype": str(values.dtype).removeprefix("torch."),
        "shape": list(values.shape),
        "level": level,
        "sha256": digest,
    }


def _plain(value, name):
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(entry, name) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, name) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} holds a {type(value).__name__}; take it out of the batch that is recorded")


def _write_json(path, content):
    _whole(path, lambda file: file.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8"))


def _whole(path, write):
    """Beside its name and then renamed, so that what is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path.with_name(f".{path.name}.tmp"))
    path.with_name(f".{path.name}.tmp").replace(path)
