"""One Ray and one TransferQueue a session: starting them again costs half a minute, and hangs old clients."""

from __future__ import annotations

from runtime.environment import set_worker_env

set_worker_env()

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# No test is timed: machines are noisy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def cluster():
    """A local Ray with TransferQueue in it, stopped when the session ends."""
    import ray

    from runtime.cluster import start_ray
    from runtime.config import load_config
    from v1 import data_plane

    config = load_config("tiny").config
    start_ray(config)
    data_plane.start(config)
    yield config
    data_plane.stop()
    ray.shutdown()
