"""The isolated question: each stage of both trainers on the same inputs, in actors that are started once."""

from parity_tests.isolated.bench import Bench
from parity_tests.isolated.feed import Feed, feed_of
from parity_tests.isolated.runs import isolated

__all__ = ["Bench", "Feed", "feed_of", "isolated"]
