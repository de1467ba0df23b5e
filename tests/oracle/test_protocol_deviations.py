"""Where ``compat.protocol`` differs from verl 0.9.1 on purpose: the table in docs/deviations.md, from both sides.

Run as a process (``test_protocol_deviations.py FOLDER``) it imports verl from FOLDER and writes what each case gives
there, pickled, to stdout.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.oracle


def objects(*values):
    return np.array(values, dtype=object)


def failed_union(protocol):
    """The columns that are there after a union that failed."""
    left = protocol.DataProto.from_dict({"a": torch.arange(2)}, {"uid": objects("A", "B")})
    right = protocol.DataProto.from_dict({"b": torch.arange(2)}, {"uid": objects("A", "C")})
    with contextlib.suppress(AssertionError):
        left.union(right)
    return sorted(left.batch.keys())


def nan_in_both(protocol):
    with_nan = [protocol.DataProto.from_dict({"a": torch.tensor([float("nan")])}) for _ in range(2)]
    return len(with_nan[0].union(with_nan[1]))


def padded_meta_info(protocol):
    data = protocol.DataProto.from_dict({"a": torch.arange(3)}, meta_info={"metrics": {"loss": 1.0}})
    return protocol.pad_dataproto_to_divisor(data, 8)[0].meta_info


def concatenated_meta_info(protocol, *infos):
    parts = [protocol.DataProto.from_dict({"a": torch.arange(1)}, meta_info=info) for info in infos]
    return protocol.DataProto.concat(parts).meta_info


def column_of_the_first_part(protocol):
    """Rows of a column that only the first of two parts of one row has, and of the one that both have."""
    parts = [protocol.DataProto(non_tensor_batch=columns) for columns in ({"a": objects(1), "b": objects(2)},)]
    parts.append(protocol.DataProto(non_tensor_batch={"a": objects(3)}))
    joined = protocol.DataProto.concat(parts).non_tensor_batch
    return {key: len(array) for key, array in joined.items()}


def dtype_of_a_mini_batch(protocol):
    data = protocol.DataProto.from_dict({"a": torch.arange(4)}, {"turns": np.arange(4, dtype=np.int32)})
    return str(next(iter(data.make_iterator(2, 1))).non_tensor_batch["turns"].dtype)


def unequal_parts(protocol):
    data = protocol.DataProto.from_dict({"a": torch.arange(12)}, auto_padding=True)
    return [len(part) for part in data.chunk(10)]


def renamed(protocol):
    data = protocol.DataProto.from_dict({"a": torch.arange(2), "b": torch.arange(2)})
    return sorted(data.rename(["a", "b"], ["x", "y"]).batch.keys())


def reordered_by_a_list(protocol):
    data = protocol.DataProto.from_dict({"a": torch.arange(3)})
    data.reorder([2, 0, 1])
    return data.batch["a"].tolist()


def built_with_unequal_arrays(protocol):
    return len(protocol.DataProto(non_tensor_batch={"a": objects(1, 2), "b": objects(1)}))


CASES = {
    "P1": lambda protocol: (
        protocol.DataProto.from_dict(non_tensors={"m": [[1, 2], [3, 4]]}).non_tensor_batch["m"].shape
    ),
    "P2": failed_union,
    "P3": nan_in_both,
    "P4": padded_meta_info,
    "P5": lambda protocol: concatenated_meta_info(protocol, {"timing": {"gen": 1.0}}, {"timing": {"gen": 2.0}}),
    "P6": lambda protocol: concatenated_meta_info(protocol, {"metrics": {"a": 1.0}}, {"metrics": {"b": 2.0}}),
    "P7": column_of_the_first_part,
    "P8": dtype_of_a_mini_batch,
    "P9": unequal_parts,
    "P10": renamed,
    "P11": lambda protocol: protocol.DataProto.from_dict({"a": torch.arange(3)})[::-1].batch["a"].tolist(),
    "P12": reordered_by_a_list,
    "P13": built_with_unequal_arrays,
}

VERLS = {
    "P1": (2, 2),
    "P2": ["a", "b"],
    "P3": "AssertionError",
    "P4": {"metrics": {"loss": [1.0, 1.0, 1.0]}},
    "P5": "AssertionError",
    "P6": "AssertionError",
    "P7": {"a": 2, "b": 1},
    "P8": "object",
    "P9": "IndexError",
    "P10": "_KeyThroughLeafError",
    "P11": "ValueError",
    "P12": "AttributeError",
    "P13": 2,
}

OURS = {
    "P1": (2,),
    "P2": ["a"],
    "P3": 1,
    "P4": {"metrics": {"loss": 1.0}},
    "P5": {"timing": {"gen": [1.0, 2.0]}},
    "P6": {"metrics": {"a": [1.0], "b": [2.0]}},
    "P7": "MissingColumnError",
    "P8": "int32",
    "P9": [2, 2, 1, 1, 1, 1, 1, 1, 1, 1],
    "P10": ["x", "y"],
    "P11": [2, 1, 0],
    "P12": [2, 0, 1],
    "P13": "DataProtoError",
}


def outcome(case, protocol):
    """What the case gives, or the name of the error that it ends in."""
    try:
        return case(protocol)
    except Exception as error:
        return type(error).__name__


@pytest.fixture(scope="module")
def verls_outcomes():
    folder = Path(__file__).parents[2] / ".oracle"
    if not (folder / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, str(folder)], env=environment, stdout=subprocess.PIPE, check=True)
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_both_give_what_the_table_says(name, verls_outcomes):
    from compat import protocol

    assert verls_outcomes[name] == VERLS[name]
    assert outcome(CASES[name], protocol) == OURS[name]


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what verl prints must not mix with the answers
    from verl import protocol as verl_protocol

    pickle.dump({name: outcome(case, verl_protocol) for name, case in CASES.items()}, answers)
