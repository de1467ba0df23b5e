"""``verl.base_config``: dataclasses that can be read like dictionaries and are not written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar


@dataclass
class BaseConfig(Mapping[str, Any]):
    """A dataclass whose fields are also keys; a field can be set once, unless ``_mutable_fields`` names it."""

    _mutable_fields: ClassVar[set[str]] = set()
    _target_: str = ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and name not in self._mutable_fields:
            raise FrozenInstanceError(f"{type(self).__name__}.{name} is set already; make a changed copy instead")
        super().__setattr__(name, value)

    def get(self, key: str, default: Any = None) -> Any:
        """The field ``key``, or ``default``."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))
