"""`tritone bench sweep`: the best way of serving a bundle within a latency limit, found by trying."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from tritone.bench.sweep import (
    BATCHING,
    Grid,
    Search,
    Setting,
    Sweep,
    Trial,
    Value,
    known_trials,
    parse_option,
    run_sweep,
    sweep_report,
)
from tritone.bench.trials import Question
from tritone.cli.bench import options
from tritone.cli.bench.screen import Screen, fail, figures, show, write
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.errors import InputError
from tritone.evaluate.normalize import Normalization
from tritone.loadtest.findings.result import Report
from tritone.report.stamp import Stamp

REPORT = "report.json"  # in the folder that `write_report` fills


def sweep(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle folder, or a shipped one by name.")],
    instances: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 1,2.")] = None,
    max_batch_size: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 1,8,16.")] = None,
    queue_delay_ms: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 0,2,5.")] = None,
    runtime: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try: onnxruntime,torch.")] = None,
    batching: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="dynamic: the server makes batches; static: clients send full ones. Or both, to compare.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LIST", help="Values of any option of `tritone build`: threads=1,2; repeatable."),
    ] = None,
    build: options.BuildOptions = None,
    search: Annotated[
        Search, typer.Option(help="grid tries all combinations; coordinate changes one option at a time.")
    ] = "grid",
    protocol: Annotated[Literal["grpc", "http"], typer.Option(help="What to speak.")] = "grpc",
    concurrency: options.Concurrency = None,
    streaming: options.Streaming = False,
    streams: options.Streams = None,
    chunk_ms: options.ChunkMs = None,
    max_load: options.MaxLoad = None,
    latency_limit_ms: options.LatencyLimitMs = None,
    percentile: options.PercentileOption = "p95",
    seconds: options.Seconds = None,
    lengths: options.Lengths = None,
    audio: options.AudioFiles = None,
    wavscp: options.Wavscp = None,
    trans: options.Trans = None,
    manifest: options.Manifest = None,
    data_dir: options.DataDir = None,
    warmup_s: options.WarmupS = options.WINDOWS.warmup_s,
    window_s: options.WindowS = options.WINDOWS.window_s,
    stability: options.Stability = 100 * options.WINDOWS.tolerance,
    max_windows: options.MaxWindows = options.WINDOWS.max_windows,
    timeout_s: options.TimeoutS = options.METHOD.timeout_s,
    processes: options.Processes = None,
    seed: options.Seed = 0,
    case: options.CaseOption = options.TEXTS.case,
    punctuation: options.PunctuationOption = options.TEXTS.punctuation,
    units: options.UnitsOption = options.TEXTS.units,
    max_wer: options.MaxWer = None,
    output: options.Output = None,
    json: options.Json = None,
    csv: options.Csv = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the report of --output or --json; what failed is tried again.")
    ] = False,
    title: options.Title = None,
) -> None:
    """Find the best way to serve a bundle.

    Builds a repository for each setting, serves and measures it, and ranks them: by throughput, or with --streaming by
    the number of streams, within the latency limit. Without a list of loads the largest one within the limit is
    searched for each. Prints the `tritone build` command of the best. Ctrl-C keeps the settings that are done.
    """
    given = streams if streaming else concurrency
    _check(concurrency, streams, streaming, chunk_ms, batching, given, max_load)
    if resume and json is None and output is None:
        raise typer.BadParameter("--resume needs --output or --json, which hold the earlier report")
    sent = options.audio_of(
        seconds=seconds,
        lengths=lengths,
        files=audio,
        wavscp=wavscp,
        trans=trans,
        manifest=manifest,
        data_dir=data_dir,
        seed=seed,
    )
    if max_wer is not None and not sent.has_references:
        raise typer.BadParameter("--max-wer needs references: --wavscp with --trans, or --manifest; without lengths")
    method = options.method_of(
        warmup_s=warmup_s,
        window_s=window_s,
        stability=stability,
        max_windows=max_windows,
        timeout_s=timeout_s,
        processes=processes,
        seed=seed,
        metrics_url=None,
        normalization=Normalization(case=case, punctuation=punctuation, units=units),
        chunk_ms=chunk_ms,
    )
    limit = options.limit_of(latency_limit_ms, percentile, max_wer)
    named = {
        "instances": instances,
        "max_batch_size": max_batch_size,
        "queue_delay_ms": queue_delay_ms,
        "runtime": runtime,
    }
    try:
        loads = options.counts_of("--streams" if streaming else "--concurrency", given) if given is not None else []
        question = Question(
            bundle=bundle,
            streaming=streaming,
            protocol=protocol,
            loads=loads,
            most=max(loads) if loads else max_load or Question.most,
            audio=sent,
            method=method,
            limit=limit,
        )
        base = options.model_options(build, **({"max_streams": question.most} if streaming else {}))
        grid = Grid(base=base, axes=_axes(named, batching, vary))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    words = question.words(grid)
    options.check_outputs(json, csv, folder=output)
    known = known_trials(_earlier(output, json), words, grid, limit) if resume else []
    stamp = Stamp.here().of_server(f"{bundle} served for the measurement")
    name = title or f"Sweep of {bundle}"

    def report_of(found: Sweep) -> Report:
        return sweep_report(found, stamp, name, words, question.build_command(found))

    screen = Screen()
    with interrupts():
        with screen:
            teller = _Teller(screen, grid, known, lambda found: _keep(report_of(found), output, json))
            left = len(grid.settings()) - len(known)
            screen.say(words)
            screen.say(f"{'up to ' if search == 'coordinate' else ''}{left} settings, {question.duration * left}")
            found = run_sweep(
                grid,
                lambda setting: question.measure(setting, screen, screen.window),
                limit,
                teller,
                search=search,
                known=known,
            )
        show([found.table(name)])
        write(report_of(found), screen, output=output, json=json, csv=csv)
    if command := question.build_command(found):
        typer.echo(command)
    if not found.complete:
        screen.say(report_of(found).notes[-1])
        raise typer.Exit(INTERRUPTED)
    if found.winner is None:
        fail(["no setting kept the limit" if limit else "no setting could be measured without failures"])


class _Teller:
    """Tells of a sweep on the screen, and keeps what there is after every trial."""

    def __init__(self, screen: Screen, grid: Grid, known: Sequence[Trial], keep: Callable[[Sweep], None]) -> None:
        self._screen = screen
        self._grid = grid
        self._trials = list(known)
        self._keep = keep

    def trying(self, setting: Setting, place: int, total: int) -> None:
        self._screen.say(f"setting {place} of {total}: {setting.words(self._grid.axes)}")

    def tried(self, trial: Trial) -> None:
        if trial.error:
            self._screen.say(f"  failed: {trial.error}")
        else:
            self._screen.say(f"  best: {figures(trial.best)}" if trial.best else "  nothing kept the limit")
        self._trials.append(trial)
        self._keep(Sweep(grid=self._grid, trials=self._trials, complete=False))


def _keep(report: Report, output: Path | None, json: Path | None) -> None:
    """Write the JSON alone: a sweep may be long, and its machine may go down."""
    try:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            report.save(output / REPORT)
        if json is not None:
            report.save(json)
    except OSError as error:
        raise InputError(f"cannot write the report: {error}") from error


def _earlier(output: Path | None, json: Path | None) -> Report | None:
    for path in (json, None if output is None else output / REPORT):
        if path is not None and path.exists():
            return Report.read(path)
    return None


def _axes(
    named: Mapping[str, str | None], batching: str | None, vary: Sequence[str] | None
) -> dict[str, Sequence[Value]]:
    """The values of each option that is varied, in the order of the command's own options."""
    axes: dict[str, Sequence[Value]] = {}
    if batching is not None:
        kinds = [part.strip() for part in batching.split(",")]
        if unknown := [kind for kind in kinds if kind not in ("static", "dynamic")]:
            raise ValueError(f"--batching is static, dynamic or both, got {unknown[0]!r}")
        axes[BATCHING] = list(dict.fromkeys(kinds))
    texts = [(name, text) for name, text in named.items() if text is not None]
    texts += [options.split_pair(pair) for pair in vary or ()]
    for name, text in texts:
        values: dict[Value, None] = {}
        for part in text.split(","):
            field, value = parse_option(name, part)
            values[value] = None
        if field in axes:
            raise ValueError(f"{name} is varied twice")
        axes[field] = list(values)
    if not axes:
        raise ValueError("say what to vary: --instances, --max-batch-size, --queue-delay-ms, --batching or --vary")
    return axes


def _check(
    concurrency: str | None,
    streams: str | None,
    streaming: bool,
    chunk_ms: float | None,
    batching: str | None,
    given: str | None,
    max_load: int | None,
) -> None:
    if (concurrency if streaming else streams) is not None:
        raise typer.BadParameter("--concurrency is for whole utterances, --streams goes with --streaming")
    if chunk_ms is not None and not streaming:
        raise typer.BadParameter("--chunk-ms goes with --streaming")
    if streaming and batching is not None:
        raise typer.BadParameter("--batching is for whole utterances; a stream sends one chunk at a time")
    if given is not None and max_load is not None:
        raise typer.BadParameter("--max-streams is for a search; these loads are given")
