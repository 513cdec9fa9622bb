"""Which channels of files are transcribed, and the transcripts of each of them as one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer

from tritone.audio.files import Selection, channels_of, is_pipe
from tritone.errors import AudioError, TritoneError
from tritone.paths import stored

if TYPE_CHECKING:
    from tritone.result import TranscriptResult


@dataclass(frozen=True)
class Channels:
    """What is transcribed of files: `sources` in their order, `counts` of them for each file; None: one for each."""

    sources: Sequence[str | Selection]
    counts: Sequence[int] | None = None

    @classmethod
    def of(cls, paths: Sequence[str], wanted: str) -> "Channels":
        """The means of all channels ("mixed"), one of them (a number from 1 on), or each as a source of its own.

        Raises:
            typer.BadParameter: each channel of what cannot be read twice.
            InputError: a file has too many channels for each of them.
        """
        if wanted == "mixed":
            return cls(paths)
        if wanted != "each":
            return cls([Selection(each, channel=int(wanted)) for each in paths])
        if unfit := [path for path in paths if stored(path) is not None or is_pipe(path)]:
            raise typer.BadParameter(
                f"--channels each reads files of this machine, once for each channel; copy {unfit[0]} to a file first"
            )
        each = [_each(path) for path in paths]
        return cls([source for sources in each for source in sources], [len(sources) for sources in each])

    def joined(self, results: "Iterable[TranscriptResult]") -> "Iterator[TranscriptResult]":
        """One result for each file, once those of all its channels are there; the error of a channel is the file's."""
        if self.counts is None:
            yield from results
            return
        from tritone.diarization.channels import merged_channels

        file_of = [file for file, count in enumerate(self.counts) for _ in range(count)]
        waiting: dict[int, list[TranscriptResult]] = {}
        for result in results:
            file = file_of[result.index]
            parts = waiting.setdefault(file, [])
            parts.append(result)
            if len(parts) < self.counts[file]:
                continue
            parts = sorted(waiting.pop(file), key=lambda each: each.index)
            try:
                value: Any = merged_channels([each.get() for each in parts])
                yield replace(parts[0], index=file, value=value)
            except TritoneError as error:
                yield replace(parts[0], index=file, value=None, error=error)


def _each(path: str) -> list[Selection]:
    """The channels of a file; the first one where it cannot be read, which who transcribes it says."""
    try:
        return channels_of(path)
    except AudioError:
        return [Selection(path, channel=1)]
