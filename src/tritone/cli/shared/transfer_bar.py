"""Transfers from and to storage, shown on stderr: a bar on a terminal, a line for each large one elsewhere."""

import sys
from typing import Any

import typer

LARGE = 10 * 10**6  # bytes


class TransferBar:
    """See `tritone.storage.progress.Progress`."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def begin(self, task: str, files: int, num_bytes: int) -> None:
        """Show a bar, or a line."""
        if not sys.stderr.isatty():
            if num_bytes >= LARGE:
                typer.echo(f"{task}: {files} files, {num_bytes / 1e6:.1f} MB ...", err=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(task, total=num_bytes)
        self._bar.start()

    def advance(self, num_bytes: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._task, num_bytes)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
