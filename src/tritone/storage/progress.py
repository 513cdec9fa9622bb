"""How far a transfer is: whoever shows it is called; nobody by default.

with showing(bar):            # what transfers report to inside, also deep in a library call
    Bundle.open("s3://...")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol


class Progress(Protocol):
    """Shows transfers."""

    def begin(self, task: str, files: int, num_bytes: int) -> None:
        """A transfer of so much begins; `task` is like "s3://bucket/folder"."""
        ...

    def advance(self, num_bytes: int) -> None:
        """So many bytes more are done; negative where some of them have to be sent again."""
        ...

    def end(self) -> None:
        """The transfer ended, successful or not."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, task: str, files: int, num_bytes: int) -> None:
        pass

    def advance(self, num_bytes: int) -> None:
        pass

    def end(self) -> None:
        pass


_shown: list[Progress] = [Silent()]
_lock = Lock()


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Inside, transfers of this process are shown by `progress`."""
    _shown.append(progress)
    try:
        yield
    finally:
        _shown.remove(progress)


@contextmanager
def transfer(task: str, files: int, num_bytes: int) -> Iterator["Transfer"]:
    """One transfer, shown by what `showing` named last."""
    running = Transfer(_shown[-1])
    running.progress.begin(task, files, num_bytes)
    try:
        yield running
    finally:
        running.progress.end()


class Transfer:
    """Counts bytes for several threads at once."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def advance(self, num_bytes: int) -> None:
        """So many bytes more."""
        with _lock:
            self.progress.advance(num_bytes)
