"""`tritone evaluate`: how many errors a model makes, and what another precision, runtime or search changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.shared import recordings
from tritone.cli.shared import search_options as options
from tritone.cli.shared.evaluation_printer import EvaluationPrinter
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.outputs import check_outputs
from tritone.cli.shared.what import bundle_of
from tritone.cli.shared.where import Vad, Where
from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.corpus.dataset import read_utterances
from tritone.evaluate.normalize import Normalization
from tritone.evaluate.page import DEFAULT_AUDIO_BUDGET_MB, write_page
from tritone.evaluate.series import evaluate_each, read_baseline
from tritone.report.stamp import Stamp
from tritone.report.table import visible
from tritone.result import TranscriptResult
from tritone.search.options import SearchOptions
from tritone.systems import Playback, System, open_system, parse_spec, transcriber


@takes_option_classes(leave_out=("concurrency", "hotwords", "detail_times"))  # of an own form, or no use
def evaluate(
    *,
    where: Where,
    search: Annotated[dict[str, Any], SearchOptions],
    loaded: options.LoadedSearch,
    hotwords: options.Hotwords = None,
    vad: Vad = None,
    compared: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="[NAME=]WHAT[,KEY=VALUE...]",
            help="A system to compare, once for each: WHAT as of --model, or grpc://host:port/model. The first one is "
            "the baseline, unless there is --url, --model or --baseline.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Compare with the first system of an earlier --report.")
    ] = None,
    max_wer_increase: Annotated[
        float | None,
        typer.Option(min=0, metavar="POINTS", help="Fail if a WER exceeds the baseline's by more percentage points."),
    ] = None,
    wavscp: recordings.WavScp = None,
    trans: Annotated[Path | None, typer.Option(help="With --wavscp: references, one 'id words' a line.")] = None,
    manifest: recordings.Manifests = None,
    data_dir: recordings.DataDir = None,
    min_duration_s: Annotated[
        float, typer.Option(min=0, help="With --manifest: leave out recordings that are shorter, in seconds.")
    ] = 0.0,
    max_duration_s: Annotated[
        float | None, typer.Option(min=0, help="With --manifest: leave out recordings that are longer.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N utterances.")] = None,
    streaming: Annotated[
        bool, typer.Option("--streaming", help="Send in chunks; partial results are measured too.")
    ] = False,
    chunk_ms: Annotated[
        float | None, typer.Option(min=1, help=f"With --streaming: audio sent at a time ({DEFAULT_CHUNK_MS:g}).")
    ] = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="With --streaming: at the speed of speech.")] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests or streams at once; of whole files with --model, files given to it together."
        ),
    ] = None,
    normalization: Normalization,
    confidence: Annotated[float, typer.Option(help="Level of the confidence intervals, in percent.")] = 95.0,
    worst: Annotated[int, typer.Option(min=0, help="Utterances and confusions to show; 0 shows none.")] = 5,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write everything as JSON; what --baseline reads.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with aligned texts and audio.")
    ] = None,
    audio_budget_mb: Annotated[
        float, typer.Option(min=0, help="With --html: limit on the audio in the page; most errors first.")
    ] = DEFAULT_AUDIO_BUDGET_MB,
    journal: Annotated[
        Path | None, typer.Option(help="File for results as they arrive; beside --report or --html if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the journal; failed recordings are tried again.")
    ] = False,
) -> None:
    """Measure the accuracy of a model.

    Recognises a list of recordings with a running server (--url) or in this process (--model), and compares the texts
    with references. With --compare, several systems on the same recordings. How to search is the model's own default
    unless options from --search to --hotwords change it; systems of --compare have KEY=VALUE. Exit code 0 only if every
    utterance was recognised and no limit was exceeded; 130 after Ctrl-C, with a report on the finished part.
    """
    manifests = recordings.manifests_of(manifest)
    check_outputs((report, html, journal), (wavscp, trans, *manifests, baseline))
    if journal is None:
        journal = _beside(report or html)
    where.check("demo-asr", compared=compared or (), **vars(loaded))
    asked = search if hotwords is None else search | {"hotwords": hotwords}
    one = where.url or where.model
    for wrong, complaint in (
        (
            one is None and (asked or vad is not None),
            "--search, --vad and their like go with --url or --model; in --compare write NAME=WHAT,KEY=VALUE",
        ),
        (vad is not None and streaming, "--vad is for whole files; leave --streaming out"),
        (
            not streaming and (realtime or chunk_ms is not None),
            "--chunk-ms and --realtime go with --streaming; in --compare write NAME=WHAT,mode=streaming",
        ),
        (not 50 <= confidence < 100, f"--confidence is in percent, from 50 to below 100, got {confidence:g}"),
        (
            (wavscp is not None) + bool(manifests) != 1 and not (wavscp is None and not manifests and data_dir),
            "give the recordings: --wavscp with --trans, or --manifest, or --data-dir alone",
        ),
        (wavscp is not None and trans is None, "--wavscp needs --trans, the references"),
        (resume and journal is None, "--resume needs --journal, or --report or --html, beside which the journal is"),
    ):
        if wrong:
            raise typer.BadParameter(complaint)
    stamp = Stamp.here()
    printer = EvaluationPrinter()
    try:
        utterances = read_utterances(
            segments=True,
            wavscp=wavscp,
            trans=trans,
            manifest=manifests,
            data_dir=data_dir,
            min_duration_s=min_duration_s,
            max_duration_s=math.inf if max_duration_s is None else max_duration_s,
        )[:limit]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    before = None if baseline is None else read_baseline(baseline, normalization, utterances)
    try:
        playback = Playback(chunk_ms=chunk_ms or DEFAULT_CHUNK_MS, realtime=realtime) if streaming else None
        paths = [recordings.path_of(each) for each in utterances]
        systems = _open(where, asked, {**vars(loaded), "vad": vad}, compared or [], playback, concurrency, paths)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if max_wer_increase is not None and before is None and len(systems) < 2:
        raise typer.BadParameter("--max-wer-increase needs a baseline: --baseline FILE.json, or a second system")
    if before is not None and before.name in [system.name for system in systems]:
        raise typer.BadParameter(f"{before.name} is what the baseline is called; give the system another NAME=...")

    with interrupts():
        series = evaluate_each(
            utterances,
            systems,
            normalization,
            printer,
            baseline=before,
            journal=journal,
            resume=resume,
            level=confidence / 100,
            stamp=stamp,
        )
    # Files first: a table that nobody reads any more (| head) must not cost them.
    if report is not None:
        series.save(report)
        printer.notify(f"wrote {report}")
    if html is not None:
        write_page(series.report, series.comparison, html, worst=worst, audio_budget_mb=audio_budget_mb)
        printer.notify(f"wrote {html}")
    printer.show(series.report.evaluations, series.comparison, worst)
    if not series.report.complete:
        printer.notify("interrupted" if journal is None else "interrupted; --resume goes on with the rest")
        raise typer.Exit(INTERRUPTED)
    problems = series.problems(max_wer_increase)
    if journal is not None and any(each.failures for each in series.report.evaluations):
        printer.notify("--resume tries what failed again")
    for problem in problems:
        typer.echo(f"error: {visible(problem)}", err=True)
    if problems:
        raise typer.Exit(1)


def _beside(output: Path | None) -> Path | None:
    """Where the journal goes if no option names it; nowhere beside a device such as /dev/stdout."""
    if output is None or output.absolute().is_relative_to("/dev"):
        return None
    return output.with_suffix(".journal.jsonl")


def _open(
    where: Where,
    search: Mapping[str, Any],
    own: Mapping[str, Any],
    compared: Sequence[str],
    playback: Playback | None,
    concurrency: int | None,
    paths: Sequence[str],
) -> list[System[TranscriptResult]]:
    """Open all systems; what is wrong without asking a server or opening a graph is reported before anything runs.

    Args:
        own: options of loading, of which servers have `vad` alone.
    """
    systems: list[System[TranscriptResult]] = []
    if where.url is not None:
        systems.append(
            transcriber(
                where.connect(),
                where.model,
                playback=playback,
                concurrency=concurrency,
                search=search,
                vad=own["vad"],
            )
        )
    specs = [parse_spec(text) for text in compared]
    if where.what is not None:
        spec = parse_spec(where.what)  # with options behind it, as --bundle had them
        given = where.loading(**search, **own)
        specs.insert(0, replace(spec, options={**spec.options, **{name: str(value) for name, value in given.items()}}))
    for spec in specs:
        if not spec.is_served:
            recordings.check_audio(paths, spec.target)
            asked = {key: spec.options.get(key) for key in ("device", "precision")}
            spec = replace(spec, target=bundle_of(spec.target, where.exporting, **asked))
        systems.append(
            open_system(
                spec,
                playback=playback,
                concurrency=concurrency,
                timeout_s=where.limit_s,
                connect=where.connection.client,
            )
        )
    return systems
