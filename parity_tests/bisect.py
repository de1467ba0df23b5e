"""Find what changed a run's numbers: the key of a config, or the commit of a repository, and the first stage.

Both searches only ask "do these two runs differ, and where first"; how a run is made is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from omegaconf import DictConfig, OmegaConf

from parity_tests.capture import Capture
from parity_tests.compare import first_difference
from parity_tests.verdict import FieldVerdict, Verdict
from runtime.config.flat import raw_leaves
from runtime.config.validate import validate
from runtime.errors import ConfigError

ABSENT = object()
"""The value of a key that one of two configs does not have."""
_NO_NUMBERS = ("trainer.experiment_name", "trainer.project_name", "trainer.default_local_dir", "trainer.logger")


@dataclass(frozen=True)
class KeyFinding:
    """first: where the left and the right run part; None when they are equal. keys: which of those that differ are
    responsible, key -> (left, right). differing: how many keys differ. runs: how many runs it took."""

    first: FieldVerdict | None
    keys: Mapping[str, tuple[Any, Any]]
    differing: int
    runs: int

    def lines(self) -> Iterator[str]:
        """What to print; the last line is the answer."""
        if self.first is None:
            yield f"PARITY PASS: of {self.differing} keys that differ, none changes a number"
            return
        place = Verdict(("left", "right"), ()).describe(self.first)
        yield f"{self.differing} keys differ; {self.runs} runs; first difference at {place}"
        named = ", ".join(f"{key} ({_text(old)} -> {_text(new)})" for key, (old, new) in self.keys.items())
        together = " (together; none of them does it alone)" if len(self.keys) > 1 else ""
        yield f"BISECT FOUND {named}{together}: changes step {self.first.step} stage {self.first.stage}"


def find_key(left: DictConfig, right: DictConfig, run: Callable[[DictConfig], Capture]) -> KeyFinding:
    """Which of the keys that differ between two configs make their runs part where they first do.

    run: trains with a config and returns the capture; it is called about twice per halving of the keys. A mixture of
    both configs that is refused (numbers that do not divide, say) counts as one that does not part there.
    """
    differing = differing_keys(left, right)
    base = run(left)
    first = first_difference(base, run(right))
    tried: dict[frozenset[str], bool] = {}

    def parts_there(keys: Sequence[str]) -> bool:
        names = frozenset(keys)
        if names not in tried:
            try:
                capture = run(mixed(left, {key: differing[key][1] for key in keys}))
            except ConfigError:
                tried[names] = False
            else:
                tried[names] = _place(first_difference(base, capture)) == _place(first)
        return tried[names]

    found = minimal(list(differing), parts_there) if first else []
    return KeyFinding(first, {key: differing[key] for key in found}, len(differing), len(tried) + 2)


def differing_keys(left: DictConfig, right: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (left, right) of each leaf that differs as it is written; what follows by interpolation is not told
    twice, and names, folders and loggers, which no number depends on, are left out."""
    ours, theirs = raw_leaves(left), raw_leaves(right)
    sides = {key: (ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in [*ours, *(theirs.keys() - ours.keys())]}
    return {key: pair for key, pair in sorted(sides.items()) if pair[0] != pair[1] and key not in _NO_NUMBERS}


def mixed(config: DictConfig, changes: Mapping[str, Any]) -> DictConfig:
    """``config`` with the leaves ``changes``. Raises ConfigError when such a config is not allowed."""
    changed = config.copy()
    OmegaConf.set_readonly(changed, False)
    OmegaConf.set_struct(changed, False)
    for key, value in changes.items():
        parent, _, name = key.rpartition(".")
        if value is ABSENT:
            OmegaConf.select(changed, parent).pop(name)
        else:
            OmegaConf.update(changed, key, value, merge=False, force_add=True)
    validate(changed, [])
    return changed


def minimal(items: list[str], holds: Callable[[Sequence[str]], bool]) -> list[str]:
    """A part of ``items`` for which ``holds`` is true, and no longer when any one of it is left out.

    ``holds(items)`` is taken to be true. This is delta debugging (Zeller and Hildebrandt, 2002, ddmin).
    """
    pieces = 2
    while len(items) > 1:
        bounds = [len(items) * piece // pieces for piece in range(pieces + 1)]
        parts = [items[start:end] for start, end in pairwise(bounds)]
        rests = [[item for item in items if item not in part] for part in parts] if pieces > 2 else []
        if (part := next(filter(holds, parts), None)) is not None:
            items, pieces = part, 2
        elif (rest := next(filter(holds, rests), None)) is not None:
            items, pieces = rest, pieces - 1
        elif pieces == len(items):
            break
        else:
            pieces = min(len(items), 2 * pieces)
    return items


def first_changed(commits: Sequence[str], changed: Callable[[str], bool | None]) -> tuple[int, int]:
    """The places of two commits: the last that is as the first of ``commits``, and the first that is known to differ.

    The first is taken to be unchanged and the last to be changed. changed: None for a commit that cannot be run; what
    lies between the two places returned could not be run.
    """
    low, high = 0, len(commits) - 1
    broken: set[int] = set()
    while between := [place for place in range(low + 1, high) if place not in broken]:
        middle = min(between, key=lambda place: abs(2 * place - low - high))
        answer = changed(commits[middle])
        if answer is None:
            broken.add(middle)
        elif answer:
            high = middle
        else:
            low = middle
    return low, high


def _place(difference: FieldVerdict | None) -> tuple[int, str] | None:
    return (difference.step, difference.stage) if difference else None


def _text(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)
