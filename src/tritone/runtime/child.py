"""Modules of ours that run in a process of their own.

    python_command("tritone.pipelines.memory", path, index)  ->  the command, which calls main(path, index) of it

`python -m` and `python -c` look for modules in the current folder first, where a file called json.py would be run.
"""

import json
import os
import sys
from pathlib import Path

# Isolated, Python looks for modules in its own folders alone, until it is given where this process does.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from importlib import import_module; "
    "import_module(sys.argv[2]).main(*sys.argv[3:])"
)


def python_command(module: str, *arguments: object) -> list[str]:
    """The command that calls `main` of a module with arguments, which arrive as text.

    It imports from where this process does, but for the current folder and others that depend on it.
    """
    places = [each for each in sys.path if os.path.isabs(each)]
    ours = str(Path(__file__).resolve().parents[2])  # the current folder may be where we are from
    return [interpreter(), "-I", "-c", START, json.dumps([*places, ours]), module, *map(str, arguments)]


def interpreter() -> str:
    """The program of this Python; where it is embedded, as in Triton, that which it belongs to."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return str(Path(sys.exec_prefix) / "bin" / "python3")
