"""The one rule by which tensors are named by their content."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class TensorDigest:
    """The ``tensor_digest`` of pieces put together on dim 0, which need not be in memory at once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, piece: Tensor) -> None:
        """Take in the next piece."""
        values = piece.detach().cpu().contiguous().reshape(-1)
        self._hash.update(values.view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """The digest of all pieces so far."""
        return self._hash.hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """The sha256 of a tensor's values as they lie in memory, row by row, in its own dtype; its shape takes no part."""
    digest = TensorDigest()
    digest.update(tensor)
    return digest.hexdigest()
