"""What was measured, kept in a JSON file for each part as soon as it is known: a run that is killed keeps what it has.

Results(folder).add("ctc", {"what": "ceiling", "model": ..., ...})  ->  folder/ctc.json
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tritone.report.stamp import Stamp

Row = dict[str, Any]


class Results:
    """The results of a run. A part that is measured again replaces what an older run has of it."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder = folder
        self._stamp = asdict(Stamp.here(command))
        self._parts: dict[str, dict[str, Any]] = {}
        self._start = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    def add(self, part: str, row: Mapping[str, Any]) -> None:
        """Keep a row and print it."""
        content = self._content(part)
        content["rows"].append({**row, "at_s": round(self.elapsed_s, 1)})
        shown = {name: value for name, value in row.items() if name != "notes" and value not in (None, {}, [])}
        self.say(f"{part}: " + ", ".join(f"{name} {_short(value)}" for name, value in shown.items()))
        self._write(part)

    def note(self, part: str, text: str) -> None:
        """Keep what went wrong or was left out."""
        self._content(part)["notes"].append(text)
        self.say(f"{part}: {text}")
        self._write(part)

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"{self.elapsed_s:6.1f} {text}", flush=True)

    def rows(self, part: str) -> list[Row]:
        """The rows of this run."""
        return list(self._content(part)["rows"])

    def _content(self, part: str) -> dict[str, Any]:
        return self._parts.setdefault(part, {"stamp": self._stamp, "rows": [], "notes": []})

    def _write(self, part: str) -> None:
        path = self.folder / f"{part}.json"
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(self._parts[part], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.replace(path)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
