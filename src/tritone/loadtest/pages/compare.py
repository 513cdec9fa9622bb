"""Two load tests against each other: equal operating points in pairs, and what else differs.

    Report A, Report B  ->  Comparison  ->  tables, Markdown, page

Ratios are B over A: a throughput of 1.10 is 10 % more, a latency of 0.90 is 10 % less.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from tritone.loadtest.findings.result import Latency, Measurement, Report
from tritone.loadtest.findings.series import (
    LOADS,
    LOOPS,
    common,
    describe,
    is_clean,
    load_of,
    settings,
    unit_of,
    varying,
)
from tritone.report.page import render
from tritone.report.stamp import Stamp
from tritone.report.table import Cell, Column, Table, Tone

MACHINE = ("processor", "cores", "memory", "GPUs", "driver")  # where they differ, ratios say little of the software
EXPECTED = ("date", "load average before")  # differ between any two runs
EVEN = 0.05  # smaller changes of a ratio count as none; runs of one set-up differ by some percent
WER_RISE = 0.001  # absolute; a server that is that much worse has not won

Key = tuple[str, str, float, int, str, tuple[tuple[str, str], ...], str, str]


@dataclass(frozen=True)
class Pair:
    """The same operating point in both reports."""

    a: Measurement
    b: Measurement

    @property
    def throughput(self) -> float | None:
        """B's utterances per second as a multiple of A's; None where A has none."""
        return _ratio(self.a.throughput, self.b.throughput)

    def latency(self, percentile: str, of: Callable[[Measurement], Latency | None] | None = None) -> float | None:
        """B's latency as a multiple of A's, "p95" of all answers, or of those that `of` picks; None without both."""
        a, b = (each.latency if of is None else of(each) for each in (self.a, self.b))
        return (
            None if a is None or b is None else _ratio(getattr(a, f"{percentile}_ms"), getattr(b, f"{percentile}_ms"))
        )

    @property
    def wer_difference(self) -> float | None:
        """B's word error rate less A's; None without both."""
        return None if self.a.wer is None or self.b.wer is None else self.b.wer - self.a.wer

    @property
    def tone(self) -> Tone | None:
        """Warning: one of them is only indicative or had failures. Good, bad: B is better or worse by more than chance.

        Better is more throughput or less p95 with the other no worse, and texts that are as right as before. Streams
        are sent as fast as they are spoken, so the share of chunks in time takes the place of throughput.
        """
        if not (is_clean(self.a) and is_clean(self.b)):
            return "warn"
        if (self.wer_difference or 0.0) > WER_RISE:
            return "bad"
        work, p95 = self.throughput, self.latency("p95")
        if self.a.streaming and self.b.streaming:
            work = 1 + self.b.streaming.in_time - self.a.streaming.in_time
        if work is None or p95 is None:
            return None
        gains = [work - 1, 1 - p95]
        if max(gains) > EVEN and min(gains) >= -EVEN:
            return "good"
        return "bad" if min(gains) < -EVEN and max(gains) <= EVEN else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two reports compared. `conditions`: name, text in A, text in B of those that differ."""

    a: Report
    b: Report
    names: tuple[str, str] = ("A", "B")
    conditions: Sequence[tuple[str, str, str]]
    pairs: Sequence[Pair]
    only_a: Sequence[Measurement] = field(default=())
    only_b: Sequence[Measurement] = field(default=())

    @property
    def is_same_machine(self) -> bool:
        """Whether processor, cores, memory, GPUs and driver are equal."""
        return not any(name in MACHINE for name, _, _ in self.conditions)

    def notices(self) -> list[tuple[str, Tone]]:
        """Warnings about the ratios."""
        found: list[tuple[str, Tone]] = []
        if not self.is_same_machine:
            text = "Measured on different machines: the ratios say little about the software."
            found.append((text, "bad"))
        if not self.pairs:
            found.append((f"No operating point is in both: {self._why_no_pairs()}.", "bad"))
        if incomplete := [name for name, each in zip(self.names, (self.a, self.b), strict=True) if not each.complete]:
            found.append((f"Interrupted before its end: {' and '.join(incomplete)}.", "warn"))
        if shaky := sum(not (is_clean(pair.a) and is_clean(pair.b)) for pair in self.pairs):
            why = "requests failed or the figures did not settle"
            found.append((f"{shaky} of {len(self.pairs)} pairs are only indicative: {why}.", "warn"))
        return found

    def tables(self) -> list[Table]:
        """Conditions that differ, pairs by kind of load, and what only one of them measured."""
        a, b = self.names
        rows = [{"name": name, "a": in_a, "b": in_b} for name, in_a, in_b in self.conditions]
        tones: dict[int, Tone] = {index: "bad" for index, row in enumerate(rows) if row["name"] in MACHINE}
        columns = [Column("name", "condition"), Column("a", a), Column("b", b)]
        tables = [Table("Conditions that differ", columns, rows, tones=tones)] if rows else []
        for loops in (("closed",), ("constant", "poisson"), ("streaming",)):
            if held := [pair for pair in self.pairs if pair.a.loop in loops]:
                tables.append(self._table(held))
        for name, alone in ((a, self.only_a), (b, self.only_b)):
            if alone:
                tables.append(_alone(f"Only in {name}", alone))
        return tables

    def to_html(self) -> str:
        """All of it as one self-contained page."""
        return render(
            "tritone.loadtest.pages",
            "compare.html",
            title=self.title,
            names=self.names,
            stamps=(self.a.stamp, self.b.stamp),
            notices=self.notices(),
            tables=self.tables(),
        )

    @property
    def title(self) -> str:
        return f"{self.names[1]} against {self.names[0]}"

    def _table(self, pairs: Sequence[Pair]) -> Table:
        a, b = self.names
        measured = [pair.a for pair in pairs]
        names = [name for name in varying(measured) if name != "loop"]
        streaming = pairs[0].a.loop == "streaming"
        loads = " or ".join(dict.fromkeys(LOADS[pair.a.loop] for pair in pairs))
        kinds = STREAM_KINDS if streaming else {"": lambda each: each.latency}
        columns = [*(Column(f"set {name}", name) for name in names), Column("load", loads)]
        if not streaming:
            per_second = f"{unit_of(measured)}/s".replace("utterances", "utt")
            columns += [
                Column("a throughput", f"{a} {per_second}", 1),
                Column("b throughput", f"{b} {per_second}", 1),
                Column("throughput", "throughput", 2, "×"),
                Column("p50", "p50", 2, "×"),
            ]
        for kind in kinds:
            columns += [
                Column(f"a {kind}p95", f"{a} {kind}p95", 1, "ms", spare=1),
                Column(f"b {kind}p95", f"{b} {kind}p95", 1, "ms", spare=1),
                Column(f"{kind}p95", f"{kind}p95", 2, "×"),
                Column(f"{kind}p99", f"{kind}p99", 2, "×", spare=2),
            ]
        columns += [
            Column("a in time", f"{a} in time", 1, "%", scale=100),
            Column("b in time", f"{b} in time", 1, "%", scale=100),
            Column("a wer", f"{a} WER", 2, "%", scale=100, spare=1),
            Column("b wer", f"{b} WER", 2, "%", scale=100, spare=1),
            Column("wer", "WER change", 2, "points", scale=100),
            Column("errors", "errors"),
        ]
        title = f"{' and '.join(dict.fromkeys(LOOPS[pair.a.loop] for pair in pairs))}: {common(measured, 'loop')}"
        tones = {index: tone for index, pair in enumerate(pairs) if (tone := pair.tone)}
        rows = [_row(pair, kinds) for pair in pairs]
        note = f"Ratios (×) are {b} over {a}."
        return Table(title[:1].upper() + title[1:], columns, rows, note, tones).without_empty()

    def _why_no_pairs(self) -> str:
        reasons = []
        for name in ("model", "protocol", "loop", "audio", "input", "batch"):
            a, b = ({settings(each).get(name, "none") for each in report.measurements} for report in (self.a, self.b))
            if a and b and not a & b:
                reasons.append(f"{name} is {' or '.join(sorted(a))} in one, {' or '.join(sorted(b))} in the other")
        return "; ".join(reasons) or "loads or labels differ"


