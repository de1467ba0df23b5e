"""Record what each stage of verl's legacy trainer wrote, in the capture format of `verlift parity`.

Copy this file beside your trainer; it needs torch, numpy and safetensors. In `fit()`, after the batch is united with
what was generated and before `_balance_batch`, call `recorder.stage(step, "rollout", batch)`, and so after each stage;
at the end `recorder.close(config)`. Then `verlift parity compare` sets it against a run of verlift.
"""

import hashlib
import json
import math
from collections import defaultdict
from itertools import count
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

TOKENS = ("responses", "response_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "entropy", "values")
SCORES = ("rm_scores", "token_level_scores", "token_level_rewards", "advantages", "returns", "rollout_is_weights")
LEVELS = dict.fromkeys((*TOKENS, *SCORES, "sum_pi_squared"), "response")
LEVELS |= {"prompts": "prompt", "input_ids": "sequence"}
LEVELS |= {"position_ids": "sequence", "reward_baselines": "row", "num_turns": "row"}
OLD_NAMES = {"entropys": "entropy", "loss_mask": "response_mask", "__num_turns__": "num_turns"}
AGAIN = {"reward": ["rm_scores", "token_level_scores"], "advantage": ["response_mask"]}  # written, changed or not
GARBAGE = ("advantages", "returns")  # what verl leaves there where response_mask is 0 means nothing: recorded as 0
MOVING = ("balance", "resample")  # these write no columns but put rows elsewhere: told as the series row_order
KEY = "recorder_key"  # in non_tensor_batch, so that it follows its row through balancing and resampling


class Recorder:
    """Writes to `directory`, which must be new. `levels`: more columns, name -> response, prompt, sequence or row."""

    def __init__(self, directory, levels=None):
        self.root, self.levels, self.step = Path(directory), LEVELS | (levels or {}), None
        self.known, self.prompts = {}, {}
        self.root.mkdir(parents=True)

    def stage(self, step, name, batch, series=None):
        """Write the columns of a `DataProto` that the stage wrote or changed; `series`: floats by metric.

        Rows are written in the order of prompt and session, however they are balanced; at first sight of a step they
        are named, so record it before they are: uid, which session of it, 0 (one output a session).
        """
        path = self.root / f"step_{step}" / f"{name}.json"
        if path.exists():
            raise FileExistsError(f"{path}: stage {name!r} of step {step} is recorded twice")
        if step != self.step:
            self.step, self.known, self.prompts = step, {}, {}
        tensors, arrays = batch.batch, batch.non_tensor_batch
        places = self._places(arrays)
        order = np.argsort(places, kind="stable").tolist()
        masks, columns, objects, series = _masks(tensors, order), {}, {}, dict(series or {})
        for given, values in [*tensors.items(), *arrays.items()]:
            new = OLD_NAMES.get(given, given)
            if new in self.levels and (new == given or new not in tensors):
                columns[new] = _packed(new, torch.as_tensor(values).detach().cpu()[order], masks, self.levels[new])
            elif given in arrays and given != KEY and name == "rollout":
                objects[given] = [_plain(values[row], given) for row in order]
        told = {new: _described(values, self.levels[new]) for new, values in columns.items()}
        wrote = [new for new in told if self.known.get(new) != told[new] or new in AGAIN.get(name, ())]
        self.known |= told
        content = {"step": step, "stage": name, "keys": [str(arrays[KEY][row]) for row in order], "digests": {}}
        content |= {f"{part}_lengths": masks[part].sum(1).tolist() for part in ("prompt", "response")}
        content |= {"columns": {new: told[new] for new in wrote}, "objects": objects}
        series |= {"row_order": places} if name in MOVING else {}
        content["series"] = {key: [repr(float(x)) for x in np.atleast_1d(values)] for key, values in series.items()}
        path.parent.mkdir(exist_ok=True)
        if wrote:
            save_file({new: columns[new] for new in wrote}, path.with_suffix(".safetensors"))
        path.write_text(json.dumps(content), encoding="utf-8")

    def close(self, config):
        """Make the capture whole, else it is refused. config: `OmegaConf.to_container(config, resolve=True)`."""
        paths = sorted(self.root.glob("step_*/*.json"))
        files = {f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        content = {"format": "verlift-capture", "version": 3, "files": files, "config": _plain(config, "config")}
        content |= {"versions": {"torch": torch.__version__}, "fingerprint": {"trainer": "recorded"}, "seeds": {}}
        content |= {"partial": True}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (self.root / "manifest.json").write_text(json.dumps(content), encoding="utf-8")

    def _places(self, arrays):
        """Each row's place in canonical order: that of its prompt in the batch, then of its session."""
        if KEY not in arrays:
            seen: dict = defaultdict(count)
            arrays[KEY] = np.array([f"{uid}_{next(seen[uid])}_0" for uid in arrays["uid"]], dtype=object)
        split = [key.rsplit("_", 2) for key in arrays[KEY]]
        rows = [(self.prompts.setdefault(uid, len(self.prompts)), int(session)) for uid, session, _ in split]
        place = {row: number for number, row in enumerate(sorted(set(rows)))}
        return [place[row] for row in rows]


def _masks(tensors, order):
    """Which tokens exist, by level. Prompts are padded on the left, responses on the right."""
    exists, width = tensors["attention_mask"][order].bool().cpu(), tensors["responses"].shape[1]
    trained = tensors.get("response_mask", tensors.get("loss_mask", exists))[order][:, -width:].bool().cpu()
    masks = {"sequence": exists, "prompt": exists[:, :-width], "response": exists[:, -width:], "trained": trained}
    return {**masks, "row": torch.ones(len(order), dtype=torch.bool)}


def _packed(name, column, masks, level):
    if column.dim() == 3:  # position ids of several axes: [B, k, S]
        column = column.transpose(1, 2)
    if name in GARBAGE:
        column = column.masked_fill(~masks["trained"], 0)
    return (column.long() if name == "num_turns" else column)[masks[level]].clone()


def _described(values, level):
    digest = hashlib.sha256(values.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
    dtype = str(values.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(values.shape), "level": level, "sha256": digest}


def _plain(value, name):
    value = value.tolist() if isinstance(value, np.ndarray | np.generic | torch.Tensor) else value
    if isinstance(value, dict):
        return {str(key): _plain(entry, name) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, name) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} holds a {type(value).__name__}; take it out of the batch that is recorded")
