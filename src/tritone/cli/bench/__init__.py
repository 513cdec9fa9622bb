"""`tritone bench`: what a served model bears, as tables, plots and a page, alone or against an earlier time."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tritone.bench.compare import compare as compare_reports
from tritone.bench.gate import complaints, slowdowns
from tritone.bench.generator import ForeignGenerator, Generator, Method, find_target, ramp_duration
from tritone.bench.merge import merge
from tritone.bench.page import tables_of
from tritone.bench.perf_analyzer import find_perf_analyzer
from tritone.bench.perf_input import DEFAULT_CHUNK_S, write_ab_input, write_inputs
from tritone.bench.plan import Plan, parse_numbers
from tritone.bench.ramp import Limit
from tritone.bench.run import Header, Measure, Run, run_plan, run_ramp
from tritone.bench.serving import serve_bundle
from tritone.bench.sweep import short
from tritone.cli.bench import options
from tritone.cli.bench.screen import Screen, fail, show, write
from tritone.cli.bench.sweep import sweep
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.cli.shared.search_options import parse_parameters
from tritone.client import Client
from tritone.errors import InputError
from tritone.evaluate.normalize import Normalization
from tritone.loadtest.findings.result import Loop, Report
from tritone.loadtest.requests.arrivals import Arrivals
from tritone.loadtest.senders.wire import Target
from tritone.pipelines.embed_options import PARAMETERS as WINDOWS
from tritone.report.stamp import Stamp

Protocol = Literal["grpc", "http"]
Tool = Literal["tritone", "perf_analyzer"]

DEFAULT_CONCURRENCY = "1,2,4,8"
DEFAULT_STREAMS = "1,2,4,8"
DEFAULT_MAX_LOAD = 1024
WHO = (
    "say what to measure: --url (a running server, e.g. --url localhost:8001) or --bundle (served here for the time, "
    "e.g. --bundle demo-asr)"
)

# Options that perf_analyzer has nothing like, and why; without a word they would be lost.
FOREIGN = {
    "warmup_s": "has no warm-up",
    "processes": "is one process",
    "max_wer": "looks at no text",
    "parameters": "is not told any",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="A running server: host:port (gRPC), grpc://…, http://…, grpcs://…, https://….")
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(help="Serve this bundle here for the time: a folder, or a shipped one by name.")
    ] = None,
    build: options.BuildOptions = None,
    model: options.Model = None,
    protocol: Annotated[Protocol | None, typer.Option(help="What to speak: grpc if --url does not say.")] = None,
    parameters: options.Parameters = None,
    concurrency: options.Concurrency = None,
    rate: Annotated[
        str | None, typer.Option(metavar="LOADS", help="Requests per second, come what may: 10,20,50.")
    ] = None,
    arrivals: Annotated[
        Arrivals | None, typer.Option(help="With --rate: poisson (as from many users, the default) or constant.")
    ] = None,
    batch_size: options.BatchSize = "1",
    streaming: options.Streaming = False,
    streams: options.Streams = None,
    chunk_ms: options.ChunkMs = None,
    latency_limit_ms: options.LatencyLimitMs = None,
    percentile: options.PercentileOption = "p95",
    ramp: Annotated[
        bool, typer.Option("--ramp", help="Search for the largest load within the limit, from the first load given.")
    ] = False,
    max_load: options.MaxLoad = None,
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
    metrics_url: Annotated[
        str | None, typer.Option(help="The server's Prometheus metrics; port 8002 is tried if not given.")
    ] = None,
    case: options.CaseOption = options.TEXTS.case,
    punctuation: options.PunctuationOption = options.TEXTS.punctuation,
    units: options.UnitsOption = options.TEXTS.units,
    max_wer: options.MaxWer = None,
    tool: Annotated[Tool, typer.Option(help="Who measures: Tritone, or NVIDIA's perf_analyzer.")] = "tritone",
    perf_analyzer: Annotated[Path | None, typer.Option(help="The program perf_analyzer; on PATH if not given.")] = None,
    output: options.Output = None,
    json: options.Json = None,
    csv: options.Csv = None,
    title: options.Title = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Marks the figures, e.g. runtime=torch; repeatable. See `report`."),
    ] = None,
) -> None:
    """Measure what a served model bears.

    Sends load and reports throughput, latency, what the server did, and the word error rate of the same run. Prints a
    table; --output writes a page with plots. Without --rate and --streaming a number of requests is kept in flight.
    Exit code 0 only if no request failed; 130 after Ctrl-C, with a report on what is there.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if (url is None) == (bundle is None):
        raise typer.BadParameter(f"{WHO}, {'not both' if url else 'one of them is needed'}")
    if build and bundle is None:
        raise typer.BadParameter("--build goes with --bundle; a running server is built already")
    _check_loads(concurrency, rate, arrivals, streaming, streams, chunk_ms, batch_size)
    if perf_analyzer is not None and tool != "perf_analyzer":
        raise typer.BadParameter("--perf-analyzer goes with --tool perf_analyzer")
    if ramp and latency_limit_ms is None:
        raise typer.BadParameter("--ramp needs --latency-limit-ms, the limit that it searches for")
    if max_load is not None and not ramp:
        raise typer.BadParameter("--max-streams goes with --ramp; otherwise give the loads themselves")
    if tool == "perf_analyzer":
        _check_foreign(context)
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
        metrics_url=metrics_url,
        normalization=Normalization(case=case, punctuation=punctuation, units=units),
        chunk_ms=chunk_ms,
    )
    limit = options.limit_of(latency_limit_ms, percentile, max_wer)
    plan = _plan(concurrency, rate, arrivals, streaming, streams, batch_size, sent.kinds, tool)
    asked = parse_parameters(parameters, others=WINDOWS)
    labels = {short(name): value for name, value in asked.items()} | options.labels_of(label)
    most = max_load or max(DEFAULT_MAX_LOAD, int(plan.loads[0])) if ramp else int(max(plan.loads))
    if ramp:
        _check_ramp(plan, most)
    binary = find_perf_analyzer(perf_analyzer) if tool == "perf_analyzer" else None
    server = options.model_options(build, **({"max_streams": most} if streaming else {}))
    options.check_outputs(json, csv, folder=output)

    screen = Screen()
    with interrupts(), ExitStack() as stack:
        with screen:
            if bundle is not None:
                screen.say(f"serving {bundle} ...")
                mode: Any = "streaming" if streaming else "offline"
                served = stack.enter_context(serve_bundle(bundle, server, mode=mode))
                url = f"http://{served.http_address}" if protocol == "http" else f"grpc://{served.grpc_address}"
                method = replace(method, metrics_url=metrics_url or served.metrics_url)
                labels = options.build_labels(build) | labels
            assert url is not None
            target = stack.enter_context(_target(url, None if bundle else protocol, model, streaming, asked))
            measure: Measure
            if binary is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tritone-perf-")))
                measure = ForeignGenerator(target, sent, method, binary, folder)
            else:
                measure = Generator(target, sent, method, screen.window)
            where = f"{bundle} served for the measurement" if bundle else str(target.endpoint)
            header = Header(
                stamp=Stamp.here().of_server(f"model {target.model}, {where}"),
                title=title or f"Load test of {target.model}",
                labels=labels,
            )
            run = _run(plan, most if ramp else None, limit, method, measure, screen, header)
        # Before the server is stopped: that may take a while, in which an impatient Ctrl-C would lose the report.
        _finish(run, screen, output, json, csv, max_wer)


