"""How `tritone transcribe` shows results: data on stdout in the order of the files, progress and partials on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from tritone.cli.shared.documents import Documents
from tritone.errors import TritoneError
from tritone.formats import write
from tritone.result import TranscriptResult
from tritone.transcript import Transcript


class TranscriptPrinter:
    """Prints results; `failed`: whether one of them was an error.

    Alternatives are printed where there are any, words with `timestamps`, confidence with `details`, segments with
    `details` or where they have alternatives.
    """

    def __init__(
        self,
        *,
        num_files: int,
        as_json: bool,
        timestamps: bool,
        details: bool = False,
        names: bool | None = None,
        ids: Sequence[str] = (),
        ordered: bool = True,
        documents: Documents | None = None,
    ) -> None:
        """Prepare for so many files.

        Args:
            names: whether their paths stand before the texts; by default those of several do.
            ids: of the files in a Kaldi list, one for each or none. They stand before the texts as in Kaldi's file
                `text`, and in JSON beside the paths.
            ordered: False prints results as they come.
            documents: where results go, and in which format; None is stdout, text or JSON.
        """
        self.data: TextIO | None = None
        """Where results go; None is stdout, or `documents`."""
        self._documents = documents
        self._ordered = ordered
        self.failed = False
        self._names = num_files > 1 if names is None else names
        self._ids = ids
        self._num_files = num_files
        self._as_json = as_json
        self._timestamps = timestamps
        self._details = details
        self._waiting: dict[int, TranscriptResult] = {}
        self._next = 0
        self._console = Console(stderr=True)

    def show(self, result: TranscriptResult) -> None:
        """Print the result, in order once those of all files before it are printed."""
        if not self._ordered:
            self._print(result)
            return
        self._waiting[result.index] = result
        while self._next in self._waiting:
            self._print(self._waiting.pop(self._next))
            self._next += 1

    def _lines(self, result: TranscriptResult) -> list[str]:
        """The lines of a result; raises its error, or `InputError` if the format cannot hold it."""
        transcript = result.get()
        if self._documents is not None and self._documents.format != "text":
            return self._documents.text(result.index, transcript).split("\n")[:-1]
        if self._as_json:
            return [json.dumps(self._named(result) | self._fields(transcript), ensure_ascii=False)]
        printed = [transcript.text]
        if any(word.speaker for word in transcript.words):
            printed = write("text", transcript).splitlines()  # a line for each turn of a speaker
        if self._ids:
            printed = [f"{self._ids[result.index]} {line}" for line in printed]
        elif self._names:
            printed = [f"{result.source}\t{line}" for line in printed]
        return [*printed, *self._more(transcript)]

    def _named(self, result: TranscriptResult) -> dict[str, Any]:
        return {"id": self._ids[result.index], "path": result.source} if self._ids else {"path": result.source}

    @contextmanager
    def progress(self) -> Iterator[Callable[[], None]]:
        """A progress bar for several files on a terminal; gives the function that moves it by one file."""
        if self._num_files == 1 or not self._console.is_terminal:
            yield lambda: None
            return
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # Lines on a terminal must go above the bar; elsewhere stdout is data and stays as it is.
        with Progress(*columns, console=self._console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
            task = bar.add_task("files", total=self._num_files)
            yield lambda: bar.advance(task)

    @contextmanager
    def partials(self, path: str) -> Iterator[Callable[[Transcript], None]]:
        """Show a growing text: as JSON lines, as one changing line on a terminal, or not at all."""
        if self._as_json:
            yield self._partial_lines(path)
        elif self._console.is_terminal:
            with Live(console=self._console, transient=True, auto_refresh=False) as live:
                yield lambda transcript: live.update(Text(transcript.whole_text, style="dim"), refresh=True)
        else:
            yield lambda transcript: None

    def _partial_lines(self, path: str) -> Callable[[Transcript], None]:
        shown = ""

        def show(transcript: Transcript) -> None:
            nonlocal shown
            if transcript.whole_text != shown and not transcript.is_final:
                shown = transcript.whole_text
                self._line({"path": path, "text": shown, "partial": True})

        return show

    def _print(self, result: TranscriptResult) -> None:
        try:
            lines = self._lines(result)
        except TritoneError as error:
            self.failed = True
            if self._as_json:
                self._line(self._named(result) | {"error": str(error)})
            else:
                message = str(error)
                known = result.source in message
                typer.echo(f"error: {message if known else f'{result.source}: {message}'}", err=True)
            return
        if self._documents is None:
            for line in lines:
                self._echo(line)
        else:
            self._documents.data = self.data
            self._documents.put(result.index, "".join(f"{line}\n" for line in lines))

    def _more(self, transcript: Transcript) -> Iterator[str]:
        """What follows the text, each line indented."""
        if self._details:
            sure = "unknown" if transcript.confidence is None else f"{transcript.confidence:.2f}"
            yield f"    confidence {sure}, {transcript.audio_s:.2f} s"
        for segment in transcript.ended if self._has_segments(transcript) else ():
            yield f"{_start_s(segment):9.2f} {segment.audio_s:8.2f}  [{segment.segment}] {segment.text}"
            yield from _readings(segment)
        yield from _readings(transcript)
        for part in transcript.segments if self._timestamps and not transcript.words else ():
            yield f"{part.start_s:9.2f} {part.end_s:8.2f}  {part.text}"
        for word in transcript.words if self._timestamps else ():
            who = f"  {word.speaker}" if word.speaker else ""
            yield f"{word.start_s:9.2f} {word.end_s:8.2f}  {word.text}{who}"

    def _fields(self, transcript: Transcript) -> dict[str, Any]:
        fields = transcript.to_dict()
        wanted = ["text"]
        if self._timestamps or self._details:
            wanted += ["audio_s", "confidence"]
        if self._timestamps:
            wanted += ["words", "tokens"]
        elif any(word.speaker for word in transcript.words):
            wanted.append("words")
        wanted += ["alternatives"] if transcript.alternatives else []
        found = {name: fields[name] for name in wanted}
        if self._has_segments(transcript):
            found["segments"] = fields["ended"]
        found |= {name: fields[name] for name in ("language", "tags") if name in fields}
        if transcript.languages and (self._details or not transcript.text):
            found["languages"] = fields["languages"]
        if transcript.segments and (self._timestamps or self._details):
            found["segments"] = fields["segments"]
        return found

    def _has_segments(self, transcript: Transcript) -> bool:
        """Whether segments are shown: their readings are with them and nowhere else."""
        return any(self._details or segment.alternatives for segment in transcript.ended)

    def _line(self, record: dict[str, Any]) -> None:
        self._echo(json.dumps(record, ensure_ascii=False))

    def _echo(self, line: str) -> None:
        typer.echo(line, file=self.data)


def _readings(transcript: Transcript) -> Iterator[str]:
    for place, reading in enumerate(transcript.alternatives, start=1):
        yield f"{place:9d} {reading.score:8.2f}  {reading.text}"


def _start_s(segment: Transcript) -> float:
    return segment.words[0].start_s if segment.words else segment.audio_s
