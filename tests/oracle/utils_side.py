"""verl 0.9.1's helpers, called by module and name; see ``verl_side.py`` for how."""

import importlib
import sys

import verl_side


def of_module(module, name, arguments, keywords):
    return getattr(importlib.import_module(f"verl.utils.{module}"), name)(*arguments, **keywords)


def dynamic_batch(tensors, objects, **limits):
    """Rows and object columns of each micro-batch."""
    from verl import DataProto
    from verl.utils.seqlen_balancing import prepare_dynamic_batch

    parts, rows = prepare_dynamic_batch(DataProto.from_dict(tensors, objects), **limits)
    return rows, [part.batch["input_ids"] for part in parts], [part.non_tensor_batch["uid"].tolist() for part in parts]


def schedule(name, steps, **arguments):
    """Learning rates of the first steps, of an optimizer with rate 1."""
    import torch
    from verl.utils import torch_functional

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(torch_functional, name)(optimizer, **arguments)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


def metric(aggregation, of_ranks):
    from verl.utils.metric import Metric

    metrics = [Metric(aggregation, values[0]) for values in of_ranks]
    for one, values in zip(metrics, of_ranks, strict=True):
        one.extend(values[1:])
    return metrics[0].aggregate(), Metric.aggregate_dp(metrics)


def appended(dictionaries, prefix):
    from verl.utils.py_functional import append_to_dict

    data = {}
    for one in dictionaries:
        append_to_dict(data, one, prefix)
    return data


def flops(model_type, settings, lengths, seconds):
    """TFLOPs a second that ``FlopsCounter`` of a config of ``model_type`` estimates."""
    from unittest import mock

    from transformers import AutoConfig
    from verl.utils import flops_counter

    counter = flops_counter.FlopsCounter(AutoConfig.for_model(model_type, **settings))
    with mock.patch.object(flops_counter, "get_device_flops"):  # it asks CUDA, which may not be there
        return counter.estimate_flops(lengths, seconds)[0]


if __name__ == "__main__":
    for function in (of_module, dynamic_batch, schedule, metric, appended, flops):
        setattr(verl_side, function.__name__, function)
    verl_side.serve(sys.argv[1])
