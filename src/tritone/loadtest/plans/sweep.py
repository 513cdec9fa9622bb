"""Searching for the best way to serve a model: settings are built, served and measured; the fastest one wins.

    axes: instances x max batch x delay x ...  ->  Settings  ->  Trials  ->  ranking, `tritone build ...` of the winner

A trial that fails is a result too and does not end the sweep. What was measured before is not measured again.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from tritone.errors import InputError, TritoneError
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.findings.series import in_flight, unit_of
from tritone.loadtest.plans.build_options import OPTIONS, BuildOptions, Value, in_words, short, text_of
from tritone.loadtest.plans.ramp import Limit
from tritone.report.stamp import Stamp
from tritone.report.table import Cell, Column, Table, Tone

Batching = Literal["dynamic", "static"]

BATCHING = "batching"
MOST_SETTINGS = 1000  # of one grid


@dataclass(frozen=True)
class Setting:
    """One way of serving and asking. Static batching: clients bring full batches, and the server waits for no other."""

    options: BuildOptions
    batching: Batching = "dynamic"

    @property
    def batch_size(self) -> int:
        """Utterances in a client's request."""
        return self.options.max_batch_size if self.batching == "static" else 1

    def labels(self, names: Iterable[str]) -> dict[str, str]:
        """The values of these axes as text, as measurements carry them, under short names for tables and plots."""
        return {short(name): text_of(self.value(name)) for name in names}

    def words(self, names: Iterable[str]) -> str:
        """The values of these axes on one line."""
        return ", ".join(in_words(name, text_of(self.value(name))) for name in names)

    def value(self, name: str) -> Value:
        """The value of an axis."""
        return self.batching if name == BATCHING else getattr(self.options, name)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All that a sweep tries: `base` with each combination of the values of the axes.

    An axis is a field of `BuildOptions`, or "batching".
    """

    base: BuildOptions
    axes: Mapping[str, Sequence[Value]]

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name != BATCHING and name not in OPTIONS:
                raise ValueError(f"there is no option {name!r} to vary")
            if not values:
                raise ValueError(f"axis {name} has no values")
        count = math.prod(map(len, self.axes.values()))
        if count > MOST_SETTINGS:
            raise ValueError(f"{count} settings are more than a sweep tries ({MOST_SETTINGS}); give fewer values")
        self.settings()  # reports now which values do not go together

    def settings(self) -> list[Setting]:
        """Every setting once, in the order of the axes, the last of which changes fastest.

        Raises:
            ValueError: some values do not go together.
        """
        names = list(self.axes)
        found = (self.setting(dict(zip(names, each, strict=True))) for each in itertools.product(*self.axes.values()))
        return list(dict.fromkeys(found))

    def setting(self, chosen: Mapping[str, Value]) -> Setting:
        """The setting with these values. Equal ways of serving give equal settings.

        A batch that is full does not wait: where each request fills one, the delay has no effect and is set to 0. One
        model has no stages.
        """
        batching = chosen.get(BATCHING, "dynamic")
        changes: dict[str, Any] = {name: value for name, value in chosen.items() if name != BATCHING}
        if changes.get("layout") == "fused":
            changes |= {"acoustic": "", "stage": ()}
        left_open = tuple(name for name in self.base.left_open if name not in changes)
        options = replace(self.base, **changes, left_open=left_open)
        if batching == "static" or options.max_batch_size == 1:
            options = replace(options, queue_delay_ms=0.0, preferred_batch_sizes=())
        return Setting(options, batching)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The measurements of a setting, or the error because of which there are none."""

    setting: Setting
    measurements: Sequence[Measurement] = ()
    best: Measurement | None = None  # with the highest throughput among those that kept the limit
    error: str = ""

    @property
    def score(self) -> float:
        """The figure that settings are ranked by: utterances a second, or the number of streams."""
        if self.best is None:
            return 0.0
        return self.best.load if self.best.loop == "streaming" else self.best.throughput


def judge(setting: Setting, measurements: Sequence[Measurement], limit: Limit | None) -> Trial:
    """Find the best measurement of a setting; without a limit all that had no errors compete.

    Of a load that was measured again the last time counts, if it was stable or all times kept the limit: as for
    `ramp.largest_load`, so that luck does not win.
    """

    def is_kept(each: Measurement) -> bool:
        return not each.failed if limit is None else limit.breach(each) is None

    by_load: dict[float, list[Measurement]] = {}
    for each in measurements:
        by_load.setdefault(each.load, []).append(each)
    kept = [
        held[-1]
        for held in by_load.values()
        if held[-1].latency is not None and is_kept(held[-1]) and (held[-1].stable or all(map(is_kept, held)))
    ]
    best = max(kept, key=lambda each: each.load if each.loop == "streaming" else each.throughput, default=None)
    return Trial(setting=setting, measurements=measurements, best=best)


