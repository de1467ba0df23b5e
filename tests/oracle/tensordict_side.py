"""Runs cases on ``tensordict_utils``, ``padding`` and ``attention_utils``, verl's or ours, and reports plain data.

Run as a process (``tensordict_side.py FOLDER``) it imports verl from FOLDER and writes the outcomes of all cases,
pickled, to stdout; the test runs the same ``outcomes`` on ours.
"""

import copy
import pickle
import sys
import types

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def plain(value):
    """Nested plain data that says the same as ``value``."""
    if isinstance(value, NonTensorStack):
        return "stack", value.tolist()
    if isinstance(value, NonTensorData):
        return "shared", plain(value.data)
    if isinstance(value, TensorDict):
        return {key: plain(value.get(key)) for key in sorted(value.keys())}, tuple(value.batch_size)
    if isinstance(value, torch.Tensor):
        rows = [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
        return str(value.dtype), "jagged" if value.is_nested else "dense", rows
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def table(rows=6, offset=0):
    number = torch.arange(rows) + offset
    return TensorDict(
        {
            "ids": number[:, None] * 10 + torch.arange(3),
            "score": number / 2,
            "ragged": jagged([torch.arange(int(n) % 3 + 1) + int(n) for n in number]),
            "uid": NonTensorStack(*[NonTensorData(f"u{n}") for n in number]),
            "turns": NonTensorStack(*[NonTensorData([float(n)] * (int(n) % 2)) for n in number]),
            "temperature": NonTensorData(0.7),
        },
        batch_size=[rows],
    )


def dense(rows=6):
    return table(rows).exclude("ragged")


def padded():
    """Prompts of 2, 1 and 3 tokens in a width of 3, responses of 1, 3 and 2 in a width of 4."""
    prompts, responses = torch.tensor([2, 1, 3]), torch.tensor([1, 3, 2])
    places = torch.arange(4)
    mask = torch.cat([places[:3] >= 3 - prompts[:, None], places < responses[:, None]], dim=1).long()
    ids = torch.arange(21).view(3, 7) + 100
    return TensorDict(
        {
            "input_ids": ids * mask,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask[:, 3:],
            "prompts": ids[:, :3],
            "responses": ids[:, 3:],
        },
        batch_size=[3],
    )


def with_positions():
    data = padded()
    data["position_ids"] = torch.stack([data["position_ids"] + shift for shift in range(4)], dim=1)
    return data


def with_experts():
    data = padded()
    for key, width in (("routed_experts", 2), ("teacher_logprobs", 3), ("teacher_ids", 3)):
        data[key] = torch.arange(21 * width).view(3, 7, width)
    return data


def jagged_lengths():
    rows = [torch.arange(n) for n in (2, 1, 3)], [torch.arange(n) for n in (1, 3, 2)]
    return TensorDict({"prompts": jagged(rows[0]), "responses": jagged(rows[1])}, batch_size=[3])


def in_place(operation, data, *arguments):
    return operation(data, *arguments), data


def embeds():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    keys = {"prompt_embeds": torch.rand(2, 3, 2).round(), "negative_prompt_embeds": torch.ones(2, 3, 2)}
    return TensorDict({**keys, **{f"{key}_mask": mask for key in keys}}, batch_size=[2])


def unequal_union(tu):
    return tu.union_tensor_dict(dense(), table(4))


TU_CASES = {
    "assign": lambda tu: tu.assign_non_tensor(dense(), a=1, b=[[], [1], [2]] * 2, c=NonTensorData("x"), d={"k": [1]}),
    "assign_data": lambda tu: in_place(tu.assign_non_tensor_data, dense(), "a", [1, 2]),
    "assign_stack": lambda tu: in_place(tu.assign_non_tensor_stack, dense(), "a", [{"b": 1}] * 6),
    "assign_not_a_tensordict": lambda tu: tu.assign_non_tensor({}, a=1),
    "unwrap": lambda tu: [tu.unwrap_non_tensor_data(NonTensorData("a")), tu.unwrap_non_tensor_data(3)],
    "non_tensor": lambda tu: [tu.get_non_tensor_data(table(), key, "d") for key in ("temperature", "missing")],
    "get": lambda tu: [tu.get(table(), key, "d") for key in ("ids", "uid", "turns", "temperature", "missing")],
    "get_keys": lambda tu: tu.get_keys(table(), ["ids", "uid", "temperature"]),
    "get_keys_missing": lambda tu: tu.get_keys(table(), ["ids", "missing"]),
    "pop": lambda tu: [in_place(tu.pop, table(), key, "d") for key in ("ids", "uid", "temperature", "missing")],
    "pop_keys": lambda tu: in_place(tu.pop_keys, table(), ["score", "turns", "temperature"]),
    "pop_keys_missing": lambda tu: tu.pop_keys(table(), ["missing"]),
    "contiguous": lambda tu: tu.contiguous(table()),
    "nested": lambda tu: tu.nested_tensor_from_tensor_list([torch.arange(2), torch.arange(3)]),
    "nested_none": lambda tu: tu.nested_tensor_from_tensor_list([]),
    "nested_2d": lambda tu: tu.nested_tensor_from_tensor_list([torch.ones(n, 2) for n in (1, 3)], 1),
    "nested_last": lambda tu: tu.nested_tensor_from_tensor_list([torch.ones(4, n) for n in (1, 3)]).offsets(),
    "nested_bad_dim": lambda tu: tu.nested_tensor_from_tensor_list([torch.ones(2)], 2),
    "concat_nested": lambda tu: tu.concat_nested_tensors([table()["ragged"], table(3)["ragged"]]),
    "concat_nested_dense": lambda tu: tu.concat_nested_tensors([torch.ones(2, 2)]),
    "concat": lambda tu: tu.concat_tensordict([table(), table(2, offset=6)]),
    "concat_dense": lambda tu: tu.concat_tensordict([dense(), dense(2)]),
    "concat_none": lambda tu: tu.concat_tensordict([]),
    "concat_no_rows": lambda tu: tu.concat_tensordict([TensorDict({"a": NonTensorData(n)}) for n in (1, 2)]),
    "concat_jagged_and_dense": lambda tu: tu.concat_tensordict([table(), dense()]),
    "chunk": lambda tu: tu.chunk_tensordict(table(), 3),
    "chunk_unequal": lambda tu: tu.chunk_tensordict(table(), 4),
    "build": lambda tu: tu.get_tensordict({"a": torch.ones(2), "b": ["x", [1]], "c": np.arange(2)}, {"d": 1}),
    "build_unequal": lambda tu: tu.get_tensordict({"a": torch.ones(2), "b": ["x"]}),
    "build_twice": lambda tu: tu.get_tensordict({"a": torch.ones(2)}, {"a": 1}),
    "build_tensors_in_a_list": lambda tu: tu.get_tensordict({"a": [torch.ones(2)]}),
    "build_nothing": lambda tu: tu.get_tensordict({}, {"a": 1}),
    "index": lambda tu: tu.index_select_tensor_dict(table(), [3, 0, 3]),
    "index_tensor": lambda tu: tu.index_select_tensor_dict(dense(), torch.tensor([5])),
    "index_none": lambda tu: tu.index_select_tensor_dict(None, [0]),
    "index_2d": lambda tu: tu.index_select_tensor_dict(dense(), torch.zeros(1, 1, dtype=torch.long)),
    "union": lambda tu: tu.union_tensor_dict(dense(), TensorDict({"new": torch.ones(6)}, batch_size=[6])),
    "union_same": lambda tu: tu.union_tensor_dict(dense(), dense()),
    "union_conflict": lambda tu: tu.union_tensor_dict(dense(), TensorDict({"score": torch.ones(6)}, batch_size=[6])),
    "union_unequal": unequal_union,
    "iterate": lambda tu: list(tu.make_iterator(table(), 2, 2)),
    "iterate_shuffled": lambda tu: list(tu.make_iterator(table(), 3, 2, 7, {"shuffle": True})),
    "iterate_unequal": lambda tu: list(tu.make_iterator(table(), 4, 1)),
    "equal": lambda tu: tu.assert_tensordict_eq(table(), table()),
    "unequal_keys": lambda tu: tu.assert_tensordict_eq(table(), dense()),
    "unequal_values": lambda tu: tu.assert_tensordict_eq(table(), table(offset=1)),
    "pad": lambda tu: tu.pad_to_divisor(dense(), 8),
    "pad_3_to_8": lambda tu: tu.pad_to_divisor(dense(3), 8),
    "pad_nothing": lambda tu: tu.pad_to_divisor(dense(), 3),
    "pad_not_a_tensordict": lambda tu: tu.pad_to_divisor({}, 3),
    "unpad": lambda tu: tu.unpad(dense(), 2),
    "unpad_nothing": lambda tu: tu.unpad(dense(), 0),
    "rows_to_columns": lambda tu: tu.list_of_dict_to_tensordict(
        [{"a": torch.ones(2), "b": torch.arange(n), "c": f"{n}"} for n in (1, 3)]
    ),
    "position_ids": lambda tu: in_place(tu.maybe_fix_3d_position_ids, dense()),
}
PADDING_CASES = {
    "to_jagged": lambda p: in_place(p.left_right_2_no_padding, padded()),
    "to_jagged_experts": lambda p: p.left_right_2_no_padding(with_experts()),
    "to_jagged_positions": lambda p: p.left_right_2_no_padding(with_positions())["position_ids"].values(),
    "to_jagged_missing": lambda p: p.left_right_2_no_padding(padded().exclude("position_ids")),
    "to_padded": lambda p: p.no_padding_2_padding(torch.arange(12.0), padded()),
    "to_padded_wide": lambda p: p.no_padding_2_padding(torch.arange(24).view(12, 2), padded()),
    "to_padded_nested": lambda p: p.no_padding_2_padding(jagged([torch.arange(n) for n in (3, 4, 5)]), padded()),
    "to_padded_jagged": lambda p: p.no_padding_2_padding(torch.arange(12.0), jagged_lengths()),
    "to_padded_wrong": lambda p: p.no_padding_2_padding(torch.arange(11.0), padded()),
    "mask": lambda p: [
        p.build_attention_mask_from_nested(jagged([torch.arange(n) for n in (2, 4)]), *width) for width in ((), (5,))
    ],
    "mask_of_dense": lambda p: p.build_attention_mask_from_nested(torch.ones(2, 2)),
    "embeds": lambda p: p.embeds_padding_2_no_padding(embeds().exclude("negative_prompt_embeds")),
    "embeds_negative": lambda p: [
        p.embeds_padding_2_no_padding(embeds())[key] for key in ("negative_prompt_embeds", "prompt_embeds_mask")
    ],
    "response": lambda p: p.response_from_nested(
        jagged([torch.arange(n) for n in (3, 4, 5)]), jagged([torch.ones(n) for n in (1, 3, 2)])
    ),
    "response_to_nested": lambda p: p.response_to_nested(
        torch.arange(8).view(2, 4), jagged([torch.ones(n) for n in (1, 3)])
    ),
}
MASK = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]])
ATTENTION_CASES = {
    "unpad": lambda a: a.unpad_input(torch.arange(18.0).view(3, 3, 2), MASK),
    "unpad_unused": lambda a: a.unpad_input(torch.arange(9).view(3, 3, 1), MASK, 1 - MASK),
    "unpad_bool": lambda a: a.unpad_input(torch.arange(9).view(3, 3, 1), MASK.bool()),
    "pad": lambda a: a.pad_input(torch.arange(12.0).view(6, 2), MASK.flatten().nonzero().flatten(), 3, 3),
    "index": lambda a: a.index_first_axis(torch.arange(6).view(3, 2), torch.tensor([2, 0, 2])),
    "index_1d": lambda a: a.index_first_axis(torch.arange(6), torch.tensor([2])),
}
CASES = {
    **{f"tensordict.{name}": ("tensordict", case) for name, case in TU_CASES.items()},
    **{f"padding.{name}": ("padding", case) for name, case in PADDING_CASES.items()},
    **{f"attention.{name}": ("attention", case) for name, case in ATTENTION_CASES.items()},
}


def outcomes(modules):
    """For each case its result as plain data, or ("error", names of the exception's classes)."""
    found = {}
    for name, (module, case) in CASES.items():
        torch.manual_seed(0)
        try:
            found[name] = plain(copy.deepcopy(case(getattr(modules, module))))
        except Exception as error:
            found[name] = ("error", [kind.__name__ for kind in type(error).__mro__])
    return found


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what verl prints must not mix with the answers
    from verl.utils import attention_utils, tensordict_utils
    from verl.workers.utils import padding

    modules = types.SimpleNamespace(tensordict=tensordict_utils, padding=padding, attention=attention_utils)
    pickle.dump(outcomes(modules), answers)
