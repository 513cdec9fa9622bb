"""docker or podman on this machine: which one, how its command lines are shown, and how they are run."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal, NoReturn

from tritone.errors import ServerSetupError

Engine = Literal["docker", "podman"]
ENGINES: tuple[Engine, ...] = ("docker", "podman")
WIDTH = 50  # columns after which a line of a command is broken


def option(default: Any, help: str, **how: Any) -> Any:
    """A field of an option class, with its help on the command line; `how` as `takes_option_classes` reads it."""
    if isinstance(default, tuple):
        return field(default_factory=lambda: list(default), metadata={"help": help, **how})
    return field(default=default, metadata={"help": help, **how})


def find_engine(wanted: Engine | None = None, *, installed: bool = True) -> Engine:
    """The engine to use: the one that is wanted, else the first of docker and podman on PATH.

    Args:
        installed: whether it must be on PATH. If not, docker is the answer where there is neither.

    Raises:
        ServerSetupError: it must be there and is not.
    """
    found = [each for each in ENGINES if shutil.which(each)]
    if wanted is not None:
        if installed and wanted not in found:
            raise ServerSetupError(f"{wanted} is not on PATH. Install it, or print the command with --dry-run.")
        return wanted
    if found:
        return found[0]
    if installed:
        raise ServerSetupError(
            "neither docker nor podman is on PATH. Install one of them (Debian, Ubuntu: apt-get install podman), or "
            "print the command with --dry-run."
        )
    return ENGINES[0]


def shown(command: Sequence[str]) -> str:
    """A command line as one for a POSIX shell, over several lines: each begins with an option."""
    lines, line = [], ""
    for word in map(shlex.quote, command):
        if line and word.startswith("-") and len(line) + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n    ".join([*lines, line])


def replace_process(command: Sequence[str]) -> NoReturn:
    """Run a command in place of this process: signals and the exit code are the command's own.

    Raises:
        OSError: it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], list(command))
