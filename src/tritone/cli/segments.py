"""`tritone segments`: where recordings have speech, by a running server or in this process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tritone.activity import SpeechActivity
from tritone.cli.shared import recordings
from tritone.cli.shared.documents import Documents, Output
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.where import Where
from tritone.client.stream import DEFAULT_CHUNK_MS
from tritone.errors import InputError, TritoneError
from tritone.search.activity import OF_RECORDINGS, ActivityOptions
from tritone.systems import BundleSystem, Playback, activity_system, play_activity
from tritone.systems.activity import AnswerListener, SpeechStream

if TYPE_CHECKING:
    from tritone.result import ActivityResult

ActivityFormat = Literal["text", "json", "textgrid", "rttm", "audacity"]
LINES = ("text", "rttm", "audacity")  # formats of a line for each segment, which can be written as they end


@takes_option_classes()
def segments(
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Audio of any format libsndfile reads, any rate; channels averaged. For folders all audio in them.",
        ),
    ] = None,
    wavscp: recordings.WavScp = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    where: Where,
    options: Annotated[dict[str, Any], ActivityOptions],
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Send in chunks, and write each segment when it has ended.")
    ] = False,
    realtime: Annotated[bool, typer.Option("--realtime", help="With --streaming: at the speed of speech.")] = False,
    chunk_ms: Annotated[float, typer.Option(min=1, help="With --streaming: audio sent at a time.")] = DEFAULT_CHUNK_MS,
    format: Annotated[
        ActivityFormat,
        typer.Option(
            "--format",
            help="What to write. text: start and end in seconds; json: all that is known; textgrid: a tier of "
            "intervals (Praat); rttm: turns (NIST); audacity: labels.",
        ),
    ] = "text",
    output: Output = None,
) -> None:
    """Find the speech in recordings.

    A voice activity detector does it, on a running server (--url) or from a bundle of `tritone export silero` in this
    process (--bundle). Options from --threshold to --max-segment-s decide what a segment is; without them those of the
    model do. Exit code 0 only if every recording worked.
    """
    where.check("vad")
    if streaming and (unused := [f"--{name.replace('_', '-')}" for name in OF_RECORDINGS if name in options]):
        raise typer.BadParameter(
            f"{', '.join(unused)} is for whole recordings: streams report speech before its length is known"
        )
    if realtime and not streaming:
        raise typer.BadParameter("--realtime goes with --streaming")
    try:
        ActivityOptions().changed(options)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, doing="find speech in")
    playback = Playback(chunk_ms=chunk_ms, realtime=realtime) if streaming else None
    with Documents(format, output, paths, ids) as documents, ExitStack() as stack:
        printer = _Printer(documents, paths, names=paths != (files or []) or len(paths) > 1, live=streaming)
        for result in _results(stack, where, paths, options, playback, printer.ended):
            printer.show(result)
    if printer.failed:
        raise typer.Exit(1)


class _Printer:
    """Writes segments in the order of the recordings; `failed`: whether one of them has an error."""

    def __init__(self, documents: Documents, paths: Sequence[str], *, names: bool, live: bool) -> None:
        """Prepare; `names`: whether paths stand before lines of text, `live`: whether segments come by `ended`."""
        self.failed = False
        self._documents, self._paths = documents, paths
        self._names = names and documents.format == "text" and not documents.one_each
        self._live = live and documents.format in LINES and not documents.one_each
        self._waiting: dict[int, ActivityResult] = {}
        self._next = 0

    def ended(self, index: int, answer: SpeechActivity) -> None:
        """Write the segments that a stream has ended, where the format has a line for each."""
        if self._live:
            self._documents.put(index, self._text(index, answer))

    def show(self, result: "ActivityResult") -> None:
        """Write a result once those of all recordings before it are written."""
        self._waiting[result.index] = result
        while self._next in self._waiting:
            self._show(self._waiting.pop(self._next))
            self._next += 1

    def _show(self, result: "ActivityResult") -> None:
        try:
            text = self._text(result.index, result.get())
        except TritoneError as error:
            self.failed = True
            message = str(error)
            typer.echo(f"error: {message if result.source in message else f'{result.source}: {message}'}", err=True)
        else:
            self._documents.put(result.index, "" if self._live else text)

    def _text(self, index: int, activity: SpeechActivity) -> str:
        text = self._documents.text(index, activity)
        if not self._names:
            return text
        return "".join(f"{self._paths[index]}\t{line}" for line in text.splitlines(keepends=True))


def _results(
    stack: ExitStack,
    where: Where,
    paths: Sequence[str],
    options: Mapping[str, Any],
    playback: Playback | None,
    on_answer: AnswerListener,
) -> "Iterable[ActivityResult]":
    """What a server or a bundle finds; they are closed with `stack`."""
    from tritone import load_detector  # a server's client need not wait for it

    played: Callable[[], AbstractContextManager[SpeechStream]]
    try:
        if where.url is not None:
            client = stack.enter_context(where.connect())
            if playback is None:
                system = activity_system(client, where.model, concurrency=where.concurrency, options=options)
                return stack.enter_context(closing(system.run(paths)))
            info = client.model(where.model, kind="activity-streaming")
            played = partial(
                client.detect_stream,
                info.name,
                options=options,
                chunk_ms=playback.chunk_ms,
                sample_rate=info.sample_rate,
            )
            pcm, rate = client.pcm_of(info) is not False, info.sample_rate
        else:
            assert where.bundle is not None
            detector = load_detector(where.bundle, **where.loading(**options))
            detector.open(streaming=playback is not None)  # what is wrong with it concerns all recordings
            if playback is None:
                here = BundleSystem["ActivityResult"](detector)
                return stack.enter_context(closing(here.run(paths)))
            played, pcm, rate = detector.stream, False, detector.sample_rate
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return play_activity(paths, played, sample_rate=rate, playback=playback, on_answer=on_answer, pcm=pcm)
