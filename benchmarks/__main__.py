"""``python -m benchmarks``: every benchmark, one table each."""

from benchmarks import algorithms

if __name__ == "__main__":
    algorithms.main()
