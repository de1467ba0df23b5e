"""What git says of the code that a run is made with, and other commits of it to run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import CaptureError


@dataclass(frozen=True)
class TreeState:
    """commit: the full sha, None outside of a repository. changes: what is not committed, as ``git status`` tells."""

    commit: str | None
    changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> TreeState:
        """Of the repository around ``folder``."""
        try:
            commit = git(folder, "rev-parse", "HEAD")
            return cls(commit, tuple(git(folder, "status", "--porcelain").splitlines()))
        except CaptureError:
            return cls(None)

    def refuse_dirty(self) -> None:
        """Raise CaptureError unless this state is one commit and nothing else: only that can be run again."""
        if self.commit is None:
            raise CaptureError(
                "this folder is in no git repository with a commit, so that a baseline could not name the code that "
                "made it; run it inside of one, or record it as it is with --allow-dirty"
            )
        if self.changes:
            named = ", ".join(change.strip() for change in self.changes[:5])
            more = f" and {len(self.changes) - 5} more" if len(self.changes) > 5 else ""
            raise CaptureError(
                f"the tree is dirty ({named}{more}): no commit holds the code of this run; commit or remove it, or "
                "record it as it is with --allow-dirty"
            )


def git(folder: Path, *arguments: str) -> str:
    """The output of a git command in ``folder``; CaptureError with git's own message when it fails."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CaptureError(f"git cannot be started: {error}") from error
    if done.returncode:
        raise CaptureError(f"git {' '.join(arguments)} failed in {folder}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def commits_between(repository: Path, good: str, bad: str) -> tuple[str, ...]:
    """``good`` and what followed it on the way to ``bad``, oldest first, along first parents; full shas.

    Raises CaptureError for a name that is no commit, or when ``good`` is no ancestor of ``bad``.
    """
    first, last = (git(repository, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (good, bad))
    commits = git(repository, "rev-list", "--reverse", "--first-parent", f"{first}..{last}").splitlines()
    if not commits or git(repository, "merge-base", first, last) != first:
        raise CaptureError(f"{good} is no ancestor of {bad}; name the older commit, whose numbers are good, first")
    return (first, *commits)


@contextmanager
def checked_out(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """The files of ``commit`` in the new folder ``folder``, a worktree that is removed afterwards."""
    git(repository, "worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git(repository, "worktree", "remove", "--force", str(folder))
