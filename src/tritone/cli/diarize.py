"""`tritone diarize`: who speaks when, by speaker embeddings of a running server or in this process."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tritone.cli.shared import recordings
from tritone.cli.shared.documents import Documents, Output
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.speaker_options import OpenModel, VoiceModel, network_of, segmenter_of, with_store
from tritone.cli.shared.turn_errors import (
    CollarS,
    Reference,
    Scoring,
    SkipOverlap,
    fields_of,
    of_recording,
    scoring,
    turns_in,
)
from tritone.diarization.options import SpeakerOptions
from tritone.errors import InputError, TritoneError
from tritone.formats.rttm import Turn

if TYPE_CHECKING:
    from tritone.activity import SpeechSegment
    from tritone.diarization import Diarization, Diarizer, Errors, NetworkDiarizer
    from tritone.diarization.diarizer import Listener

TurnFormat = Literal["text", "json", "rttm", "textgrid", "audacity"]
LINES = ("text", "rttm", "audacity")  # formats of a line for each turn, which can be written as they end
DETECTED_AT_ONCE_MS = 4000.0  # audio in a request to a served detector


@takes_option_classes()
def diarize(
    *,
    files: recordings.Files = None,
    wavscp: recordings.WavScp = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    model: VoiceModel,
    vad: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Finds speech: a bundle of `tritone export silero`, or with --url a served model for voice activity "
            "in streams. Without it, what is loud enough is speech.",
        ),
    ] = None,
    speech: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where there is speech, RTTM of these recordings, in place of --vad."),
    ] = None,
    segmentation: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="In place of --vad: finds speech and who talk at once. A segmentation network (`tritone export "
            "pyannote`) in this process, or with --url a served one.",
        ),
    ] = None,
    options: SpeakerOptions,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Enrolled speakers, who are called by their names.")
    ] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Label speakers as the audio goes on; earlier labels never change.")
    ] = False,
    frames: Annotated[
        bool, typer.Option("--frames", help="With --segmentation and json: add who talks in each frame, too.")
    ] = False,
    reference: Reference = None,
    collar_s: CollarS = None,
    skip_overlap: SkipOverlap = False,
    format: Annotated[
        TurnFormat,
        typer.Option(
            "--format",
            help="What to write. text: start, end and speaker; json: all that is known; rttm: turns (NIST); textgrid: "
            "a tier for each speaker (Praat); audacity: labels.",
        ),
    ] = "text",
    output: Output = None,
) -> None:
    """Tell who speaks when.

    Windows of speech are embedded by a speaker model, on a running server (--url) or in this process (--model;
    demo-speaker if not given), and clustered. Speakers are speaker1, speaker2 and so on, or have names from --store.
    Speech of several at once is given to each of them with --segmentation, else to one of them. A model that tells
    speakers apart itself (Nemotron-3-Diarization) hears several at once, and needs no --vad. Exit code 0 only if every
    recording worked.
    """
    if vad is not None and speech is not None:
        raise typer.BadParameter("--speech stands in place of --vad; give one of them")
    if segmentation is not None and (vad is not None or speech is not None or streaming):
        raise typer.BadParameter(
            "--segmentation finds speech itself, in whole recordings; leave --vad, --speech and --streaming out"
        )
    if frames and (segmentation is None or format != "json"):
        raise typer.BadParameter("--frames goes with --segmentation and --format json")
    if model.threshold is not None and store is None:
        raise typer.BadParameter("--threshold goes with --store: from this cosine a speaker is an enrolled one")
    if streaming and (
        options.num_speakers is not None or options.min_speakers > 1 or options.method != "agglomerative"
    ):
        raise typer.BadParameter(
            "--num-speakers, --min-speakers and --method are for whole recordings: --streaming labels as it goes on"
        )
    if streaming and speech is not None:
        raise typer.BadParameter("--speech is for whole recordings; leave --streaming out, or use --vad")
    judge = scoring(reference, collar_s, skip_overlap)
    speech_turns = None if speech is None else turns_in(speech)
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, model=model.where.what, doing="diarize")
    with Documents(format, output, paths, ids) as documents, ExitStack() as stack:
        diarizer: Diarizer | NetworkDiarizer
        if (network := network_of(model.where, streaming=streaming, stack=stack)) is not None:
            _check_alone(vad=vad, speech=speech, segmentation=segmentation, store=store, options=options)
            diarizer = network
        else:
            diarizer = _open(stack, model, vad, segmentation, options, store, rttm=format == "rttm")
        if network is None and vad is None and speech_turns is None and segmentation is None:
            typer.echo("speech is found by its level; --vad is better where there is noise", err=True)
        printer = _Printer(documents, judge, named=paths != (files or []) or len(paths) > 1, frames=frames)
        for index, path in enumerate(paths):
            name = documents.names[index]
            try:
                if judge is not None:
                    of_recording(judge.turns, name, judge.path)  # before the work
                if streaming:
                    printer.play(index, diarizer.play(path, recording=name))
                else:
                    given = (
                        None if speech_turns is None else _segments(of_recording(speech_turns, name, speech or Path()))
                    )
                    printer.show(index, diarizer.diarize(path, recording=name, speech=given))
            except TritoneError as error:
                printer.fail(path, error)
    printer.finish()


class _Printer:
    """Writes turns in the order of the recordings, and their errors at the end."""

    def __init__(self, documents: Documents, judge: Scoring | None, *, named: bool, frames: bool) -> None:
        self._documents, self._judge, self._named, self._frames = documents, judge, named, frames
        self._errors: dict[str, Errors] = {}
        self._failed = False

    def show(self, index: int, found: "Diarization") -> None:
        """Write a recording."""
        fields = {"recording": self._documents.names[index], **found.to_dict()}
        if self._frames and found.frames is not None:
            fields["frames"] = found.frames.to_dict()
        self._write(index, found.turns, fields)

    def play(self, index: int, turns: "Any") -> None:
        """Write the turns of a stream as they come, where the format has a line for each."""
        live = self._documents.format in LINES and not self._documents.one_each
        done: list[Turn] = []
        for turn in turns:
            done.append(turn)
            if live:
                self._documents.put(index, self._documents.text(index, [turn], named=self._named))
        fields = {"recording": self._documents.names[index], "turns": [_turn(each) for each in done]}
        self._write(index, done, fields, written=live)

    def fail(self, path: str, error: TritoneError) -> None:
        """Say what is wrong with a recording; the others go on."""
        self._failed = True
        message = str(error)
        typer.echo(f"error: {message if path in message else f'{path}: {message}'}", err=True)

    def finish(self) -> None:
        """Print the error rates; raises `typer.Exit` if a recording failed."""
        from rich.console import Console

        if self._judge is not None and self._errors:
            Console(stderr=True, highlight=False).print(self._judge.table(self._errors))
        if self._failed:
            raise typer.Exit(1)

    def _write(self, index: int, turns: Sequence[Turn], fields: dict[str, Any], written: bool = False) -> None:
        name = self._documents.names[index]
        if self._judge is not None:
            self._errors[name] = self._judge.score(name, turns)
            fields = {**fields, "errors": fields_of(self._errors[name])}
        if self._documents.format == "json":
            self._documents.put(index, json.dumps(fields, ensure_ascii=False) + "\n")
        elif not written:
            self._documents.put(index, self._documents.text(index, turns, named=self._named))


def _check_alone(**given: Any) -> None:
    """Refuse what goes with embeddings, for a model that tells speakers apart itself."""
    if given.pop("options") != SpeakerOptions():
        raise typer.BadParameter("this model tells speakers apart itself: leave options of clustering out")
    if unfit := [f"--{name}" for name, value in given.items() if value is not None]:
        raise typer.BadParameter(f"{' and '.join(unfit)}: this model tells speakers apart itself; leave it out")


def _turn(turn: Turn) -> dict[str, Any]:
    return {"start_s": round(turn.start_s, 3), "end_s": round(turn.end_s, 3), "speaker": turn.speaker}


def _segments(turns: Sequence[Turn]) -> "list[SpeechSegment]":
    from tritone.activity import SpeechSegment

    return [SpeechSegment(each.start_s, each.end_s) for each in turns]


def _open(
    stack: ExitStack,
    model: VoiceModel,
    vad: str | None,
    segmentation: str | None,
    options: SpeakerOptions,
    store: Path | None,
    *,
    rttm: bool,
) -> "Diarizer":
    """What diarizes, with models that are closed with `stack`."""
    from tritone.diarization import Diarizer

    opened, enrolled = stack.enter_context(with_store(model, store))
    if rttm and (unfit := [name for name in enrolled if any(letter.isspace() for letter in name)]):
        raise InputError(
            f"{unfit[0]!r} has a space, which separates the fields of RTTM; enrol the speaker under another name, or "
            "choose another --format"
        )
    return Diarizer(
        opened.embed,
        sample_rate=opened.sample_rate,
        listen=_listener(stack, opened, vad),
        segmenter=None if segmentation is None else segmenter_of(opened, segmentation),
        options=options,
        enrolled=enrolled,
        enrolled_cosine=None if opened.limit is None else opened.limit.cosine,
    )


def _listener(stack: ExitStack, opened: OpenModel, vad: str | None) -> "Callable[[], Listener] | None":
    """What opens streams of the detector that is named, at the rate of the speaker model."""
    if vad is None:
        return None
    try:
        if opened.client is not None:
            info = opened.client.model(vad, kind="activity-streaming")
            return partial(
                opened.client.detect_stream,
                info.name,
                sample_rate=opened.sample_rate,
                chunk_ms=DETECTED_AT_ONCE_MS,
            )
        from tritone import Detector, load_as

        detector = load_as(Detector, vad)
        detector.streaming.warm_up()  # what is wrong with it concerns all recordings
        return partial(detector.stream, opened.sample_rate)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
