"""Public names and parameter names of verl 0.9.1's ``protocol``, ``tensordict_utils`` and ``padding``: ours have them.

Run as a process (``test_protocol_surface.py FOLDER``) it imports verl from FOLDER and writes its surface, pickled, to
stdout.
"""

import importlib
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

MODULES = ["verl.protocol", "verl.utils.tensordict_utils", "verl.workers.utils.padding", "verl.utils.attention_utils"]
CLASSES = ["DataProto", "DataProtoConfig", "DataProtoFuture", "DataProtoItem", "BatchData"]

ALLOWED = {
    ("verl.protocol", "DataProto.__setstate__"): "only pickle calls it",
    ("verl.protocol", "deserialize_tensordict"): "verl's parameter `arr` is no array; nothing passes it by name",
    ("verl.utils.attention_utils", "index_first_axis"): "verl hands any arguments on; ours say which",
    ("verl.utils.attention_utils", "pad_input"): "verl hands any arguments on; ours say which",
    ("verl.utils.attention_utils", "unpad_input"): "verl hands any arguments on; ours say which",
}
"""Names whose parameters differ on purpose."""


def parameters(thing):
    if inspect.isclass(thing):
        return None
    return [parameter.name for parameter in inspect.signature(thing).parameters.values()]


def members(kind):
    """Parameters of each public method of a class, and of those that Python itself calls; None for attributes."""
    public = {name for name in dir(kind) if not name.startswith("_") or name in SPECIAL}
    return {name: parameters(getattr(kind, name)) if callable(getattr(kind, name)) else None for name in public}


SPECIAL = {"__len__", "__getitem__", "__getstate__", "__setstate__", "__init__"}


def verls_surface():
    """By (module, name): parameters of each function that the module defines, or the members of each class."""
    surface = {}
    for module in map(importlib.import_module, MODULES):
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            surface[module.__name__, name] = members(thing) if inspect.isclass(thing) else parameters(thing)
    return surface


@pytest.fixture(scope="module")
def verls():
    folder = Path(__file__).parents[2] / ".oracle"
    if not (folder / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, str(folder)], env=environment, stdout=subprocess.PIPE, check=True)
    return pickle.loads(done.stdout)


def ours(module, name):
    from compat.alias.table import table

    row = table().row(module, name)
    assert row is not None, f"names.tsv has no row for {name} of {module}"
    holder, _, attribute = row.target.partition(":")
    return getattr(importlib.import_module(holder), attribute)


def test_every_name_is_there_with_the_same_parameters(verls):
    assert {name for module, name in verls if module == "verl.protocol"} >= set(CLASSES)
    differing = {}
    for (module, name), theirs in verls.items():
        own = ours(module, name)
        if isinstance(theirs, dict):
            found = members(own)
            pairs = {f"{name}.{member}": (found.get(member, "missing"), theirs[member]) for member in theirs}
        else:
            pairs = {name: (parameters(own), theirs)}
        differing |= {(module, name): pair for name, pair in pairs.items() if pair[0] != pair[1]}
    assert differing.keys() == ALLOWED.keys()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what verl prints must not mix with the answers
    pickle.dump(verls_surface(), answers)
