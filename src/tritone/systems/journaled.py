"""Transcribing many files with a journal: what an interrupted run had is not computed again.

    system, files, journal  ->  TranscriptResult of every file, from the journal or new

A record has the transcript as `Transcript.to_dict` gives it, or the error, which is tried again.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritone.audio.files import Selection
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError
from tritone.result import TranscriptResult
from tritone.systems.journal import ADVICE, Journal, fingerprint
from tritone.systems.resume import left_to_do
from tritone.systems.system import System
from tritone.transcript import Transcript


def transcribe_journaled(
    system: System[TranscriptResult],
    files: Sequence[str | Selection],
    journal: Path,
    *,
    conditions: Mapping[str, str] | None = None,
) -> Generator[TranscriptResult, None, None]:
    """Transcribe files and note each result in a journal; one that is there is gone on with.

    Args:
        system: is prepared, if it must be; the caller closes it.
        files: as of `System.run`.
        journal: the file, of this or an earlier run with the same files and the same system.
        conditions: what decides the results beside the system, such as what it is asked for.

    Yields:
        The results that the journal has, then the others as they come, with times rounded to milliseconds as
        `Transcript.to_dict` has them: alike in a run that was interrupted and in one that was not. Errors of earlier
        runs are not among them, their files are tried again.

    Raises:
        InputError: the journal is of other files or another system, another process is writing it, or it is none.
        OperatorError: it cannot be written.
    """
    places = [Utterance(_place(index, each), Path(each)) for index, each in enumerate(files)]
    made_by = {**system.describe(), **(conditions or {})}
    book = Journal(journal, inputs=fingerprint(places), utterances=len(files), system=made_by, resume=True)
    return _results(system, files, book)


def _results(
    system: System[TranscriptResult], files: Sequence[str | Selection], book: Journal
) -> Generator[TranscriptResult, None, None]:
    with book:
        done: list[bool | None] = [None] * len(files)
        earlier: dict[int, TranscriptResult] = {}
        for _, record in book.records():
            try:
                index = int(record["id"])
                done[index] = "error" not in record
                if done[index]:
                    value = Transcript.from_dict(record["transcript"])
                    source = os.fspath(files[index])
                    earlier[index] = TranscriptResult(index=index, source=source, value=value, audio_s=value.audio_s)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise InputError(f"{book.path} has a record of no transcript ({error!r}). {ADVICE}") from error
        book.begin(system.concurrency)
        yield from earlier.values()
        for left in filter(None, left_to_do(done, system.batch)):
            with closing(system.run(files[index] for index in left)) as results:
                for result in results:
                    index = left[result.index]
                    if done[index]:  # computed again for the sake of its batch
                        continue
                    if result.value is None:
                        book.add({"id": str(index), "error": str(result.error)})
                        yield replace(result, index=index)
                        continue
                    fields = result.value.to_dict()
                    book.add({"id": str(index), "transcript": fields})
                    kept: Any = Transcript.from_dict(fields)
                    yield replace(result, index=index, value=kept)


def _place(index: int, file: str | Selection) -> str:
    """What distinguishes an input from the others: two channels of one file are two."""
    return f"{index} {file.channel} {file.start_s} {file.end_s}" if isinstance(file, Selection) else str(index)
