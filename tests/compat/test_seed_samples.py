"""The code samples of the seed documents (construct, repeat, union, reorder) run as they are documented."""

import doctest

import compat.protocol


def test_documented_samples_run():
    results = doctest.testmod(compat.protocol)
    assert results.attempted >= 14
    assert results.failed == 0
