"""`tritone transcribe`: audio files to text, by a running server or in this process."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone import systems
from tritone import texts as writing
from tritone.bundle.attending import AttendingPart
from tritone.cli.shared import recordings, search_options
from tritone.cli.shared.channels import Channels
from tritone.cli.shared.documents import Documents, Output, OutputFormat
from tritone.cli.shared.interrupts import interrupts
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.punctuation import PunctuationModel, punctuator
from tritone.cli.shared.ray_options import OnRay
from tritone.cli.shared.speaker_labels import SpeakerLabels
from tritone.cli.shared.transcript_printer import TranscriptPrinter
from tritone.cli.shared.where import Vad, Where
from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.errors import InputError
from tritone.formats import FORMATS
from tritone.options.fields import described
from tritone.pipelines.whisper.options import OF_ANY_SEARCH, DecodingOptions, with_search
from tritone.search.options import SearchOptions
from tritone.texts.options import TextOptions
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.result import TranscriptResult
    from tritone.systems import Playback, System


@takes_option_classes(leave_out=("hotwords", "detail_times"))  # which have a form of their own here
def transcribe(
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Audio or video of any format, rate and length; channels averaged. For folders all audio in them; for "
            "- standard input.",
        ),
    ] = None,
    wavscp: recordings.WavScp = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    where: Where,
    on_ray: OnRay,
    search: Annotated[dict[str, Any], SearchOptions],
    decoding: Annotated[dict[str, Any], DecodingOptions],
    loaded: search_options.LoadedSearch,
    hotwords: search_options.Hotwords = None,
    vad: Vad = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Send in chunks and show the text as it grows.")
    ] = False,
    realtime: Annotated[bool, typer.Option("--realtime", help="With --streaming: at the speed of speech.")] = False,
    chunk_ms: Annotated[float, typer.Option(min=1, help="With --streaming: audio sent at a time.")] = DEFAULT_CHUNK_MS,
    reconnect: Annotated[
        bool, typer.Option("--reconnect", help="With --url and --streaming: restart streams that their server lost.")
    ] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Add words with their times; Whisper takes longer.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Add confidence, and for a stream the segments with their times.")
    ] = False,
    channels: Annotated[
        str,
        typer.Option(
            metavar="mixed|each|N",
            help="Of recordings with several channels: their mean, each as a speaker (channel1, channel2, ...), or one "
            "of them, counted from 1.",
        ),
    ] = "mixed",
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep results there as they come: after an interrupt or a crash, the same "
            "command prints them again and continues with the rest.",
        ),
    ] = None,
    labels: SpeakerLabels,
    punctuation_model: PunctuationModel = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    texts: TextOptions,
    format: OutputFormat = "text",
    output: Output = None,
) -> None:
    """Turn audio files into text.

    A running server does it (--url), or a model here (--model): in this process or, with --ray, on a Ray cluster. Name
    the files, or a list of them by --wavscp or --manifest, or a folder by --data-dir. How to search is the model's own
    default unless options from --search to --hotwords change it. With --journal, the same command continues after an
    interrupt. --numbers and --punctuate write English texts as people do. Exit code 0 only if every file worked.
    """
    where.check("demo-asr", **vars(loaded))
    on_ray.check(where.what, streaming=streaming)
    if reconnect and where.url is None:
        raise typer.BadParameter("--reconnect goes with --url")
    needing = (
        ("--realtime", realtime),
        ("--reconnect", reconnect),
        ("--chunk-size", loaded.chunk_size),
        ("--left-chunks", loaded.left_chunks),
    )
    for name, value in needing:
        if value not in (None, False) and not streaming:
            raise typer.BadParameter(f"{name} goes with --streaming")
    if vad is not None and streaming:
        raise typer.BadParameter("--vad is for whole files; leave --streaming out")
    if journal is not None and streaming:
        raise typer.BadParameter("--journal is for whole files; leave --streaming out")
    if channels not in ("mixed", "each") and (not channels.isdecimal() or not int(channels)):
        raise typer.BadParameter(f"--channels is mixed, each or the number of one, from 1 on, got {channels!r}")
    if channels == "each" and (streaming or search.get("nbest", 1) > 1):
        raise typer.BadParameter(
            "--channels each is for whole files and one reading; leave --streaming and --nbest out"
        )
    if channels != "mixed" and (on_ray.ray is not None or labels.speakers):
        raise typer.BadParameter("--channels does not go with --ray or with labels of speakers")
    labels.check(streaming=streaming, ray=on_ray.ray is not None)
    asked = search if hotwords is None else search | {"hotwords": hotwords}
    own = {**vars(loaded), "vad": vad}
    try:
        DecodingOptions().changed(decoding)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    wants_words = timestamps or bool(decoding.get("word_times"))
    of_text = (("--json", json), ("--timestamps", timestamps), ("--details", details))
    if format != "text" and (unused := [name for name, value in of_text if value]):
        raise typer.BadParameter(f"{', '.join(unused)} goes with --format text; {format} has all that it can hold")
    if json and output is not None:
        raise typer.BadParameter("--json prints lines; with --output there is --format json")
    paths, ids = recordings.named(files, wavscp, manifest, data_dir, model=where.what)
    chosen = Channels.of(paths, channels)
    sources = chosen.sources
    documents = Documents(format, output, paths, ids)
    # A single file that was named needs no name in front of its text, nor does one that has a file for it.
    printer = TranscriptPrinter(
        num_files=len(paths),
        names=not (len(paths) == 1 and files in (paths, ["-"])) and not documents.one_each,
        ids=ids if wavscp is not None else (),
        as_json=json,
        timestamps=wants_words,
        details=details,
        ordered=not on_ray.unordered,
        documents=documents,
    )
    playback = systems.Playback(chunk_ms=chunk_ms, realtime=realtime) if streaming else None
    needs_words = wants_words or labels.speakers
    timed = (needs_words or channels == "each" or FORMATS[format].times) and not streaming
    with_times = needs_words or timed or details or texts.punctuate or FORMATS[format].times
    with ExitStack() as stack:
        stack.enter_context(documents)
        if on_ray.ray is not None:
            printer.data = stack.enter_context(on_ray.reserved_stdout())
            stack.enter_context(interrupts())
        if playback is not None and labels.speakers:
            playback = replace(playback, around=labels.around(where, stack))
        system, has_words = _open(where, on_ray, playback, with_times, asked, own, decoding, timed, reconnect)
        if needs_words and not has_words:
            lack = "this model gives no times of words"
            if labels.speakers:
                raise typer.BadParameter(f"{lack}, which speakers need; leave --speakers out, or take another model")
            typer.echo(f"tritone: {lack}, only of segments", err=True)
        system = stack.enter_context(closing(system))
        if labels.speakers and not streaming:
            system = stack.enter_context(labels.added_to(system, where))
        marked = None if punctuation_model is None else punctuator(punctuation_model, where.device or "cpu").transcript
        if marked is not None:
            texts = replace(texts, punctuate=False)
        if streaming:
            # One file after the other, since each shows its text as it grows.
            for index, path in enumerate(paths):
                with printer.partials(path) as show:
                    (result,) = system.run(
                        [sources[index]], lambda _, transcript: show(writing.tidy(transcript, texts))
                    )
                printer.show(replace(_tidied(result, texts, marked), index=index))
        else:
            if journal is None:
                results = system.run(sources)
            else:
                conditions = {} if where.url is None else {"details": str(with_times)}  # which models here always have
                results = systems.transcribe_journaled(system, sources, journal, conditions=conditions)
            advance = stack.enter_context(printer.progress())
            tidied = (_tidied(result, texts, marked) for result in stack.enter_context(closing(results)))
            for result in chosen.joined(tidied):
                printer.show(result)
                advance()
    if printer.failed:
        raise typer.Exit(1)


def _tidied(
    result: "TranscriptResult", texts: TextOptions, marked: Callable[[Transcript], Transcript] | None
) -> "TranscriptResult":
    written: Any = None if result.value is None else writing.tidy(result.value, texts)
    if marked is not None and written is not None:
        written = marked(written)
    return replace(result, value=written)


def _open(
    where: Where,
    on_ray: OnRay,
    playback: "Playback | None",
    details: bool,
    search: Mapping[str, Any],
    own: Mapping[str, Any],
    decoding: Mapping[str, Any],
    timed: bool,
    reconnect: bool,
) -> "tuple[System[TranscriptResult], bool]":
    """The server, or the bundle here or on a cluster; and whether its texts have words with times.

    Args:
        own: options of loading, of which servers have `vad` alone.
        decoding: options of Whisper models; other models refuse them.
        timed: whether models that take longer for times of words are asked for them.
    """
    try:
        if where.url is None:
            return _load(where, on_ray, playback, {**search, **own}, decoding, timed)
        client = where.connect()
        info = client.model(where.model, kind="streaming" if playback else "offline")
        system = systems.transcriber(
            client,
            where.model,
            playback=playback,
            concurrency=1 if playback else where.concurrency,
            details=details,
            search={**search, **info.word_parameters("auto" if timed else False), **decoding},
            resume=reconnect,
            vad=own["vad"],
        )
        return system, info.has_words
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _load(
    where: Where,
    on_ray: OnRay,
    playback: "Playback | None",
    given: Mapping[str, Any],
    decoding: Mapping[str, Any],
    timed: bool,
) -> "tuple[System[TranscriptResult], bool]":
    from tritone import load  # a server's client need not wait for it
    from tritone.bundle.bundle import Bundle
    from tritone.kinds.speech import speech_kind
    from tritone.pipelines.kind import kind_of
    from tritone.result import TranscriptResult

    bundle = where.prepared()
    opened = Bundle.open(bundle)
    has_words = True
    if opened.manifest.find(AttendingPart) is not None:
        has_words = "word_times" in kind_of(opened).served(opened).abilities
        unfit = [name for name, value in given.items() if value is not None and name not in OF_ANY_SEARCH]
        if unfit:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
            raise typer.BadParameter(f"{flags} is not for Whisper models; leave it out")
        usual = {"word_times": True} if timed and has_words else {}
        options = where.loading(**{**usual, **with_search(decoding, given)})
    else:
        if decoding:
            flags = ", ".join(described(DecodingOptions)[name].flag for name in decoding)
            raise typer.BadParameter(f"{flags} is for Whisper models; this one has --search and its options")
        searched = [name for name, value in given.items() if value is not None and name != "vad"]
        search_options.check_used(searched, given.get("search", "greedy"))
        speech_kind(opened)
        options = where.loading(**given)
    here = systems.BundleSystem[TranscriptResult](load(bundle, **options), playback=playback, options=options)
    system: System[TranscriptResult] = here
    if on_ray.ray is not None:
        system = on_ray.system(here, load=load, bundle=bundle, result=TranscriptResult, options=options)
    system.prepare()  # opens the graph: what is wrong with it concerns all files
    return system, has_words
