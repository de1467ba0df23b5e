"""Calls functions of ``verl.trainer.ppo`` in a process of their own; the same calls run on our functions in the test's.

Run as a process (``ppo_side.py FOLDER``) it imports verl from FOLDER; pickled (module, name, arguments, seed) come on
stdin. A batch travels as ``("batch", tensors, arrays, meta_info)``, both as an argument and in a result.
"""

import importlib
import os
import pickle
import sys
import traceback

import numpy as np
import torch


def run(dataproto, function, arguments, seed):
    """What ``function(**arguments)`` returns, and what it makes of the batch it was given, as plain data."""
    built = {name: build(dataproto, value) for name, value in arguments.items()}
    torch.manual_seed(seed)
    returned = plain(function(**built))
    return returned, {name: plain(value) for name, value in built.items() if hasattr(value, "non_tensor_batch")}


def build(dataproto, value):
    if isinstance(value, tuple) and value[0] == "batch":
        _, tensors, arrays, meta_info = value
        # No copies: a function that changes a batch in place must not change the test's.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return dataproto.from_dict(tensors=tensors, non_tensors=dict(arrays), meta_info=dict(meta_info))
    return value


def plain(value):
    if hasattr(value, "non_tensor_batch"):
        tensors = {} if value.batch is None else {name: tensor.clone() for name, tensor in value.batch.items()}
        return "batch", tensors, dict(value.non_tensor_batch), dict(value.meta_info)
    if isinstance(value, tuple | list):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach()
    return value.item() if isinstance(value, np.generic) else value


def controller(kind, *values):
    from verl.trainer.ppo import core_algos

    return getattr(core_algos, kind)(*values)


def prepare(arguments):
    """Arguments of verl's own types, which do not travel: ``("controller", kind, value, ...)``,
    ``("config", settings)`` and ``("actor", settings)``."""
    from verl.trainer.config import AlgoConfig
    from verl.workers.config import ActorConfig

    made = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, tuple) and value[0] == "controller":
            made[name] = controller(*value[1:])
        if isinstance(value, tuple) and value[0] == "config":
            made[name] = AlgoConfig(**value[1])
        if isinstance(value, tuple) and value[0] == "actor":
            made[name] = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, **value[1])
    return made


def class_fields(names):
    """Of each config dataclass its fields with defaults (a group's as its class), and the fields that may be set."""
    import dataclasses

    import verl.trainer.config as of_trainer
    import verl.utils.profiler.config as of_profiler
    import verl.workers.config as of_workers

    found = {}
    for name in names:
        made = next(getattr(module, name) for module in (of_trainer, of_workers, of_profiler) if hasattr(module, name))
        found[name] = (
            {f.name: default_of(f, dataclasses.MISSING) for f in dataclasses.fields(made)},
            sorted(made._mutable_fields),
        )
    return found


def default_of(field, missing):
    """The default, or of a group its class's name."""
    if field.default is not missing:
        return field.default
    if field.name == "reward_manager":
        return None  # verl's class of it cannot be made
    value = field.default_factory()
    return type(value).__name__ if hasattr(value, "_mutable_fields") else value


def preset(name):
    """``RolloutCorrectionConfig.NAME()`` as a dict."""
    from verl.trainer.config import RolloutCorrectionConfig

    return dict(getattr(RolloutCorrectionConfig, name)())


def serve(folder):
    """Answer until stdin closes; a call that raises is answered with its traceback."""
    sys.path.insert(0, folder)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from verl import DataProto

    while True:
        try:
            module, name, arguments, seed = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            function = getattr(importlib.import_module(module), name)
            answer = (True, run(DataProto, function, prepare(arguments), seed))
        except Exception:
            answer = (False, traceback.format_exc())
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
