"""Results that many tests need and that take long: each is made once a run, by the worker that needs it first.

A worker that needs one which another is making waits for it. Results are pickled; files are best given by path.
"""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

Result = TypeVar("Result")


class Shared:
    """Calling it returns the result of `make(folder)`; the folder is new, and stays until the run ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], Result]) -> Result:
        folder = self.folder / name.replace("/", "-")
        kept = folder / "result.pickle"
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not kept.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what a worker left that failed or ended here
                folder.mkdir()
                result = make(folder)
                kept.write_bytes(pickle.dumps(result))
            found: Result = pickle.loads(kept.read_bytes())
        return found


def shared_of(factory: pytest.TempPathFactory) -> Shared:
    """The one of this run: in the folder above those of the workers, which pytest-xdist names after them."""
    base = factory.getbasetemp()
    return Shared((base.parent if base.name.startswith("popen-") else base) / "shared")
