"""Files of verl's packages that old code reads by ``importlib.resources``."""

from __future__ import annotations

from importlib.resources.abc import TraversableResources
from pathlib import Path


class FolderReader(TraversableResources):
    """A folder of ours in the place of a package's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> Path:
        return self.folder
