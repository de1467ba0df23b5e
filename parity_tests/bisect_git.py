"""Find the first commit whose numbers differ: check commits out, one a worktree, and run a recorder in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from parity_tests.bisect import first_changed
from parity_tests.capture import Capture
from parity_tests.compare import first_difference
from parity_tests.git import checked_out, commits_between, git
from parity_tests.storage import MANIFEST
from parity_tests.verdict import FieldVerdict, Verdict
from runtime.errors import CaptureError

_LOG_LINES = 5


@dataclass(frozen=True)
class CommitRuns:
    """Runs of commits of one repository.

    command: what makes the captures, with ``{python}`` (this interpreter) and ``{out}`` (a new folder) in it; it runs
    in a worktree of the commit, which is first on ``PYTHONPATH``. directory: gets ``COMMIT/`` and ``COMMIT.log``.
    """

    repository: Path
    command: Sequence[str]
    directory: Path
    done: dict[str, dict[str, Capture]] = field(default_factory=dict)

    def captures(self, commit: str) -> dict[str, Capture]:
        """The captures of ``commit`` by their folder below ``{out}``; CaptureError when it left none.

        The exit code is not asked: a parity run that diverged has recorded what it did.
        """
        if commit not in self.done:
            out = self.directory / commit[:12]
            log = self._run(commit, out)
            found = {path.parent.relative_to(out).as_posix(): path.parent for path in sorted(out.rglob(MANIFEST))}
            if not found:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
                raise CaptureError(f"commit {commit[:12]} left no finished capture; the end of {log}:\n{tail}")
            self.done[commit] = {name: Capture.open(folder) for name, folder in found.items()}
        return self.done[commit]

    def _run(self, commit: str, out: Path) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / f"{commit[:12]}.log"
        words = [word.replace("{python}", sys.executable).replace("{out}", str(out)) for word in self.command]
        with (
            TemporaryDirectory(prefix="verlift-bisect-") as folder,
            checked_out(self.repository, commit, Path(folder) / "tree") as tree,
            log.open("w") as stream,
        ):
            paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
            try:
                subprocess.run(words, cwd=tree, env=environment, stdout=stream, stderr=stream, check=False)
            except OSError as error:
                raise CaptureError(f"{words[0]} cannot be started: {error}") from error
        return log


@dataclass(frozen=True)
class CommitFinding:
    """first: where the good commit and the first changed one part; None when the bad one is equal to the good one.
    ends: both commits as they were named. commits: the first changed one with its subject, preceded by those that could
    not be run and may be it. runs: how many commits were run."""

    first: FieldVerdict | None
    ends: tuple[str, str]
    commits: tuple[str, ...]
    runs: int

    def lines(self) -> Iterator[str]:
        """What to print; the last line is the answer."""
        if self.first is None:
            yield f"PARITY PASS: the numbers of {' and '.join(self.ends)} are equal"
            return
        place = Verdict((self.ends[0], "changed"), ()).describe(self.first)
        yield f"{self.runs} commits were run; first difference at {place}"
        one_of = "one of (the others could not be run) " if len(self.commits) > 1 else ""
        stage = f"step {self.first.step} stage {self.first.stage}"
        yield f"BISECT FOUND {one_of}commit {', '.join(self.commits)}: changes {stage}"


def find_commit(runs: CommitRuns, good: str, bad: str) -> CommitFinding:
    """The first commit after ``good``, on the way to ``bad``, whose captures differ from those of ``good``.

    Raises CaptureError when one of these two cannot be run.
    """
    commits = commits_between(runs.repository, good, bad)
    found: dict[str, FieldVerdict | None] = {}

    def differs(commit: str) -> bool:
        found[commit] = _first_difference(runs, commits[0], commit)
        return found[commit] is not None

    def changed(commit: str) -> bool | None:
        try:
            return differs(commit)
        except CaptureError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return None

    if not differs(commits[-1]):
        return CommitFinding(None, (good, bad), (), len(runs.done))
    low, high = first_changed(commits, changed)
    named = tuple(git(runs.repository, "log", "-1", "--format=%h (%s)", name) for name in commits[low + 1 : high + 1])
    return CommitFinding(found[commits[high]], (good, bad), named, len(runs.done))


def _first_difference(runs: CommitRuns, good: str, commit: str) -> FieldVerdict | None:
    """Of the first capture that differs; CaptureError when the two commits did not record the same ones."""
    ours, theirs = runs.captures(good), runs.captures(commit)
    if ours.keys() != theirs.keys():
        raise CaptureError(f"commit {good[:12]} recorded {sorted(ours)}, commit {commit[:12]} {sorted(theirs)}")
    return next(filter(None, (first_difference(ours[name], theirs[name]) for name in ours)), None)
