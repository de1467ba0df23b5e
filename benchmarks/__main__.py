"""``python -m benchmarks``: every benchmark."""

from benchmarks import algorithms

if __name__ == "__main__":
    algorithms.main()
