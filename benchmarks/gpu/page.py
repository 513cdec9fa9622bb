"""The pages of docs/performance/h200, from the JSON that a run kept.

python -m benchmarks.gpu.page [--results FOLDER]

FOLDER/ctc.json, ...  ->  FOLDER/report.md, a page for each part, plots
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.__main__ import OUTPUT
from benchmarks.gpu.audio import LIBRISPEECH
from benchmarks.gpu.found import Found, Row, search_words, title_of
from benchmarks.gpu.plan import IN_TIME, PARTS, WIRES
from benchmarks.gpu.published_pages import published_jasper, published_streams, published_wenet
from benchmarks.speaker import UPSTREAM
from tritone.loadtest.plans.build_options import in_words, text_of
from tritone.report.plots import COLOURS, MARKERS, label_axes, legend, new_figure, png
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table

CHUNK_BAR_MS = 150.0
STEP_BAR_MS = 12.0
DETAILS = {False: "text alone", True: "words and times"}
IN_FLIGHT = 512  # requests, at most, of figures that ask for it
PAGES = {"ctc": "wenet"}  # of parts whose names differ
CALLERS = {1: "one batch after the other", 2: "two batches at once"}
WAYS = [(callers, wire) for callers in CALLERS for wire in WIRES]

WENET = """
WeNet's own figures, one T4, fp16, AISHELL-2's U2++ (for the layout; another GPU): 5 s of audio 228 utterances a second
at 150 to 200 in flight (p50 657 to 876 ms), 10 s 110 a second; 100 streams with rescoring answer in 172 ms on average,
with CTC alone in 124 ms."""
NVIDIA = """
NVIDIA's figures, one T4, fp16, best concurrency, inferences a second of TensorRT, TorchScript, ONNX Runtime: 2 s batch
1 50, 56, 42, batch 8 285, 203, 136; 7 s batch 1 48, 37, 18, batch 8 117, 83, 40; 16.7 s batch 1 36, 22, 11, batch 8
48, 40, 19."""

SHERPA = """
sherpa's document names this table, a transducer of 80 M parameters in float32 at 5, 8 and 10 s on one T4, and has no
figures in it. The icefall conformer of 12 x 512 has about that size."""


def write_pages(folder: Path) -> list[Path]:
    """Write the pages of the JSON in a folder, beside it."""
    content = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    found = Found(content)
    written: list[Path] = []
    makers: dict[str, tuple[str, Callable[[Found, Path], str]]] = {
        "report": ("", _summary_page),
        "wenet": ("ctc", _page_of("ctc", WENET)),
        "mixed": ("mixed", _page_of("mixed")),
        "searches": ("searches", _page_of("searches", WENET, plotted=False)),
        "large": ("large", _page_of("large")),
        "icefall": ("icefall", _page_of("icefall")),
        "streams": ("streams", _streams_page),
        "speakers": ("speakers", _page_of("speakers", UPSTREAM)),
        "jasper": ("jasper", _jasper_page),
        "published-transducers": ("published-transducers", _page_of("published-transducers", SHERPA)),
        "published-wenet": ("published-wenet", published_wenet),
        "published-streams": ("published-streams", published_streams),
        "published-jasper": ("published-jasper", published_jasper),
    }
    for name, (part, make) in makers.items():
        if part and not content.get(part, {}).get("rows"):
            continue
        path = folder / f"{name}.md"
        parts = [part] if part else list(content)
        text = "\n\n".join([make(found, folder).strip(), *endings(found, parts, summary=not part)])
        path.write_text(text + "\n", encoding="utf-8")
        written.append(path)
    return written


def endings(found: Found, parts: Iterable[str], *, summary: bool) -> list[str]:
    """What every page ends with: what was left out, remarks of the load test, and the conditions."""
    notes = [note for part in parts for note in found.content.get(part, {}).get("notes", [])]
    lines = [f"* {_one_line(note)}" for note in dict.fromkeys(notes)]
    told = ["## Notes", "\n".join(lines)] if notes else []
    stamps = {json.dumps(found.content[part]["stamp"], sort_keys=True): part for part in parts if part in found.content}
    lines = []
    for text in stamps:
        stamp = Stamp(**json.loads(text))
        lines.append(f"`{stamp.command}`, {stamp.summary()}")
    raw = "Raw figures: " + ", ".join(f"[{part}.json]({part}.json)" for part in parts if part in found.content) + "."
    return [*told, "## Conditions", *lines, raw] if not summary or lines else told


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) < 500 else f"{words[:140]} … {words[-140:]}"


# --- The summary ----------------------------------------------------------------------------------------------------


def _summary_page(found: Found, folder: Path) -> str:
    rows = [_line(*goal) for goal in _goals(found)]
    columns = [
        Column("work", "work"),
        Column("reach", "reach", align="right"),
        Column("measured", "measured", align="right"),
        Column("absolute", "absolute", align="right"),
        Column("verdict", "", align="left"),
    ]
    parts = [
        "# Speed and accuracy on a GPU",
        "Ratios are to the compiled network alone on the same machine, in the same run but where a page says so: "
        "the bundle's own torch program through torch's compiler with static shapes, replayed as a CUDA graph, with "
        "audio on the device. Random weights of published sizes, whose texts are about as long as people's but where "
        "a page says so; different audio in every request. Served means through Triton and gRPC, with the load test "
        "on the same machine.",
        Table("What was asked for, and what was measured", columns, rows).to_markdown(),
    ]
    parts.append(_accuracy(found))
    parts.append(_endurance(found))
    links = [f"[{PAGES.get(part, part)}]({PAGES.get(part, part)}.md)" for part in PARTS if part in found.content]
    parts.append("Pages of the parts: " + ", ".join(links) + ".")
    return "\n\n".join(part for part in parts if part)


Goal = tuple[str, str, float | None, str, bool | None]


def _line(work: str, reach: str, measured: float | None, absolute: str, met: bool | None) -> dict[str, Any]:
    verdict = "not measured" if met is None else "met" if met else "not met"
    return {
        "work": work,
        "reach": reach,
        "measured": "–" if measured is None else f"{measured:,.0f}" if measured >= 1000 else f"{measured:.3g}",
        "absolute": absolute or "–",
        "verdict": verdict,
    }


def _goals(found: Found) -> list[Goal]:
    """The lines of the table of goals: work, bar, measured figure, absolutes, whether the bar is met."""
    goals: list[Goal] = []

    def ratio(work: str, bar: float, part: str, audio: str, of: str, search: str = "", most: float = math.inf) -> None:
        row = found.best(part, "utterances_s", most, of=of, audio=audio, search=search)
        network = found.network_of(part, row) if row else 0.0
        if row is None or not network:
            goals.append((work, f"≥ {bar:g}", None, "", None))
            return
        value = row["utterances_s"] / network
        told = f"{row['utterances_s']:,.0f} utt/s, {row['rtfx']:,.0f} RTFx, {_where(row)}"
        goals.append((work, f"≥ {bar:g}", value, told, value >= bar))

    ratio("CTC d=512, 10 s, served ÷ compiled", 0.85, "ctc", "10", "wenet-512", most=IN_FLIGHT)
    mixed = "CTC d=512, mixed lengths, unsorted, per second of audio"
    ratio(mixed, 0.75, "mixed", LIBRISPEECH, "wenet-512", most=IN_FLIGHT)
    ratio(f"{mixed}, any number in flight", 0.75, "mixed", LIBRISPEECH, "wenet-512")
    plain, bundle = found.ceiling("ctc", "", 10.0), found.ceiling("ctc", "wenet-512", 10.0)
    told = f"{bundle:,.0f} and {plain:,.0f} utt/s"
    known = bool(plain and bundle)
    goals.append(
        (
            "bundle's graph ÷ plain compiled conformer of the same size without features",
            "≥ 1.0",
            bundle / plain if known else None,
            told if known else "",
            bundle >= plain if known else None,
        )
    )
    row = found.best("large", "rtfx", of="zipformer-xl", audio=LIBRISPEECH)
    told = _where(row) if row else ""
    goals.append(
        (
            "290 M zipformer, mixed lengths, unsorted (RTFx)",
            "≥ 18100",
            round(row["rtfx"]) if row else None,
            told,
            row["rtfx"] >= 18_100 if row else None,
        )
    )
    ratio("rescoring (÷ encoder and decoder, compiled)", 0.75, "searches", "10", "wenet-512", "rescoring")
    for model, title in (
        ("conformer-l", "icefall conformer"),
        ("zipformer-l", "zipformer-L"),
        ("zipformer-m", "zipformer-M"),
    ):
        ratio(f"transducer greedy, {title}", 0.75, "icefall", "10", model)
        ratio(f"transducer modified beam 4, {title}", 0.55, "icefall", "10", model, "modified-beam")
    ratio("prefix beam 10", 0.55, "searches", "10", "wenet-512", "prefix-beam")
    goals += [_stream_goal(found, 5000, CHUNK_BAR_MS), _stream_goal(found, 10_000, None)]
    steps = [each for each in found.rows("streams", "in process", model="wenet-256") if not each.get("details", True)]
    step_ms = steps[-1]["step_ms"] if steps else None
    work = "a step of 256 streams d=256 in process, text alone (ms)"
    goals.append((work, f"≤ {STEP_BAR_MS:g}", step_ms, "", None if step_ms is None else step_ms <= STEP_BAR_MS))
    for precision in ("fp32", "bf16"):
        row = found.best("speakers", "utterances_s", of="resnet34", precision=precision)
        network = found.network_of("speakers", row) if row else 0.0
        value = row["utterances_s"] / network if row and network else None
        told = f"{row['utterances_s']:,.0f} utt/s, {_where(row)}" if row else ""
        met = None if value is None else value >= 0.8
        goals.append((f"ResNet34 2.02 s, {precision}, served ÷ compiled", "≥ 0.8", value, told, met))
    for callers, wire in WAYS:
        ratios = [each["ratio"] for each in _jasper_rows(found, callers, wire) if each.get("ratio")]
        least = min(ratios, default=None)
        told = f"{len(ratios)} points, the largest {max(ratios):.2f}" if ratios else ""
        work = f"Jasper 10x5, bf16, in process ÷ compiled, {CALLERS[callers]}, {wire} audio, the least of all points"
        goals.append((work, "≥ 0.9", least, told, least and least >= 0.9))
    idle = found.rows("ctc", "served", of="wenet-512", load=1, search="")
    single = found.rows("ctc", "ceiling", model="wenet-512", rows=1, role="encoder")
    for row in idle if single else ():
        bar_ms, p50_ms = 1.5 * single[0]["ms"] + 3, row["p50_ms"]
        work = f"one request of 10 s, idle server, {_settings(row)}, p50 (ms)"
        goals.append((work, f"≤ {bar_ms:.1f}", p50_ms, f"network {single[0]['ms']:.1f} ms", p50_ms <= bar_ms))
    pair = {row["gpus"]: row for row in found.rows("two", "served")}
    value = pair[2]["utterances_s"] / pair[1]["utterances_s"] if {1, 2} <= set(pair) else None
    goals.append(("two GPUs ÷ one, one command, d=512", "≥ 1.9", value, "", None if value is None else value >= 1.9))
    return [(*goal[:4], None if goal[4] is None else bool(goal[4])) for goal in goals]


def _where(row: Row) -> str:
    return ", ".join([f"{row['load']:.0f} in flight", *(["with MPS"] if row.get("mps") else []), *_options(row)])


def _options(row: Row) -> list[str]:
    """The options of `tritone build` that a load names, in words."""
    return [in_words(name, text_of(value)) for name, value in (row.get("build") or {}).items()]


def _stream_goal(found: Found, streams: int, bar_ms: float | None) -> Goal:
    rows = [row for row in found.rows("streams", "served", of="wenet-256", streams=streams) if not row.get("mps")]
    reach = f"chunk p95 ≤ {bar_ms:g} ms" if bar_ms else f"{IN_TIME:.0%} in time"
    work = f"{streams:,} streams d=256, chunks of 640 ms"
    if not rows or rows[-1].get("chunk_p95_ms") is None:
        return work, reach, None, "", None
    row = rows[-1]
    told = f"p95 {row['chunk_p95_ms']:.0f} ms, {row['in_time']:.2%} in time"
    if bar_ms:
        return work, reach, row["chunk_p95_ms"], told, row["chunk_p95_ms"] <= bar_ms and not row["errors"]
    return work, reach, row["in_time"], told, row["in_time"] >= IN_TIME and not row["errors"]


def _accuracy(found: Found) -> str:
    texts = found.rows("accuracy", "texts")
    vectors = found.rows("accuracy", "embeddings")
    parts = []
    if texts:
        columns = [
            Column("way", "computed by"),
            Column("utterances", "utterances", digits=0),
            Column("differ_from_cpu", "texts that differ from float32 on the CPU", digits=0),
            Column("differ_from_alone", "from the same alone", digits=0),
            Column("wer", "WER of the shipped clips", digits=2, unit="%", scale=100.0),
        ]
        parts.append(Table("Accuracy: the demo recogniser, trained", columns, texts).to_markdown())
    if vectors:
        columns = [
            Column("model", "model"),
            Column("way", "computed by"),
            Column("utterances", "utterances", digits=0),
            Column("least_cosine", "least cosine to float32 on the CPU", digits=6),
            Column("least_cosine_alone", "to the same alone", digits=6),
        ]
        parts.append(Table("Accuracy: embeddings, random weights", columns, vectors).to_markdown())
    return "\n\n".join(parts)


def _endurance(found: Found) -> str:
    looks, kills = found.rows("endurance", "memory"), found.rows("endurance", "kill")
    lines = []
    if looks:
        first, last = looks[0], looks[-1]
        lines += [
            "### Memory and the death of an instance",
            "",
            f"After {last['requests']:,} requests of about a second at 256 in flight, the processes' own memory is "
            f"{last['own_mib']:,.0f} MiB ({first['own_mib']:,.0f} after the warm-up), that of the device "
            f"{_listed(last['device_mib'])} MiB ({_listed(first['device_mib'])}).",
        ]
    for row in kills:
        way = ", with MPS" if row.get("mps") else ""
        lines += [
            "",
            f"One of {row['instances']} instances killed under load{way}: {row['answered_after']:,} requests "
            f"answered afterwards, {row['failed_after']:,} failed, the longest time without an answer "
            f"{row['longest_silence_s']:.2f} s, {row['instances_after']} instances at the end.",
        ]
    return "\n".join(lines)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values) or "–"


# --- The parts ------------------------------------------------------------------------------------------------------


def ceilings_table(found: Found, part: str) -> str:
    rows = [
        {
            **row,
            "title": title_of(row["model"]),
            "graph": {"encoder": "network", "decoder": "decoder, 10 hypotheses"}.get(row["role"], "step"),
            "length": row["seconds"] or None,
        }
        for row in found.rows(part, "ceiling")
    ]
    columns = [
        Column("title", "model"),
        Column("graph", "graph"),
        Column("precision", "precision"),
        Column("rows", "rows", digits=0),
        Column("length", "audio (s)", digits=2),
        Column("ms", "ms a call", digits=2),
        Column("utterances_s", "utt/s", digits=0),
        Column("rtfx", "RTFx", digits=0),
        Column("real_time", "streams in real time", digits=0),
    ]
    return Table("The compiled network alone", columns, rows).without_empty().to_markdown() if rows else ""


def pipelines_table(found: Found, part: str) -> str:
    rows = []
    for row in found.rows(part, "in process"):
        made = dict(row) | {"title": title_of(row["model"]), "search": search_words(row["search"])}
        if "streams" in row:
            made["answers"] = DETAILS[row.get("details", True)]
        if "seconds" in row:
            network = found.ceiling(part, row["model"], row["seconds"], row["precision"])
            made["ratio"] = row["utterances_s"] / network if network else None
        rows.append(made)
    columns = [
        Column("title", "model"),
        Column("precision", "precision"),
        Column("search", "search"),
        Column("rows", "batch", digits=0),
        Column("seconds", "audio (s)", digits=2),
        Column("callers", "callers", digits=0),
        Column("words", "words in a text", digits=0),
        Column("utterances_s", "utt/s", digits=0),
        Column("rtfx", "RTFx", digits=0),
        Column("batch_ms", "ms a batch", digits=1),
        Column("network_ms", "of it network", digits=1),
        Column("search_ms", "and search", digits=1),
        Column("streams", "streams", digits=0),
        Column("answers", "answers"),
        Column("wire", "audio"),
        Column("step_ms", "ms a step", digits=1),
        Column("real_time", "streams in real time", digits=0),
        Column("ratio", "÷ compiled network", digits=3),
    ]
    return Table("The pipeline in process", columns, rows).without_empty().to_markdown() if rows else ""


def loads_table(found: Found, part: str) -> str:
    rows = []
    for row in found.rows(part, "served"):
        network = found.network_of(part, row)
        rows.append(
            dict(row)
            | {
                "title": title_of(row["of"]),
                "search": search_words(row["search"]),
                "failed": sum(row["errors"].values()),
                "ratio": row["utterances_s"] / network if network else None,
                "settings": _settings(row),
            }
        )
    columns = [
        Column("title", "model"),
        Column("precision", "precision"),
        Column("search", "search"),
        Column("settings", "settings"),
        Column("audio", "audio (s)", align="right"),
        Column("utterances", "utterances in a request", digits=0),
        Column("load", "requests in flight", digits=0),
        Column("requests", "requests", digits=0),
        Column("failed", "errors", digits=0),
        Column("utterances_s", "utt/s", digits=0),
        Column("rtfx", "RTFx", digits=0),
        Column("mean_ms", "avg (ms)", digits=1),
        Column("p50_ms", "p50 (ms)", digits=1),
        Column("p95_ms", "p95 (ms)", digits=1),
        Column("p99_ms", "p99 (ms)", digits=1),
        Column("batch", "batch", digits=1),
        Column("padding", "padding", digits=1, unit="%", scale=100.0),
        Column("generator_cores", "generator (cores)", digits=2),
        Column("ratio", "÷ compiled network", digits=3),
        Column("run", "run"),  # where rows of several are shown together
    ]
    return Table("Served", columns, rows).without_empty().to_markdown() if rows else ""


def _settings(row: Row) -> str:
    return ", ".join([*(_options(row) or ["as usual"]), *(["MPS"] if row.get("mps") else [])])


def _page_of(part: str, remarks: str = "", *, plotted: bool = True) -> Callable[[Found, Path], str]:
    """The function that makes a part's page: its tables, a plot, and remarks."""

    def page(found: Found, folder: Path) -> str:
        tables = [ceilings_table(found, part), pipelines_table(found, part), loads_table(found, part)]
        plot = _plotted(found, part, folder) if plotted else ""
        return "\n\n".join(each.strip() for each in (f"# {PARTS[part].title}", *tables, plot, remarks) if each)

    return page