@app.command()
def report(
    reports: Annotated[list[Path], typer.Argument(metavar="REPORT.json", help="Reports of `tritone bench`.")],
    output: options.Output = None,
    json: options.Json = None,
    csv: options.Csv = None,
    title: options.Title = None,
) -> None:
    """Join reports into one, with one set of plots.

    Tell their figures apart by labels (`--label batching=static`, `--label batching=dynamic`); what is equal gets the
    file's name as a label.
    """
    options.check_outputs(json, csv, folder=output)
    merged = merge([Report.read(path) for path in reports], [_name(path) for path in reports], title=title)
    show(tables_of(merged))
    write(merged, Screen(), output=output, json=json, csv=csv)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The report to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The report that is compared.")],
    html: Annotated[Path | None, typer.Option(help="Write the comparison as a page.")] = None,
    max_slowdown: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Fail if B has less throughput or a higher p95 by more than this: 10%."),
    ] = None,
) -> None:
    """Compare two reports, operating point by operating point.

    With --max-slowdown it is a gate: exit code 1 if B is slower, fails more, or has a higher WER.
    """
    options.check_outputs(html)
    most = None if max_slowdown is None else _share(max_slowdown)
    names = (_name(before), _name(after))
    found = compare_reports(Report.read(before), Report.read(after), names if names[0] != names[1] else ("A", "B"))
    show(found.tables())
    for text, _ in found.notices():
        typer.echo(text, err=True)
    if html is not None:
        try:
            html.write_text(found.to_html(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {html}: {error.strerror}") from error
        typer.echo(f"wrote {html}", err=True)
    if most is not None:
        fail(slowdowns(found, most))


@app.command()
def input(
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the files.")],
    seconds: options.Seconds = None,
    lengths: options.Lengths = None,
    audio: options.AudioFiles = None,
    wavscp: options.Wavscp = None,
    manifest: options.Manifest = None,
    data_dir: options.DataDir = None,
    mode: Annotated[
        Literal["offline", "streaming", "both"],
        typer.Option(help="Which to write: offline_input.json, online_input.json or both."),
    ] = "both",
    chunk_ms: Annotated[float, typer.Option(min=1, help="Audio in a chunk of a stream.")] = 1000 * DEFAULT_CHUNK_S,
    first_chunk_ms: Annotated[float | None, typer.Option(min=1, help="Of the first chunk, if it differs.")] = None,
    sample_rate: Annotated[int, typer.Option(min=1, help="Of the model, in Hz.")] = 16000,
    base64: Annotated[bool, typer.Option("--base64", help="Samples as base64: smaller files, read faster.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Write ab_input.bin for ApacheBench too, for the model there: http://HOST:8000.")
    ] = None,
    model: options.Model = None,
    seed: options.Seed = 0,
) -> None:
    """Write input files for NVIDIA's perf_analyzer (and ApacheBench).

    Prints the files, and for ApacheBench the command line that sends the request.
    """
    sent = options.audio_of(
        seconds=seconds,
        lengths=lengths,
        files=audio,
        wavscp=wavscp,
        trans=None,
        manifest=manifest,
        data_dir=data_dir,
        seed=seed,
    )
    if len(sent.kinds) > 1:
        raise typer.BadParameter("the files hold one kind of audio: give one length or distribution")
    workload = sent.workload(sent.kinds[0], sample_rate)
    written = write_inputs(
        workload.waveforms,
        output,
        sample_rate=sample_rate,
        offline=mode != "streaming",
        streaming=mode != "offline",
        chunk_s=chunk_ms / 1000,
        first_chunk_s=None if first_chunk_ms is None else first_chunk_ms / 1000,
        as_base64=base64,
    )
    for each in written:
        typer.echo(f"{each.path}\t{each.utterances} utterances\t{each.requests} requests\t{each.audio_s:.1f} s")
    if url is not None:
        with _target(url, None, model, streaming=False, parameters={}) as target:
            if target.sample_rate != sample_rate:
                raise typer.BadParameter(f"model '{target.model}' wants {target.sample_rate} Hz: give --sample-rate")
            body = write_ab_input(target, workload.waveforms[0], output)
        typer.echo(f"{body.path}\t{body}")


app.command("sweep")(sweep)


def _run(
    plan: Plan, most: int | None, limit: Limit | None, method: Method, measure: Measure, screen: Screen, header: Header
) -> Run:
    """Run a plan, or search up to the load `most`, and say beforehand how long that takes."""
    one = method.duration(plan.loop == "streaming")
    if most is None:
        screen.say(f"{len(plan)} point{'s' if len(plan) > 1 else ''}, {one * len(plan)}")
        return run_plan(plan, measure, screen, header, limit=limit)
    assert limit is not None
    first = plan.series()[0][0]
    screen.say(f"a search from {first} up to {most}, {ramp_duration(one, int(first.load), most)}")
    run, _ = run_ramp(first, most, limit, measure, screen, header)
    return run


def _finish(
    run: Run, screen: Screen, output: Path | None, json: Path | None, csv: Path | None, max_wer: float | None
) -> None:
    """Show and write the report, and exit as it deserves."""
    show(tables_of(run.report))
    write(run.report, screen, output=output, json=json, csv=csv)
    if isinstance(run.ended_by, KeyboardInterrupt):
        screen.say(run.report.notes[-1])
        raise typer.Exit(INTERRUPTED)
    problems = complaints(run.report, None if max_wer is None else max_wer / 100)
    fail([str(run.ended_by), *problems] if run.ended_by else problems)


def _plan(
    concurrency: str | None,
    rate: str | None,
    arrivals: Arrivals | None,
    streaming: bool,
    streams: str | None,
    batch_size: str,
    kinds: Any,
    tool: Tool,
) -> Plan:
    loop: Loop
    loads: list[float]
    try:
        if streaming:
            # perf_analyzer paces nothing: its streams are a closed loop.
            loop = "closed" if tool == "perf_analyzer" else "streaming"
            loads = [*map(float, options.counts_of("--streams", streams or DEFAULT_STREAMS))]
        elif rate is not None:
            loop, loads = arrivals or "poisson", parse_numbers(rate)
            if loads[0] == 0:
                raise ValueError("a rate must be above 0 requests per second")
        else:
            counts = options.counts_of("--concurrency", concurrency or DEFAULT_CONCURRENCY)
            loop, loads = "closed", [*map(float, counts)]
        return Plan(loop=loop, loads=loads, batch_sizes=options.counts_of("--batch-size", batch_size), audio=kinds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _check_loads(
    concurrency: str | None,
    rate: str | None,
    arrivals: str | None,
    streaming: bool,
    streams: str | None,
    chunk_ms: float | None,
    batch_size: str,
) -> None:
    if sum((concurrency is not None, rate is not None, streaming)) > 1:
        raise typer.BadParameter("--concurrency, --rate and --streaming are three kinds of load; give one of them")
    if arrivals is not None and rate is None:
        raise typer.BadParameter("--arrivals goes with --rate")
    if not streaming and (streams is not None or chunk_ms is not None):
        raise typer.BadParameter("--streams and --chunk-ms go with --streaming")
    if streaming and batch_size != "1":
        raise typer.BadParameter("--batch-size is for whole utterances; a stream sends one chunk at a time")


def _check_foreign(context: typer.Context) -> None:
    for name, why in FOREIGN.items():
        if _is_given(context, name):
            raise typer.BadParameter(f"--{name.replace('_', '-')} does not go with --tool perf_analyzer, which {why}")


def _check_ramp(plan: Plan, most: int) -> None:
    if len(plan.series()) > 1:
        raise typer.BadParameter("--ramp searches with one kind of audio and one batch size; give one of each")
    start = f"{plan.loads[0]:g}"
    if plan.loads[0] % 1 or not 1 <= plan.loads[0] <= most:
        raise typer.BadParameter(f"--ramp starts from a whole number up to --max-streams ({most}), not {start}")


@contextmanager
def _target(
    url: str, protocol: Protocol | None, model: str | None, streaming: bool, parameters: Mapping[str, str]
) -> Iterator[Target]:
    try:
        client = Client(url, protocol=protocol)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield find_target(client, model, streaming=streaming, parameters=parameters)


def _refuse_options(context: typer.Context) -> None:
    """Options before a subcommand would be lost without a word."""
    if given := [name for name in context.params if _is_given(context, name)]:
        name = given[0].replace("_", "-")
        raise typer.BadParameter(f"--{name} does not go with `{context.invoked_subcommand}`; its options come after it")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _share(percent: str) -> float:
    try:
        share = float(percent.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise typer.BadParameter(f"--max-slowdown is a percentage from 0 to below 100, like 10%; got {percent!r}")
    return share


def _name(path: Path) -> str:
    """What to call a report: its folder where the file is called report.json, as in every --output."""
    return path.absolute().parent.name if path.stem == "report" else path.stem
