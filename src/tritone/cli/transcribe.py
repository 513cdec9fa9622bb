"""`tritone transcribe`: audio files to text, by a running server or in this process."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.cli.shared import recordings
from tritone.cli.shared import search_options as options
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.transcript_printer import TranscriptPrinter
from tritone.cli.shared.where import Where
from tritone.client.stream import DEFAULT_CHUNK_MS
from tritone.errors import InputError
from tritone.search.options import SearchOptions
from tritone.systems import BundleSystem, Playback, System, transcriber

if TYPE_CHECKING:
    from tritone.result import TranscriptResult


@takes_option_classes(leave_out=("hotwords", "timestamps"))  # which have a form of their own here
def transcribe(
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
    search: Annotated[dict[str, Any], SearchOptions],
    decoding: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Whisper models: how to transcribe, like {"language": "de", "beam": 5}.'),
    ] = None,
    lm: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --bundle: an n-gram language model, ARPA or KenLM binary.")
    ] = None,
    hotwords: options.Hotwords = None,
    chunk_size: Annotated[
        int | None, typer.Option(help="With --bundle and --streaming: new frames in a step; its own if not given.")
    ] = None,
    left_chunks: Annotated[
        int | None, typer.Option(help="With --bundle and --streaming: past chunks a step attends to; -1 for all.")
    ] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Send in chunks and show the text as it grows.")
    ] = False,
    realtime: Annotated[bool, typer.Option("--realtime", help="With --streaming: at the speed of speech.")] = False,
    chunk_ms: Annotated[float, typer.Option(min=1, help="With --streaming: audio sent at a time.")] = DEFAULT_CHUNK_MS,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --url and --streaming: begin streams that their server lost anew.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Add words with their times.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Add confidence, and for a stream the segments with their times.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Turn audio files into text.

    A running server does it (--url), or a bundle in this process (--bundle). Name the files, or a list of them by
    --wavscp or --manifest, or a folder by --data-dir. How to search is the model's own default unless options from
    --search to --hotwords change it. Exit code 0 only if every file worked.
    """
    where.check("demo-asr", lm=lm, chunk_size=chunk_size, left_chunks=left_chunks)
    if resume and where.url is None:
        raise typer.BadParameter("--resume goes with --url")
    needing = (
        ("--realtime", realtime),
        ("--resume", resume),
        ("--chunk-size", chunk_size),
        ("--left-chunks", left_chunks),
    )
    for name, value in needing:
        if value not in (None, False) and not streaming:
            raise typer.BadParameter(f"{name} goes with --streaming")
    asked = search if hotwords is None else search | {"hotwords": hotwords}
    decoded = _decoding(decoding)
    if where.bundle is not None:
        options.check_used([*asked, *(["lm"] if lm is not None else [])], asked.get("search", "greedy"))
    paths = _recordings(files, wavscp, manifest, data_dir)
    # A single file that was named needs no name in front of its text.
    printer = TranscriptPrinter(
        num_files=len(paths),
        names=paths != (files or []) or len(paths) > 1,
        as_json=json,
        timestamps=timestamps,
        details=details,
    )
    playback = Playback(chunk_ms=chunk_ms, realtime=realtime) if streaming else None
    system: System[TranscriptResult]
    try:
        if where.url is not None:
            in_flight = 1 if playback else where.concurrency
            wanted = timestamps or details
            system = transcriber(
                where.connect(),
                where.model,
                playback=playback,
                concurrency=in_flight,
                details=wanted,
                search=asked | decoded,
                resume=resume,
            )
        else:
            asked |= {"lm": lm, "chunk_size": chunk_size, "left_chunks": left_chunks}
            system = _load(where, playback, asked, decoded)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with closing(system):
        if streaming:
            # One file after the other, since each shows its text as it grows.
            for index, path in enumerate(paths):
                with printer.partials(path) as show:
                    (result,) = system.run([path], lambda _, transcript: show(transcript))
                printer.show(replace(result, index=index))
        else:
            with printer.progress() as advance:
                for result in system.run(paths):
                    printer.show(result)
                    advance()
    if printer.failed:
        raise typer.Exit(1)


def _recordings(
    files: list[str] | None, wavscp: Path | None, manifest: list[str] | None, data_dir: Path | None
) -> list[str]:
    """The paths of all recordings. Files are taken as they were written, so that messages are in those words."""
    recordings.check_one_list(wavscp, manifest)
    if files:
        if manifest or wavscp is not None or data_dir is not None:
            raise typer.BadParameter(
                "--wavscp, --manifest and --data-dir stand in place of files; give one or the other"
            )
        recordings.check_no_list(files)
        if not any(Path(path).is_dir() for path in files):
            return files
        return [str(path) for path in recordings.files_of(files)]
    if wavscp is None and not manifest and data_dir is None:
        raise typer.BadParameter(
            "name what to transcribe: audio files or folders, or --wavscp, or --manifest, or --data-dir"
        )
    from tritone.corpus.dataset import read_utterances  # files alone need not wait for it

    manifests = recordings.manifests_of(manifest)
    listed = read_utterances(wavscp=wavscp, manifest=manifests, data_dir=data_dir, need_text=False)
    return [str(each.audio) for each in listed]


def _decoding(text: str | None) -> dict[str, Any]:
    """Request parameters of a Whisper model, checked, in the form that requests have them."""
    if text is None:
        return {}
    import json

    from tritone.pipelines.whisper.options import read_decoding

    try:
        read_decoding(text)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--decoding") from error
    found: dict[str, Any] = json.loads(text)
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
        for name, value in found.items()
    }


def _load(
    where: Where, playback: Playback | None, given: Mapping[str, Any], decoding: Mapping[str, Any]
) -> "BundleSystem[TranscriptResult]":
    from tritone import load, load_whisper  # a server's client need not wait for it
    from tritone.bundle.bundle import Bundle

    assert where.bundle is not None
    system: BundleSystem[TranscriptResult]
    if Bundle.open(where.bundle).manifest.whisper is not None:
        if unfit := [name for name, value in given.items() if value is not None]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
            raise typer.BadParameter(f"{flags} is not for Whisper models; they have --decoding")
        system = BundleSystem(load_whisper(where.bundle, **where.loading(**decoding)), playback=playback)
    else:
        if decoding:
            raise typer.BadParameter("--decoding is for Whisper models; this bundle has --search and its options")
        system = BundleSystem(load(where.bundle, **where.loading(**given)), playback=playback)
    system.prepare()  # opens the graph: what is wrong with it concerns all files
    return system
