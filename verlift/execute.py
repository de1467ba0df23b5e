"""``verlift exec``: run a command of yours with the verl alias active."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Let the alias win where the real verl is installed.")]


def execute(command: Command, force: Force = False) -> NoReturn:
    """Run COMMAND with `import verl` served by verlift, in it and in all that it starts, Ray workers included.

    The command takes the place of this process, so that signals and the exit code are its own.
    """
    from compat.alias import AliasError, alias_environment
    from compat.alias.real_verl import folders_of_command, refuse_real_verl

    if not force:
        refuse_real_verl(folders_of_command(command), "--force")
    environment = alias_environment(os.environ)
    environment["PATH"] = _with_our_python(environment.get("PATH", os.defpath))
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise AliasError(f"there is no command {command[0]!r}: give a program on PATH, or the path of one")
    sys.stdout.flush()
    os.execve(program, command, environment)


def _with_our_python(path: str) -> str:
    """``path`` with the folder of our Python first, since another ``python`` could not import the alias."""
    folder = str(Path(sys.executable).parent)
    return path if folder == path.split(os.pathsep)[0] else os.pathsep.join([folder, path])
