"""`tritone segments`: where recordings have speech, by a running server or in this process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.cli.shared import recordings
from tritone.cli.shared.documents import Documents, Output
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.where import Where
from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.errors import InputError, TritoneError
from tritone.search.activity import OF_RECORDINGS, ActivityOptions
from tritone.systems import BundleSystem, Playback, activity_system, play_activity
from tritone.systems.activity import AnswerListener, SpeechStream

if TYPE_CHECKING:
    from tritone.evaluate.activity import ActivityScore
    from tritone.result import ActivityResult

ActivityFormat = Literal["text", "json", "textgrid", "rttm", "audacity"]
WIDTH_OF_A_FILE = 160  # columns, where no terminal says how many it has
LINES = ("text", "rttm", "audacity")  # formats of a line for each segment, which can be written as they end


@takes_option_classes()
def segments(
    *,
    files: recordings.Files = None,
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
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="RTTM",
            help="Where the speech is: print how much is missed or false and how far boundaries are off. Segments are "
            "then written to --output alone.",
        ),
    ] = None,
    collar_s: Annotated[
        float | None,
        typer.Option(min=0, help="With --reference: leave out so much around its boundaries (0 if not given)."),
    ] = None,
) -> None:
    """Find the speech in recordings.

    A voice activity detector does it, on a running server (--url) or from a bundle of `tritone export silero` in this
    process (--model). Options from --speech-threshold to --max-segment-s decide what a segment is; without them
    those of the model do. Exit code 0 only if every recording worked.
    """
    where.check("vad, which `tritone export silero --output vad` makes")
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
    if collar_s is not None and reference is None:
        raise typer.BadParameter("--collar-s goes with --reference")
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, model=where.what, doing="find speech in")
    playback = Playback(chunk_ms=chunk_ms, realtime=realtime) if streaming else None
    with Documents(format, output, paths, ids) as documents, ExitStack() as stack:
        truth = None if reference is None else _Truth(reference, documents.names, collar_s or 0.0)
        written = truth is None or output is not None
        named = paths != (files or []) or len(paths) > 1
        printer = _Printer(documents, named=named, live=streaming, written=written)
        for result in _results(stack, where, paths, options, playback, printer.ended):
            printer.show(result)
            if truth is not None:
                truth.compare(result)
    if truth is not None:
        truth.show()
    if printer.failed:
        raise typer.Exit(1)


class _Printer:
    """Writes segments in the order of the recordings; `failed`: whether one of them has an error."""

    def __init__(self, documents: Documents, *, named: bool, live: bool, written: bool) -> None:
        """Prepare.

        Args:
            named: whether paths stand before lines of text.
            live: whether segments come by `ended`.
            written: False writes errors alone.
        """
        self.failed = False
        self._documents, self._named, self._written = documents, named, written
        self._live = live and documents.format in LINES and not documents.one_each
        self._waiting: dict[int, ActivityResult] = {}
        self._next = 0

    def ended(self, index: int, answer: SpeechActivity) -> None:
        """Write the segments that a stream has ended, where the format has a line for each."""
        if self._live and self._written:
            self._documents.put(index, self._documents.text(index, answer, named=self._named))

    def show(self, result: "ActivityResult") -> None:
        """Write a result once those of all recordings before it are written."""
        self._waiting[result.index] = result
        while self._next in self._waiting:
            self._show(self._waiting.pop(self._next))
            self._next += 1

    def _show(self, result: "ActivityResult") -> None:
        try:
            text = self._documents.text(result.index, result.get(), named=self._named)
        except TritoneError as error:
            self.failed = True
            message = str(error)
            typer.echo(f"error: {message if result.source in message else f'{result.source}: {message}'}", err=True)
        else:
            if self._written:
                self._documents.put(result.index, "" if self._live else text)


class _Truth:
    """Where the speech of recordings is, by an RTTM file, and how well it was found."""

    def __init__(self, path: Path, names: Sequence[str], collar_s: float) -> None:
        """Read the file; raises `InputError` if it cannot be read or has none of these recordings."""
        from tritone.corpus.list_file import read_list
        from tritone.formats import read_rttm

        self._names, self._collar_s = names, collar_s
        self._speech: dict[str, list[SpeechSegment]] = {}
        for turn in read_rttm(read_list(path), source=str(path)):
            self._speech.setdefault(turn.recording, []).append(SpeechSegment(turn.start_s, turn.end_s))
        if not self._speech.keys() & set(names):
            raise InputError(
                f"{path} has no turns of any recording: it has {', '.join(list(self._speech)[:3]) or 'none at all'}, "
                f"and the recordings are called {', '.join(names[:3])}. Name them by --wavscp, or change the file."
            )
        self._scores: dict[int, ActivityScore] = {}

    def compare(self, result: "ActivityResult") -> None:
        """Score a recording, unless it has an error; one without turns has no speech."""
        from tritone.evaluate.activity import score_activity

        if (found := result.value) is not None:
            speech = self._speech.get(self._names[result.index], [])
            self._scores[result.index] = score_activity(speech, found.segments, found.audio_s, collar_s=self._collar_s)

    def show(self) -> None:
        """Print the scores, if there are any."""
        from rich.console import Console

        from tritone.evaluate.activity import activity_table

        if self._scores:
            terminal = Console()
            console = terminal if terminal.is_terminal else Console(width=WIDTH_OF_A_FILE)
            console.print(activity_table({self._names[index]: self._scores[index] for index in sorted(self._scores)}))


def _results(
    stack: ExitStack,
    where: Where,
    paths: Sequence[str],
    options: Mapping[str, Any],
    playback: Playback | None,
    on_answer: AnswerListener,
) -> "Iterable[ActivityResult]":
    """What a server or a bundle finds; they are closed with `stack`."""
    from tritone import Detector, load_as  # a server's client need not wait for it

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
            detector = load_as(Detector, where.prepared(), **where.loading(**options))
            detector.open(streaming=playback is not None)  # what is wrong with it concerns all recordings
            if playback is None:
                here = BundleSystem["ActivityResult"](detector)
                return stack.enter_context(closing(here.run(paths)))
            played, pcm, rate = detector.stream, False, detector.sample_rate
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return play_activity(paths, played, sample_rate=rate, playback=playback, on_answer=on_answer, pcm=pcm)