def _plotted(found: Found, part: str, folder: Path) -> str:
    """A plot of latency and throughput, and its place in the page; empty without two loads."""
    lines: dict[str, list[Row]] = {}
    for row in found.rows(part, "served"):
        if row["p50_ms"] and not row.get("streams"):
            words = f"{title_of(row['of'])} {row['precision']}, {search_words(row['search'])}, {row['audio']} s"
            lines.setdefault(words, []).append(row)
    if not lines:
        return ""
    subtitle = "one point for each number in flight; a line for the same settings"
    figure, (axes,) = new_figure("Throughput against latency", subtitle=subtitle)
    for index, (words, rows) in enumerate(lines.items()):
        same: dict[str, list[Row]] = {}
        for row in rows:
            same.setdefault(f"{_settings(row)}, {row.get('run')}", []).append(row)
        for number, alike in enumerate(same.values()):
            alike.sort(key=lambda row: float(row["load"]))
            axes.plot(
                [row["p50_ms"] for row in alike],
                [row["rtfx"] for row in alike],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                label=words if number == 0 else None,
            )
        best = max(rows, key=lambda row: float(row["rtfx"]))
        for row in (best, *same[f"{_settings(rows[0])}, {rows[0].get('run')}"]):  # all of them would hide each other
            point = (row["p50_ms"], row["rtfx"])
            axes.annotate(f"{row['load']:.0f}", point, xytext=(4, 4), textcoords="offset points")
    label_axes(axes, "p50 of a request (ms)", "seconds of audio a second")
    axes.set_ylim(bottom=0)
    legend(axes)
    (folder / f"{part}.png").write_bytes(png(figure))
    return f"![Throughput against latency]({part}.png)"


