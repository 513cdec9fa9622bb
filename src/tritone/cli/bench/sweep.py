"""`tritone bench sweep`: the best way of serving a bundle within a latency limit, found by trying."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, get_args

import typer

from tritone.cli.bench.options import (
    AudioChoice,
    Builds,
    LimitChoice,
    LoadChoice,
    Outputs,
    Protocol,
    build_options,
    bundle_for,
    split_pair,
)
from tritone.cli.bench.screen import Screen, fail, figures, show
from tritone.cli.shared.interrupts import INTERRUPTED, interrupts
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.what import HELP, Exporting
from tritone.loadtest.findings.result import Report
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.plans.build_options import Value, parse_option
from tritone.loadtest.plans.sweep import (
    BATCHING,
    WHERE,
    Batching,
    Grid,
    Setting,
    Sweep,
    Trial,
    Where,
    known_trials,
    run_sweep,
    sweep_report,
)
from tritone.loadtest.plans.trials import Question
from tritone.report.stamp import Stamp


@takes_option_classes(leave_out=("rate", "arrivals", "batch_size", "metrics_url"))
def sweep(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"What to serve: {HELP}.")],
    *,
    exporting: Exporting,
    instances: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 1,2.")] = None,
    max_batch_size: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 1,8,16.")] = None,
    queue_delay_ms: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try, e.g. 0,2,5.")] = None,
    runtime: Annotated[str | None, typer.Option(metavar="LIST", help="Values to try: onnxruntime,torch.")] = None,
    batching: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="dynamic: the server forms batches; static: clients send full ones; or both.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="served: on a server; process: without one, in batches of --max-batch-size."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LIST", help="Values of any option of `tritone build`: threads=1,2; repeatable."),
    ] = None,
    build: Builds = None,
    protocol: Annotated[Protocol, typer.Option(help="Protocol of the requests.")] = "grpc",
    load: LoadChoice,
    limits: LimitChoice,
    audio: AudioChoice,
    method: LoadOptions,
    outputs: Outputs,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the report of --output or --report; what failed is tried again."),
    ] = False,
) -> None:
    """Find the best way to serve a bundle.

    Builds a repository for each setting, serves and measures it, and ranks them: by throughput, or with --streaming by
    the number of streams, within the latency limit. Without a list of loads the largest one within the limit is
    searched for each. Prints the `tritone build` command of the best. Ctrl-C keeps the settings that are done. With
    several lengths of audio each setting is measured with all, and ranked by the sum of seconds of audio per second.
    """
    load.check(context)
    loads = load.counts()
    if load.streaming and batching is not None:
        raise typer.BadParameter("--batching is for whole utterances; a stream sends one chunk at a time")
    if load.streaming and where is not None:
        raise typer.BadParameter("--where is for whole utterances; streams are measured on a server")
    if loads and load.max_load is not None:
        raise typer.BadParameter("--max-load is for a search; these loads are given")
    if resume and outputs.report is None and outputs.output is None:
        raise typer.BadParameter("--resume needs --output or --report, which hold the earlier report")
    named = {
        "instances": instances,
        "max_batch_size": max_batch_size,
        "queue_delay_ms": queue_delay_ms,
        "runtime": runtime,
    }
    sent = audio.read(method.seed)
    limit = limits.limit(sent)
    try:
        question = Question(
            bundle=what,
            streaming=load.streaming,
            protocol=protocol,
            loads=loads,
            most=max(loads) if loads else load.max_load or Question.most,
            audio=sent,
            options=method,
            limit=limit,
        )
        base = build_options(build, max_streams=question.most if load.streaming else None)
        grid = Grid(base=base, axes=_axes(named, {BATCHING: batching, WHERE: where}, vary))
        if load.streaming and any(each.options.layout == "ensemble" for each in grid.settings()):
            raise ValueError("layout=ensemble is for whole utterances; leave --streaming out")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    question = replace(question, bundle=bundle_for(what, exporting, base, sent))
    words = question.words(grid)
    outputs.check()
    known = known_trials(outputs.earlier(), words, grid, limit) if resume else []
    stamp = Stamp.here().of_server(f"{what} served for the measurement")
    name = outputs.title or f"Sweep of {what}"

    def report_of(found: Sweep) -> Report:
        return sweep_report(found, stamp, name, words, question.build_command(found))

    screen = Screen()
    with interrupts():
        with screen:
            progress = _Progress(screen, grid, known, lambda found: outputs.keep(report_of(found)))
            left = len(grid.settings()) - len(known)
            screen.notify(words)
            screen.notify(f"{left} settings, {question.duration * left}")
            found = run_sweep(
                grid,
                lambda setting: question.measure(setting, screen, screen.window),
                limit,
                progress,
                known=known,
            )
        show([found.table(name)])
        outputs.write(report_of(found))
    if command := question.build_command(found):
        typer.echo(command)
    if not found.complete:
        screen.notify(report_of(found).notes[-1])
        raise typer.Exit(INTERRUPTED)
    if found.winner is None:
        fail(["no setting kept the limit" if limit else "no setting could be measured without failures"])


class _Progress:
    """Shows a sweep on the screen, and keeps what there is after every trial."""

    def __init__(self, screen: Screen, grid: Grid, known: Sequence[Trial], keep: Callable[[Sweep], None]) -> None:
        self._screen = screen
        self._grid = grid
        self._trials = list(known)
        self._keep = keep

    def trying(self, setting: Setting, index: int, total: int) -> None:
        self._screen.notify(f"setting {index} of {total}: {setting.words(self._grid.axes)}")

    def tried(self, trial: Trial) -> None:
        if trial.error:
            self._screen.notify(f"  failed: {trial.error}")
        else:
            for each in trial.bests:
                self._screen.notify(f"  best: {figures(each)}")
            if not trial.bests:
                self._screen.notify("  nothing kept the limit")
        self._trials.append(trial)
        self._keep(Sweep(grid=self._grid, trials=self._trials, complete=False))


def _axes(
    named: Mapping[str, str | None], words: Mapping[str, str | None], vary: Sequence[str] | None
) -> dict[str, Sequence[Value]]:
    """The values of each option that is varied, in the order of the command's own options."""
    axes: dict[str, Sequence[Value]] = {}
    known: Mapping[str, tuple[str, ...]] = {BATCHING: get_args(Batching), WHERE: get_args(Where)}
    for name, text in words.items():
        kinds = [part.strip() for part in text.split(",")] if text is not None else []
        if unknown := [kind for kind in kinds if kind not in known[name]]:
            raise ValueError(f"--{name} is {', '.join(known[name])} or both, got {unknown[0]!r}")
        if kinds:
            axes[name] = list(dict.fromkeys(kinds))
    texts = [(name, text) for name, text in named.items() if text is not None]
    texts += [split_pair(pair) for pair in vary or ()]
    for name, text in texts:
        options = [parse_option(name, part) for part in text.split(",")]
        field = options[0][0]
        if field in axes:
            raise ValueError(f"{name} is varied twice")
        axes[field] = list(dict.fromkeys(value for _, value in options))
    if not axes:
        raise ValueError(
            "say what to vary: --instances, --max-batch-size, --queue-delay-ms, --batching, --where or --vary"
        )
    return axes
