"""`tritone bench`: the load that a served model sustains, as tables, plots and a page, alone or compared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tritone.cli.bench import options
from tritone.cli.bench.options import AudioChoice, Builds, LimitChoice, LoadChoice, Outputs, Protocol, Windows, is_given
from tritone.cli.bench.screen import Screen, fail, show
from tritone.cli.bench.sweep import sweep
from tritone.cli.shared.connection import Connection
from tritone.cli.shared.help import App
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.search_options import Hotwords
from tritone.cli.shared.what import HELP, Exporting
from tritone.cli.shared.where import Url
from tritone.errors import InputError
from tritone.loadtest.findings.result import Loop, Report
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.pages.compare import compare as compare_reports
from tritone.loadtest.pages.gate import complaints, slowdowns
from tritone.loadtest.pages.page import tables_of
from tritone.loadtest.plans.build_options import short, text_of
from tritone.loadtest.plans.generator import Generator, content_of, find_target, point_duration, ramp_duration
from tritone.loadtest.plans.perf_input import DEFAULT_CHUNK_S, write_inputs
from tritone.loadtest.plans.plan import Plan, parse_numbers
from tritone.loadtest.plans.run import Header, Measure, run_plan, run_ramp
from tritone.loadtest.plans.serving import serve_bundle
from tritone.loadtest.senders.wire import Target
from tritone.report.stamp import Stamp
from tritone.search.options import SearchOptions

DEFAULT_MAX_LOAD = 1024
WHO = (
    "say what to measure: --url (a running server, e.g. --url localhost:8001) or --model (served here for the time, "
    "e.g. --model demo-asr)"
)

app = App()


@app.callback(invoke_without_command=True)
@takes_option_classes(leave_out=("retries", "hotwords", "detail_times"))  # every failure is counted
def bench(
    context: typer.Context,
    *,
    url: Url = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help=f"Serve this model for the time: {HELP}. With --url: its name there, if several could answer.",
        ),
    ] = None,
    exporting: Exporting,
    build: Builds = None,
    protocol: Annotated[Protocol | None, typer.Option(help="Protocol; grpc if --url has no scheme.")] = None,
    connection: Connection,
    search: Annotated[dict[str, Any], SearchOptions],
    hotwords: Hotwords = None,
    windows: Windows,
    load: LoadChoice,
    limits: LimitChoice,
    ramp: Annotated[
        bool, typer.Option("--ramp", help="Search for the largest load within the limit, from the first load given.")
    ] = False,
    audio: AudioChoice,
    method: LoadOptions,
    outputs: Outputs,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label of the figures, e.g. runtime=torch; repeatable."),
    ] = None,
) -> None:
    """Measure the load that a served model sustains.

    Sends load and reports throughput, latency, what the server did, and the word error rate of the same run. Prints a
    table; --output writes a page with plots. Without --rate and --streaming a number of requests is kept in flight.
    A model that is not speech is sent the samples of --input, or one made of the shapes that it declares.
    Exit code 0 only if no request failed; 130 after Ctrl-C, with a report on the finished part.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if url is None and model is None:
        raise typer.BadParameter(f"{WHO}; one of them is needed")
    made = {"--build": build, "--trust": exporting.trust, "--cache": exporting.cache}
    if url is not None and (given := [name for name, value in made.items() if value]):
        raise typer.BadParameter(f"{', '.join(given)} goes with --model alone; a running server is built already")
    load.check(context)
    if ramp and limits.latency_limit_ms is None:
        raise typer.BadParameter("--ramp needs --latency-limit-ms, the limit that it searches for")
    if load.max_load is not None and not ramp:
        raise typer.BadParameter("--max-load goes with --ramp; otherwise give the loads themselves")
    sent = audio.read(method.seed)
    if load.streaming and sent.inputs:
        raise typer.BadParameter("--input is for requests; --streaming sends audio")
    limit = limits.limit(sent)
    plan = _plan(load, sent.kinds)
    asked = {
        name: text_of(value)
        for name, value in {**search, "hotwords": hotwords, **windows.asked}.items()
        if value is not None
    }
    labels = {short(name): value for name, value in asked.items()} | options.labels_of(label)
    most = load.max_load or max(DEFAULT_MAX_LOAD, int(plan.loads[0])) if ramp else int(max(plan.loads))
    if ramp:
        _check_ramp(plan, most)
    built = options.build_options(build, max_streams=most if load.streaming else None)
    outputs.check()

    screen, key = Screen(), None
    with interrupts(), ExitStack() as stack:
        with screen:
            what, name = (model, None) if url is None else (None, model)
            if what is not None:
                bundle = options.bundle_for(what, exporting, built, sent)
                screen.notify(f"serving {what} ...")
                mode: Literal["streaming", "offline"] = "streaming" if load.streaming else "offline"
                served = stack.enter_context(serve_bundle(bundle, built, mode=mode))
                url, protocol, key = served.url(protocol), None, served.key
                method = replace(method, metrics_url=method.metrics_url or served.metrics_url)
                labels = options.build_labels(build) | labels
            assert url is not None
            has_inputs = bool(sent.inputs)
            target = stack.enter_context(
                _target(url, protocol, key, connection, name, load.streaming, asked, has_inputs)
            )
            content = content_of(target, sent)
            plan = replace(plan, audio=content.kinds)
            measure: Measure = Generator(target, content, method, screen.window)
            where = f"{what} served for the measurement" if what else str(target.endpoint)
            header = Header(
                stamp=Stamp.here().of_server(f"model {target.model}, {where}"),
                title=outputs.title or f"Load test of {target.model}",
                labels=labels,
            )
            one = point_duration(method, plan.loop == "streaming")
            if ramp:
                assert limit is not None
                first = plan.series()[0][0]
                screen.notify(f"a search from {first} up to {most}, {ramp_duration(one, int(first.load), most)}")
                run, _ = run_ramp(first, most, limit, measure, screen, header)
            else:
                screen.notify(f"{len(plan)} point{'s' if len(plan) > 1 else ''}, {one * len(plan)}")
                run = run_plan(plan, measure, screen, header, limit=limit)
        # Before the server is stopped: that may take a while, in which an impatient Ctrl-C would lose the report.
        show(tables_of(run.report))
        outputs.write(run.report)
        if isinstance(run.ended_by, KeyboardInterrupt):
            screen.notify(run.report.notes[-1])
            raise typer.Exit(INTERRUPTED)
        problems = complaints(run.report, limits.wer)
        fail([str(run.ended_by), *problems] if run.ended_by else problems)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="The report to compare with, or its folder.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The report that is compared, or its folder.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the comparison as a page.")] = None,
    max_slowdown: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Fail if B has less throughput or a higher p95 by more than this: 10%."),
    ] = None,
) -> None:
    """Compare two reports, operating point by operating point.

    With --max-slowdown it is a gate: exit code 1 if B is slower, fails more, or has a higher WER.
    """
    if html is not None:
        options.check_file(html)
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
@takes_option_classes(leave_out=("trans", "inputs"))
def input(
    audio: AudioChoice,
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the files.")],
    mode: Annotated[
        Literal["offline", "streaming", "both"],
        typer.Option(help="Files to write: offline_input.json, online_input.json or both."),
    ] = "both",
    chunk_ms: Annotated[float, typer.Option(min=1, help="Audio in a chunk of a stream.")] = 1000 * DEFAULT_CHUNK_S,
    first_chunk_ms: Annotated[float | None, typer.Option(min=1, help="The first chunk, if it differs.")] = None,
    sample_rate: Annotated[int, typer.Option(min=1, help="Sample rate of the model, in Hz.")] = 16000,
    base64: Annotated[bool, typer.Option("--base64", help="Samples as base64: smaller files, read faster.")] = False,
    pcm: Annotated[bool, typer.Option("--pcm", help="The input PCM of 16-bit samples in place of WAV.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random: lengths, files.")] = 0,
) -> None:
    """Write input files for NVIDIA's perf_analyzer, and print them."""
    sent = audio.read(seed)
    if len(sent.kinds) > 1:
        raise typer.BadParameter("the files hold one kind of audio: give one length or distribution")
    written = write_inputs(
        sent.workload(sent.kinds[0], sample_rate).waveforms,
        output,
        sample_rate=sample_rate,
        offline=mode != "streaming",
        streaming=mode != "offline",
        chunk_s=chunk_ms / 1000,
        first_chunk_s=None if first_chunk_ms is None else first_chunk_ms / 1000,
        as_base64=base64,
        pcm=pcm,
    )
    for each in written:
        typer.echo(f"{each.path}\t{each.utterances} utterances\t{each.requests} requests\t{each.audio_s:.1f} s")