def _streams_page(found: Found, folder: Path) -> str:
    rows = [
        dict(row) | {"title": title_of(row["of"]), "failed": sum(row["errors"].values()), "settings": _settings(row)}
        for row in found.rows("streams", "served")
    ]
    columns = [
        Column("title", "model"),
        Column("settings", "settings"),
        Column("streams", "streams", digits=0),
        Column("chunk_p50_ms", "chunk p50 (ms)", digits=0),
        Column("chunk_p95_ms", "chunk p95 (ms)", digits=0),
        Column("chunk_p99_ms", "chunk p99 (ms)", digits=0),
        Column("first_p95_ms", "first partial p95 (ms)", digits=0),
        Column("final_p95_ms", "final p95 (ms)", digits=0),
        Column("in_time", "in time", digits=2, unit="%", scale=100.0),
        Column("held_back", "held back", digits=2, unit="%", scale=100.0),
        Column("drift_ms", "generator's drift (ms)", digits=1),
        Column("batch", "batch", digits=1),
        Column("rtfx", "RTFx", digits=0),
        Column("failed", "errors", digits=0),
        Column("generator_cores", "generator (cores)", digits=2),
    ]
    served = Table("Served, chunks of 640 ms in real time", columns, rows).without_empty().to_markdown() if rows else ""
    parts = [
        f"# {PARTS['streams'].title}",
        ceilings_table(found, "streams"),
        pipelines_table(found, "streams"),
        served,
        WENET,
    ]
    return "\n\n".join(each.strip() for each in parts if each)


