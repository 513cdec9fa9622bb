"""A load test as tables, Markdown, CSV and one page.

Report  ->  tables_of    ->  terminal, Markdown
        ->  html_report  ->  one self-contained page
        ->  write_report ->  a folder with all forms: report.json, .csv, .md, .html, plots/*.png
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tritone.errors import InputError
from tritone.loadtest.findings.result import REPORT, Measurement, Report
from tritone.loadtest.findings.series import (
    LOADS,
    LOOPS,
    OPEN_LOOPS,
    common,
    describe,
    is_clean,
    is_client_bound,
    is_number,
    load_of,
    operating_point,
    settings,
    unit_of,
    varying,
)
from tritone.loadtest.pages.plots import Plot, plots_of
from tritone.loadtest.pages.sizing import sizing_of
from tritone.report.page import render
from tritone.report.table import Cell, Column, Table, Tone, escape_markdown

MOST_PLACES = 6  # that a message is listed with

REQUESTS = [
    Column("requests", "requests", spare=4),
    Column("errors", "errors"),
    Column("throughput", "utt/s", 1),
    Column("rtfx", "RTFx", 1),
    Column("rtfx_per_gpu", "RTFx /GPU", 1, spare=4),
    Column("latency_p50_ms", "p50", 1, "ms", spare=1),
    Column("latency_p90_ms", "p90", 1, "ms", spare=4),
    Column("latency_p95_ms", "p95", 1, "ms"),
    Column("latency_p99_ms", "p99", 1, "ms", spare=2),
    Column("first_answer_p50_ms", "first p50", 1, "ms", spare=1),
    Column("first_answer_p95_ms", "first p95", 1, "ms"),
    Column("answers", "answers", 1, spare=2),
    Column("server_queue_ms", "queue", 1, "ms", spare=3),
    Column("server_compute_ms", "compute", 1, "ms", spare=3),
    Column("server_mean_batch", "batch", 1, spare=2),
    Column("server_padding_waste", "padding", 1, "%", scale=100, spare=4),
    Column("wer", "WER", 2, "%", scale=100),
    Column("least_cosine", "least cosine", 4, spare=3),
    Column("client_cpu", "client CPU", 0, "%", scale=100, spare=4),
    Column("stable", "stable"),
]
STREAMS = [
    *(
        Column(f"streaming_{kind}_{each}_ms", f"{title} {each}", 0, "ms", spare={"p50": 1, "p99": 3}.get(each, 0))
        for kind, title in (("first_partial", "first partial"), ("chunk", "chunk"), ("final", "final"))
        for each in ("p50", "p95", "p99")
    ),
    Column("streaming_in_time", "in time", 1, "%", scale=100),
    Column("streaming_held_back", "held back", 1, "%", scale=100, spare=4),
    Column("streaming_drift_ms", "drift", 1, "ms", spare=4),
    Column("rtfx", "RTFx", 1, spare=2),
    Column("server_mean_batch", "batch", 1, spare=4),
    Column("wer", "WER", 2, "%", scale=100),
    Column("errors", "errors"),
    Column("client_cpu", "client CPU", 0, "%", scale=100, spare=4),
    Column("stable", "stable"),
]


def tables_of(report: Report) -> list[Table]:
    """The measurements as tables, one per kind of load, then replicas for loads, errors and remarks if there are any.

    Settings that vary have a column, those that do not stand in the title. Rows with failures are bad, those that are
    only indicative a warning.
    """
    kinds: Sequence[tuple[Iterable[str], list[Column]]] = [(("closed",), REQUESTS), (OPEN_LOOPS, REQUESTS)]
    tables = []
    for loops, columns in [*kinds, (("streaming",), STREAMS)]:
        held = [each for each in report.measurements if each.loop in loops]
        if held:
            tables.append(_table(report, held, columns))
    return [*tables, *(each for each in (sizing_of(report), errors_of(report), remarks_of(report)) if each.rows)]


def errors_of(report: Report) -> Table:
    """Table of failures: each message with how often and where, the most frequent first; no rows if nothing did."""
    columns = [Column("text", "message"), Column("count", "times"), Column("where", "where")]
    rows = _occurrences(report, lambda each: each.errors)
    return Table("Failed requests", columns, sorted(rows, key=lambda row: -int(row["count"] or 0)))


def remarks_of(report: Report) -> Table:
    """Table of the remarks of measurements, and where each was made; no rows if there are none."""
    rows = _occurrences(report, lambda each: dict.fromkeys(each.notes, 1))
    return Table("Remarks", [Column("text", "remark"), Column("where", "where")], rows)


def _occurrences(report: Report, texts_of: Callable[[Measurement], Mapping[str, int]]) -> list[Mapping[str, Cell]]:
    """Texts that measurements carry with their counts: each once, with all the loads where it occurred."""
    found: dict[str, list[tuple[int, str]]] = {}
    names = [name for name in varying(report.measurements) if name != "loop"]
    for each in report.measurements:
        where = ", ".join(filter(None, [describe(settings(each), names), load_of(each.loop, each.load)]))
        for text, count in texts_of(each).items():
            found.setdefault(text, []).append((count, where))
    rows: list[Mapping[str, Cell]] = []
    for text, places in found.items():
        listed = [where if count == 1 else f"{where} ({count})" for count, where in places[:MOST_PLACES]]
        more = [f"and {len(places) - MOST_PLACES} more"] if len(places) > MOST_PLACES else []
        where = "everywhere" if len(places) == len(report.measurements) > 1 else "; ".join([*listed, *more])
        rows.append({"text": text, "count": sum(count for count, _ in places), "where": where})
    return rows


def flat(measurement: Measurement, report: Report) -> dict[str, Cell]:
    """Every figure of a measurement on one level, "latency_p95_ms", None where there is none; labels last."""
    server = measurement.server
    row = _flattened(Measurement, measurement)
    row["errors"] = measurement.failed
    row |= {
        "throughput": measurement.throughput,
        "rtfx": measurement.rtfx if measurement.has_audio else None,
        "rtf": measurement.rtf if measurement.audio_s else None,
        "rtfx_per_gpu": report.rtfx_per_gpu(measurement),
    }
    compute = [row[f"server_compute_{part}_ms"] for part in ("input", "infer", "output")]
    row |= {
        "server_compute_ms": sum(float(each or 0) for each in compute) if server else None,
        "server_mean_batch": server.mean_batch if server and server.batches else None,
        "server_padding_waste": server.padding_waste if server else None,
    }
    row["error_messages"] = json.dumps(dict(measurement.errors), ensure_ascii=False) if measurement.errors else None
    return row | {f"label_{name}": value for name, value in measurement.labels.items()}


def to_csv(report: Report) -> str:
    """One row per measurement with every figure and, because rows get parted from their file, the conditions."""
    stamp = report.stamp
    conditions: dict[str, Cell] = {
        "date": stamp.date,
        "commit": stamp.commit,
        "server": stamp.server,
        "processor": stamp.processor,
        "cores": stamp.cores,
        "gpus": "; ".join(stamp.gpus),
        "versions": ", ".join(f"{name} {number}" for name, number in stamp.versions.items()),
    }
    rows = [conditions | flat(each, report) for each in report.measurements]
    names = dict.fromkeys(name for row in [conditions, *rows] for name in row)
    return Table("", [Column(name, name) for name in names], rows).to_csv()


def to_markdown(report: Report, plots: Sequence[Plot] = ()) -> str:
    """Tables and conditions for a page of documentation; the plots are expected in `plots/` beside it."""
    parts = [f"# {escape_markdown(report.title)}", *(f"> {escape_markdown(text)}" for text, _ in notices_of(report))]
    parts += [table.to_markdown().rstrip("\n") for table in tables_of(report)]
    parts += [f"![{escape_markdown(plot.title)}](plots/{plot.name}.png)" for plot in plots]
    if report.notes:
        parts.append("\n".join(f"* {escape_markdown(note)}" for note in report.notes))
    columns = [Column("name", "condition"), Column("text", "")]
    rows = [{"name": name, "text": text} for name, text in report.stamp.rows()]
    parts.append(Table("Conditions", columns, rows).to_markdown().rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def notices_of(report: Report) -> list[tuple[str, Tone]]:
    """Warnings about the figures, the worst first."""
    held = report.measurements
    found: list[tuple[str, Tone]] = []
    if not report.complete:
        found.append(("The run was interrupted: this report is not complete.", "bad"))
    if not held:
        found.append(("Nothing was measured.", "bad"))
    failed, requests = sum(each.failed for each in held), sum(each.requests for each in held)
    if failed:
        found.append((f"{failed} of {requests} requests failed; throughput counts those that did not.", "bad"))
    if unstable := sum(not each.stable for each in held):
        found.append((f"{_of(unstable, held)} did not settle; the figures are only indicative.", "warn"))
    if bound := sum(is_client_bound(each) for each in held):
        found.append((f"In {_of(bound, held)} the load generator was busy all the time and measured itself.", "warn"))
    if late := sum(each.has_drifted for each in held):
        found.append((f"In {_of(late, held)} the load generator sent chunks late and measured itself.", "warn"))
    if other := sum(each.different_texts for each in held):
        found.append((f"{other} recordings did not get the same text every time.", "warn"))
    if other := sum(each.different_embeddings for each in held):
        found.append((f"{other} recordings did not get the same embedding every time.", "warn"))
    if (texts := [each for each in held if each.has_texts]) and all(each.wer is None for each in texts):
        found.append(("No references were given, so the texts were not checked.", "warn"))
    return found


def cards_of(report: Report) -> list[tuple[str, str, str]]:
    """The few figures that a summary names: label, value, where it was reached. Only clean measurements count."""
    names = varying(report.measurements)
    clean = [each for each in report.measurements if is_clean(each) and each.latency]
    offline = [each for each in clean if each.loop != "streaming"]

    cards = []
    if offline:
        if any(each.has_audio for each in offline):
            fastest = max(offline, key=lambda each: each.rtfx)
            what = f"seconds of audio per second, {fastest.throughput:.1f} utterances/s"
            cards.append(("highest RTFx", f"{fastest.rtfx:.1f}", f"{what}; {operating_point(fastest, names)}"))
        else:
            fastest = max(offline, key=lambda each: each.throughput)
            value = f"{fastest.throughput:.1f}"
            cards.append((f"most {unit_of([fastest])} per second", value, operating_point(fastest, names)))
        if (per_gpu := report.rtfx_per_gpu(fastest)) is not None and len(report.stamp.gpus) > 1:
            cards.append(("RTFx per GPU", f"{per_gpu:.1f}", f"{len(report.stamp.gpus)} GPUs"))
        quickest = min(offline, key=_p95)
        cards.append(("lowest p95 latency", f"{_p95(quickest):.1f} ms", operating_point(quickest, names)))
    if in_time := [each for each in clean if each.streaming and each.streaming.in_time >= 0.99]:
        most = max(in_time, key=lambda each: each.load)
        cards.append(("most streams", f"{most.load:g}", "with at least 99 % of the chunks answered in time"))
    if rates := [each.wer for each in report.measurements if each.wer is not None]:
        low, high = f"{100 * min(rates):.2f}", f"{100 * max(rates):.2f}"
        words = sum(each.wer_words for each in report.measurements)
        value = f"{low} %" if low == high else f"{low} to {high} %"
        cards.append(("word error rate", value, f"of the very texts that were timed, {words} words"))
    if cosines := [each.least_cosine for each in report.measurements if each.least_cosine is not None]:
        cards.append(("least cosine", f"{min(cosines):.4f}", "of two embeddings of one recording that were timed"))
    return cards


def html_report(report: Report, plots: Sequence[Plot] | None = None) -> str:
    """One page with everything; `plots` saves drawing them again."""
    return render(
        "tritone.loadtest.pages",
        "report.html",
        title=report.title,
        subtitle=common(report.measurements) if report.measurements else "",
        stamp=report.stamp,
        notices=notices_of(report),
        cards=cards_of(report),
        plots=plots_of(report) if plots is None else plots,
        tables=tables_of(report),
        has_audio=not report.measurements or any(each.has_audio for each in report.measurements),
        notes=report.notes,
        json=json.dumps(report.to_dict(), indent=1).encode(),
        csv=to_csv(report).encode("utf-8", "replace"),
    )


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write every form into a folder, which is made if need be: report.json, .csv, .md, .html and plots/*.png.

    The raw figures come first, so that they are there if anything later fails. Earlier files of these names are
    replaced.

    Raises:
        InputError: the folder cannot be written.
    """
    written = [folder / REPORT]

    def write(name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)
        written.append(folder / name)

    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        report.save(written[0])
        write("report.csv", _encoded(to_csv(report)))
        plots = plots_of(report)
        for plot in plots:
            write(f"plots/{plot.name}.png", plot.png)
        write("report.md", _encoded(to_markdown(report, plots)))
        write("report.html", _encoded(html_report(report, plots)))
    except OSError as error:
        raise InputError(f"cannot write the report to {folder}: {error.strerror}; name another folder") from error
    return written


