"""The algorithm core: pure functions on packed tensors. Imports torch, numpy and numba, and nothing of this project."""