class SweepObserver(Protocol):
    """Is called while a sweep runs."""

    def trying(self, setting: Setting, index: int, total: int) -> None:
        """A setting is about to be built and measured; `index` counts from 1 to `total`."""

    def tried(self, trial: Trial) -> None:
        """A setting was measured, or failed."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The result of a sweep: its trials in their order. `complete`: whether it came to its end."""

    grid: Grid
    trials: Sequence[Trial]
    complete: bool = True

    @property
    def ranking(self) -> list[Trial]:
        """The trials that kept the limit, the best first."""
        return sorted((each for each in self.trials if each.best), key=lambda each: each.score, reverse=True)

    @property
    def winner(self) -> Trial | None:
        return self.ranking[0] if self.ranking else None

    def table(self, title: str) -> Table:
        """All trials, ranked; those without a rank last, with the reason."""
        axes = list(self.grid.axes)
        ranked = self.ranking
        rows: list[dict[str, Cell]] = []
        for place, trial in enumerate(ranked, 1):
            rows.append({"rank": place, **trial.setting.labels(axes), **_figures(trial.best)})
        for trial in self.trials:
            if trial.best is None:
                why = f"failed: {trial.error}" if trial.error else "nothing kept the limit"
                rows.append({**trial.setting.labels(axes), **dict.fromkeys(_figures(None)), "note": why})
        measured = [each for trial in self.trials for each in trial.measurements]
        streams = any(each.loop == "streaming" for each in measured)
        unit = unit_of(measured).replace("utterances", "utt") if measured else "utt"
        columns = [
            Column("rank", "#"),
            *(Column(short(name), short(name), align="right") for name in axes),
            Column("load", "streams" if streams else f"{unit} in flight", digits=0),
            Column("throughput", f"{unit}/s", digits=1),
            Column("rtfx", "RTFx", digits=1),
            Column("p50_ms", "p50 ms", digits=1),
            Column("p95_ms", "p95 ms", digits=1),
            Column("p99_ms", "p99 ms", digits=1),
            Column("wer", "WER", digits=2, unit="%", scale=100.0),
            Column("note", "note"),
        ]
        tones: dict[int, Tone] = {index: "bad" for index in range(len(ranked), len(rows))}
        return Table(title, columns, rows, tones=tones | ({0: "good"} if ranked else {})).without_empty()


def _figures(best: Measurement | None) -> dict[str, Cell]:
    if best is None:
        return {}
    latency = best.latency
    return {
        "load": in_flight(best),  # utterances: a request of static batching has many
        "throughput": best.throughput,
        "rtfx": best.rtfx if best.has_audio else None,
        "p50_ms": latency.p50_ms if latency else None,
        "p95_ms": latency.p95_ms if latency else None,
        "p99_ms": latency.p99_ms if latency else None,
        "wer": best.wer,
        "note": None if best.stable else "not stable",
    }


def run_sweep(
    grid: Grid,
    measure: Callable[[Setting], Sequence[Measurement]],
    limit: Limit | None,
    observer: SweepObserver,
    *,
    known: Sequence[Trial] = (),
) -> Sweep:
    """Try settings.

    Args:
        grid: what is tried.
        measure: builds, serves and measures one setting; a `TritoneError` of it is the trial's result.
        limit: what a measurement must keep to compete.
        observer: is called meanwhile.
        known: trials of an earlier run; their settings are not measured again, unless they failed.

    Returns:
        What was found. It is not complete after a `KeyboardInterrupt`, which drops the setting that was on trial.
    """
    done = {trial.setting: trial for trial in known if not trial.error}
    settings = grid.settings()
    trials: list[Trial] = []
    try:
        for index, setting in enumerate(settings, 1):
            if setting in done:
                trials.append(done[setting])
                continue
            observer.trying(setting, index, len(settings))
            try:
                labels = setting.labels(grid.axes)
                found = [replace(each, labels={**each.labels, **labels}) for each in measure(setting)]
                trial = judge(setting, found, limit)
            except TritoneError as error:
                trial = Trial(setting=setting, error=str(error))
            trials.append(trial)
            observer.tried(trial)
    except KeyboardInterrupt:
        return Sweep(grid=grid, trials=trials, complete=False)
    return Sweep(grid=grid, trials=trials)


def known_trials(report: Report | None, question: str, grid: Grid, limit: Limit | None) -> list[Trial]:
    """The trials of an earlier run.

    Args:
        report: what that run wrote; None if there was none.
        question: what is asked now, in words; see `sweep_report`.
        grid, limit: of this run. Settings that the grid does not have are left out.

    Raises:
        InputError: the report answers another question.
    """
    if report is None:
        return []
    if not report.notes or report.notes[0] != question:
        before = report.notes[0] if report.notes else "no sweep"
        raise InputError(
            f"the earlier report is of something else, so it cannot be gone on with. It is: {before}. This is: "
            f"{question}. Choose another output."
        )
    found = []
    for setting in grid.settings():
        labels = setting.labels(grid.axes)
        measurements = [each for each in report.measurements if labels.items() <= dict(each.labels).items()]
        if measurements:
            found.append(judge(setting, measurements, limit))
    return found


def sweep_report(sweep: Sweep, stamp: Stamp, title: str, question: str, command: str | None = None) -> Report:
    """Everything that was measured as a report; its first note is the question, the others are the answer.

    Args:
        command: that builds the winner; None if there is none.
    """
    names = list(sweep.grid.axes)
    notes = [question]
    if sweep.winner and sweep.winner.best:
        notes.append(f"best: {sweep.winner.setting.words(names)}: {command}")
    for trial in sweep.trials:
        if trial.error:
            notes.append(f"{trial.setting.words(names)} failed: {trial.error}")
        elif trial.best is None:
            notes.append(f"{trial.setting.words(names)}: nothing kept the limit")
    if not sweep.complete:
        notes.append(f"interrupted after {len(sweep.trials)} of {len(sweep.grid.settings())} settings")
    measurements = [each for trial in sweep.trials for each in trial.measurements]
    return Report(stamp=stamp, measurements=measurements, title=title, complete=sweep.complete, notes=notes)