def _table(report: Report, measurements: Sequence[Measurement], columns: Iterable[Column]) -> Table:
    """One row per measurement: settings that vary, load, then `columns`, as far as there is something in them."""
    names = [name for name in varying(measurements) if name != "loop"]
    all_settings = [settings(each) for each in measurements]
    rows = [
        flat(each, report) | {f"set {name}": value for name, value in held.items()}
        for each, held in zip(measurements, all_settings, strict=True)
    ]
    loops = dict.fromkeys(each.loop for each in measurements)
    per_second = f"{unit_of(measurements)}/s".replace("utterances", "utt")
    title = [" and ".join(LOOPS[loop] for loop in loops), common(measurements, leave_out="loop")]
    found = [
        *(_setting(name, [held.get(name) for held in all_settings]) for name in names),
        Column("load", " or ".join(dict.fromkeys(LOADS[loop] for loop in loops))),
        *(
            _fitted(replace(column, title=per_second) if column.key == "throughput" else column, rows)
            for column in columns
        ),
    ]
    return Table(_capital(": ".join(filter(None, title))), found, rows, tones=_tones(measurements)).without_empty()


def _setting(name: str, values: Sequence[str | None]) -> Column:
    numbers = all(is_number(value) for value in values if value is not None)
    unit = "s" if numbers and name == "audio" else ""
    return Column(f"set {name}", name, unit=unit, align="right" if numbers else "left")


