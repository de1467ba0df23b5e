"""``tensordict_utils``, ``padding`` and ``attention_utils`` give what verl 0.9.1 gives, or the same kind of error."""

import builtins
import os
import pickle
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

from compat import attention_utils, no_padding, tensordict_utils

pytestmark = pytest.mark.oracle

SIDE = Path(__file__).with_name("tensordict_side.py")
ROOT = Path(__file__).parents[2]
CRASHES = {"RuntimeError", "AttributeError", "ValueError", "KeyError"}
"""What torch and tensordict raise where verl checks nothing; there any typed error of ours is the same kind."""

side = runpy.run_path(str(SIDE))


@pytest.fixture(scope="module")
def verls():
    if not (ROOT / ".oracle" / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SIDE), str(ROOT / ".oracle")]
    return pickle.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture(scope="module")
def ours():
    modules = types.SimpleNamespace(tensordict=tensordict_utils, padding=no_padding, attention=attention_utils)
    return side["outcomes"](modules)


@pytest.mark.parametrize("name", side["CASES"])
def test_a_case_gives_the_same(name, verls, ours):
    theirs, own = verls[name], ours[name]
    if not is_error(theirs):
        assert own == theirs
        return
    assert is_error(own), own
    kind = next(kind for kind in theirs[1] if hasattr(builtins, kind))
    assert kind in own[1] or (kind in CRASHES and "VerliftError" in own[1]), (theirs, own)


def is_error(outcome):
    return isinstance(outcome, tuple) and outcome[0] == "error"
