"""The algorithm core: pure functions on packed tensors. Imports torch and nothing of this project."""