def _fitted(column: Column, rows: Iterable[Mapping[str, Cell]]) -> Column:
    """A column whose values go beyond 1000 shows no digits after the point; a fifth one means nothing."""
    values = [value for row in rows if isinstance(value := row.get(column.key), float)]
    return replace(column, digits=0) if column.digits and max(values, default=0.0) * column.scale >= 1000 else column


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tones(measurements: Sequence[Measurement]) -> dict[int, Tone]:
    tones: dict[int, Tone] = {}
    for index, each in enumerate(measurements):
        if each.failed:
            tones[index] = "bad"
        elif not each.stable or each.has_drifted or is_client_bound(each):
            tones[index] = "warn"
    return tones


def _flattened(kind: type, held: Any, prefix: str = "") -> dict[str, Cell]:
    """The fields of a dataclass and of those in it, None where there is none; counts by size as "1:10 4:20"."""
    row: dict[str, Cell] = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        name, value = prefix + each.name, getattr(held, each.name, None)
        choices = [hint for hint in (hints[each.name], *get_args(hints[each.name])) if isinstance(hint, type)]
        within = [choice for choice in choices if is_dataclass(choice)]
        if within:
            row |= _flattened(within[0], value, f"{name}_")
        elif each.name == "batches":
            row[name] = " ".join(f"{size}:{count}" for size, count in sorted((value or {}).items())) or None
        elif isinstance(value, Mapping):
            continue  # errors and labels have columns of their own
        else:
            row[name] = (" ".join(value) or None) if isinstance(value, (list, tuple)) else value
    return row


def _of(count: int, measurements: Sequence[Measurement]) -> str:
    return f"{count} of {len(measurements)} measurements"


def _p95(measurement: Measurement) -> float:
    assert measurement.latency is not None
    return measurement.latency.p95_ms


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
