"""A start that cannot be scheduled ends in an error that names the resource, in time."""

import time

import pytest

from runtime.cluster import await_cpus, reserve
from runtime.errors import ResourceError

pytestmark = pytest.mark.ray


def test_bundles_that_do_not_fit_are_refused_in_time_and_given_back(cluster):  # noqa: ARG001
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"within 1 s.*CPU.*1000 wanted.*runtime\.num_cpus"):
        reserve([{"CPU": 1000.0}], timeout_s=1)
    assert time.monotonic() - started < 30
    reserve([{"CPU": 0.5}], timeout_s=30).release()


def test_a_gpu_that_is_not_there_is_named(cluster):  # noqa: ARG001
    with pytest.raises(ResourceError, match=r"GPU.*1 wanted, 0 free"):
        reserve([{"CPU": 0.5, "GPU": 1.0}], timeout_s=1)


def test_cpus_that_no_node_has_are_refused_at_once(cluster):  # noqa: ARG001
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"TransferQueue needs 999 logical CPUs.*raise runtime\.num_cpus"):
        await_cpus(999, timeout_s=60, what="TransferQueue")
    assert time.monotonic() - started < 5