def _jasper_rows(found: Found, callers: int, wire: str) -> list[dict[str, Any]]:
    rows = []
    for row in found.rows("jasper", "in process", callers=callers, wire=wire):
        bare = found.rows("jasper", "ceiling", rows=row["rows"], seconds=row["seconds"])
        made = dict(row) | {"throughput": row["utterances_s"]}
        if bare:
            made |= {
                "bare_ms": bare[0]["ms"],
                "bare_alone_ms": bare[0]["alone_ms"],
                "bare": bare[0]["utterances_s"],
                "ratio": row["utterances_s"] / bare[0]["utterances_s"],
            }
        rows.append(made)
    return rows


def _jasper_page(found: Found, folder: Path) -> str:
    rows = [row for callers, wire in WAYS for row in _jasper_rows(found, callers, wire)]
    columns = [
        Column("seconds", "Audio length in seconds", digits=1),
        Column("rows", "Batch size", digits=0),
        Column("callers", "batches at once", digits=0),
        Column("wire", "audio"),
        Column("throughput", "pipeline bf16", digits=2, unit="inf/s"),
        Column("bare", "compiled network bf16", digits=2, unit="inf/s"),
        Column("batch_ms", "pipeline", digits=2, unit="ms"),
        Column("bare_ms", "compiled network", digits=2, unit="ms"),
        Column("bare_alone_ms", "the same, waited for", digits=2, unit="ms"),
        Column("ratio", "pipeline ÷ compiled", digits=3),
    ]
    parts = [
        f"# {PARTS['jasper'].title}",
        "Whole utterances of one length in each batch, waveforms in and transcripts out. One batch after the other "
        "shows the latency; of two at once one is filled, copied and written while the network computes the other. The "
        "compiled network has its audio on the device, as float32; its calls follow each other without a pause, or are "
        "launched and waited for one by one, as a caller's are. In the layout of NVIDIA's tables.",
        Table("Throughput and latency", columns, rows).without_empty().to_markdown(),
    ]
    for seconds in dict.fromkeys(row["seconds"] for row in rows):
        figure, (axes,) = new_figure(
            f"Throughput against latency, {seconds:g} s of audio", subtitle="one point for each batch size"
        )
        lines = [(f"pipeline, {CALLERS[way[0]]}, {way[1]}", way, "batch_ms", "throughput") for way in WAYS]
        for index, (name, way, x, y) in enumerate([*lines, ("compiled network", WAYS[0], "bare_ms", "bare")]):
            chosen = [row for row in rows if row["seconds"] == seconds and (row["callers"], row["wire"]) == way]
            points = [(row[x], row[y]) for row in chosen if x in row]
            axes.plot(
                [point[0] for point in points],
                [point[1] for point in points],
                color=COLOURS[index],
                marker=MARKERS[index],
                label=name,
            )
        label_axes(axes, "latency of a batch (ms)", "throughput (inferences/s)")
        axes.set_ylim(bottom=0)
        legend(axes)
        (folder / f"jasper-{seconds:g}s.png").write_bytes(png(figure))
        parts.append(f"![Throughput against latency, {seconds:g} s](jasper-{seconds:g}s.png)")
    return "\n\n".join([*parts, NVIDIA.strip()])


def main() -> None:
    """Write the pages of a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.page", description=__doc__)
    parser.add_argument("--results", type=Path, default=OUTPUT, help="folder of the JSON, and of the pages")
    for path in write_pages(parser.parse_args().results):
        print(path)


if __name__ == "__main__":
    main()