app.command("sweep")(sweep)


def _plan(load: LoadChoice, kinds: Sequence[str]) -> Plan:
    loop: Loop = "closed"
    try:
        if load.rate is not None:
            loop, loads = load.arrivals or "poisson", parse_numbers(load.rate)
            if loads[0] == 0:
                raise ValueError("a rate must be above 0 requests per second")
        else:
            loop = "streaming" if load.streaming else "closed"
            loads = [*map(float, load.counts(options.DEFAULT_LOADS))]
        batch_sizes = options.counts_of("--batch-size", load.batch_size)
        return Plan(loop=loop, loads=loads, batch_sizes=batch_sizes, audio=kinds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _check_ramp(plan: Plan, most: int) -> None:
    if len(plan.series()) > 1:
        raise typer.BadParameter("--ramp searches with one kind of audio and one batch size; give one of each")
    start = f"{plan.loads[0]:g}"
    if plan.loads[0] % 1 or not 1 <= plan.loads[0] <= most:
        raise typer.BadParameter(f"--ramp starts from a whole number up to --max-load ({most}), not {start}")


@contextmanager
def _target(
    url: str,
    protocol: Protocol | None,
    key: str | None,
    connection: Connection,
    model: str | None,
    streaming: bool,
    parameters: Mapping[str, str],
    has_inputs: bool,
) -> Iterator[Target]:
    try:
        client = connection.client(url, protocol=protocol, **({} if key is None else {"key": key}))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield find_target(client, model, streaming=streaming, parameters=parameters, has_inputs=has_inputs)


def _refuse_options(context: typer.Context) -> None:
    """Options before a subcommand would be lost without a word."""
    if given := [name for name in context.params if is_given(context, name)]:
        name = given[0].replace("_", "-")
        raise typer.BadParameter(f"--{name} does not go with `{context.invoked_subcommand}`; its options come after it")


def _share(percent: str) -> float:
    try:
        share = float(percent.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise typer.BadParameter(f"--max-slowdown is a percentage from 0 to below 100, like 10%; got {percent!r}")
    return share


def _name(path: Path) -> str:
    """The name of a report: its folder where the file is called report.json, as in every --output."""
    if path.is_dir():
        return path.absolute().name
    return path.absolute().parent.name if path.stem == "report" else path.stem