# How their columns begin, and which latency they show.
STREAM_KINDS: Mapping[str, Callable[[Measurement], Latency | None]] = {
    "first partial ": lambda each: each.streaming.first_partial if each.streaming else None,
    "chunk ": lambda each: each.streaming.chunk if each.streaming else None,
    "final ": lambda each: each.streaming.final if each.streaming else None,
}


def compare(a: Report, b: Report, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Pair what was measured alike: protocol, loop, load, batch size, audio and labels, the model, and its samples.

    Models may have another name in each report, and samples may travel otherwise; if the reports share no model, or no
    such way, that does not count and is a condition that differs. Of equal operating points, repeats for instance, the
    first pairs with the first.
    """
    models_a, models_b = ({each.model for each in report.measurements} for report in (a, b))
    same_names = bool(models_a & models_b)
    samples_a, samples_b = ({each.samples for each in report.measurements} for report in (a, b))
    same_samples = bool(samples_a & samples_b)
    groups_a, groups_b = (_grouped(report.measurements, same_names, same_samples) for report in (a, b))
    pairs, only_a, only_b = [], [], []
    for key in dict.fromkeys([*groups_a, *groups_b]):
        for in_a, in_b in zip_longest(groups_a.get(key, []), groups_b.get(key, [])):
            if in_a is None:
                only_b.append(in_b)
            elif in_b is None:
                only_a.append(in_a)
            else:
                pairs.append(Pair(in_a, in_b))
    conditions = list(_differences(a.stamp, b.stamp))
    if models_a and models_b and not same_names:
        conditions.append(("model", ", ".join(sorted(models_a)), ", ".join(sorted(models_b))))
    if samples_a and samples_b and not same_samples:
        conditions.append(("samples", ", ".join(sorted(samples_a)), ", ".join(sorted(samples_b))))
    return Comparison(a=a, b=b, names=names, conditions=conditions, pairs=pairs, only_a=only_a, only_b=only_b)


def _grouped(measurements: Sequence[Measurement], with_model: bool, with_samples: bool) -> dict[Key, list[Measurement]]:
    groups: dict[Key, list[Measurement]] = {}
    for each in measurements:
        labels = tuple(sorted(each.labels.items()))
        model = each.model if with_model else ""
        samples = each.samples if with_samples else ""
        key = (each.protocol, each.loop, each.load, each.batch_size, each.seconds, labels, model, samples)
        groups.setdefault(key, []).append(each)
    return groups


def _differences(a: Stamp, b: Stamp) -> list[tuple[str, str, str]]:
    """Conditions that differ and might matter, the machine first; versions one by one."""
    in_a, in_b = (dict(stamp.rows()) | dict(stamp.versions) for stamp in (a, b))
    for each in (in_a, in_b):
        each.pop("versions", None)
    names = [name for name in dict.fromkeys([*MACHINE, *in_a, *in_b]) if name not in EXPECTED]
    pairs = [(name, in_a.get(name, "-"), in_b.get(name, "-")) for name in names]
    return [each for each in pairs if each[1] != each[2]]


def _row(pair: Pair, kinds: Mapping[str, Callable[[Measurement], Latency | None]]) -> dict[str, Cell]:
    row: dict[str, Cell] = {f"set {name}": value for name, value in settings(pair.a).items()}
    row |= {"load": pair.a.load, "throughput": pair.throughput, "p50": pair.latency("p50"), "wer": pair.wer_difference}
    for kind, of in kinds.items():
        row |= {f"{kind}{percentile}": pair.latency(percentile, of) for percentile in ("p95", "p99")}
    failed = (pair.a.failed, pair.b.failed)
    row["errors"] = f"{failed[0]} / {failed[1]}" if any(failed) else None
    for name, each in (("a", pair.a), ("b", pair.b)):
        row |= {f"{name} throughput": each.throughput, f"{name} wer": each.wer}
        row[f"{name} in time"] = each.streaming.in_time if each.streaming else None
        for kind, of in kinds.items():
            latency = of(each)
            row[f"{name} {kind}p95"] = latency.p95_ms if latency else None
    return row


def _alone(title: str, measurements: Sequence[Measurement]) -> Table:
    columns = [
        Column("what", "settings"),
        Column("load", "load"),
        Column("throughput", f"{unit_of(measurements)}/s".replace("utterances", "utt"), 1),
        Column("p95", "p95", 1, "ms"),
    ]
    rows = [
        {
            "what": describe(settings(each)),
            "load": load_of(each.loop, each.load),
            "throughput": each.throughput,
            "p95": each.latency.p95_ms if each.latency else None,
        }
        for each in measurements
    ]
    return Table(title, columns, rows)


def _ratio(a: float, b: float) -> float | None:
    return b / a if a else None
