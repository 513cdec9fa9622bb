"""Pages with the tables that the source documents print, each beside its published figures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import published
from benchmarks.gpu.found import Found, Row, plain, search_words, title_of
from benchmarks.gpu.plan import PARTS
from tritone.report.table import Column, Table


def _beside(
    found: Found, part: str, published: Iterable[Row], keys: Sequence[str], **fields: Any
) -> list[dict[str, Any]]:
    """Our rows of a part, each with what was published under the same keys, as fields that begin with "t4_"."""
    theirs = {tuple(row[key] for key in keys): row for row in published}
    rows = []
    for row in found.rows(part, "served", **fields):
        known = theirs.get(tuple(plain(row[key]) for key in keys), {})
        made = dict(row) | {"title": title_of(row["of"]), "search": search_words(row["search"])}
        rows.append(made | {"failed": sum(row["errors"].values())} | {f"t4_{key}": known[key] for key in known})
    return rows


def _compiled(found: Found, part: str) -> str:
    return "compiled" if found.rows(part, "compiled ahead") else "recorded and not compiled"


def published_wenet(found: Found, folder: Path) -> str:
    """WeNet with attention rescoring, beside its document."""
    rows = _beside(found, "published-wenet", published.WENET, ("of", "audio", "load"))
    columns = [
        Column("title", "model"),
        Column("audio", "audio (s)", align="right"),
        Column("load", "requests in flight", digits=0),
        Column("t4_utterances_s", "T4: utt/s", digits=0),
        Column("utterances_s", "here: utt/s", digits=0),
        Column("t4_p50_ms", "T4: p50 (ms)", digits=0),
        Column("p50_ms", "here: p50 (ms)", digits=1),
        Column("t4_p95_ms", "T4: p95 (ms)", digits=0),
        Column("p95_ms", "here: p95 (ms)", digits=1),
        Column("t4_p99_ms", "T4: p99 (ms)", digits=0),
        Column("p99_ms", "here: p99 (ms)", digits=1),
        Column("batch", "batch", digits=1),
        Column("failed", "errors", digits=0),
    ]
    told = (
        "WeNet's document: attention rescoring through Triton, onnxruntime in fp16 on one T4, AISHELL-2's U2++ (12 x "
        "256) and WenetSpeech's conformer (12 x 512). Here: random weights of these sizes, torch in bf16, "
        f"{_compiled(found, 'published-wenet')}."
    )
    return _page("published-wenet", told, Table("Beside WeNet's figures", columns, rows))


def published_streams(found: Found, folder: Path) -> str:
    """WeNet's streams, beside its document."""
    part = "published-streams"
    closed = _beside(found, part, published.STREAMS, ("search", "load"), paced=False)
    columns = [
        Column("search", "search"),
        Column("load", "streams", digits=0),
        Column("t4_answers_s", "T4: answers/s", digits=0),
        Column("answers_s", "here: answers/s", digits=0),
        Column("t4_mean_ms", "T4: avg (ms)", digits=0),
        Column("mean_ms", "here: avg (ms)", digits=1),
        Column("t4_p95_ms", "T4: p95 (ms)", digits=0),
        Column("p95_ms", "here: p95 (ms)", digits=1),
        Column("t4_p99_ms", "T4: p99 (ms)", digits=0),
        Column("p99_ms", "here: p99 (ms)", digits=1),
        Column("final_p95_ms", "here: final p95 (ms)", digits=1),
        Column("generator_cores", "generator (cores)", digits=2),
        Column("generator_processes", "in processes", digits=0),
        Column("failed", "errors", digits=0),
    ]
    told = (
        "WeNet's document: AISHELL-2's U2++ (12 x 256), chunks of 640 ms, five chunks of the past, onnxruntime in fp16 "
        f"on one T4. Here: random weights of that size, torch in bf16, {_compiled(found, part)}. A stream sends a "
        "chunk of its 10 s as soon as the one before is answered, as there; below, in real time."
    )
    in_time = [dict(row) | {"search": search_words(row["search"])} for row in found.rows(part, "served")]
    paced = [row for row in in_time if row.get("paced", True)]
    more = [
        Column("search", "search"),
        Column("streams", "streams", digits=0),
        Column("chunk_p50_ms", "chunk p50 (ms)", digits=1),
        Column("chunk_p95_ms", "chunk p95 (ms)", digits=1),
        Column("chunk_p99_ms", "chunk p99 (ms)", digits=1),
        Column("final_p95_ms", "final p95 (ms)", digits=1),
        Column("in_time", "in time", digits=2, unit="%", scale=100.0),
    ]
    return _page(part, told, Table("As fast as they are answered", columns, closed), Table("In real time", more, paced))


def published_jasper(found: Found, folder: Path) -> str:
    """Jasper through the server, beside NVIDIA's document."""
    part = "published-jasper"
    rows = _beside(found, part, (), ())
    for row in rows:
        row |= {"runtime": row["build"]["runtime"], "utterances": row.get("utterances", 1)}
        row["batching"] = "dynamic" if row["build"]["queue_delay_ms"] else "static"
    tables = []
    for name, title, field, unit, digits in (
        ("s", "Static batching, four requests in flight: utterances a second", "utterances_s", "utt/s", 1),
        ("ms", "Static batching, one request in flight: milliseconds a request", "mean_ms", "ms", 2),
    ):
        points: dict[tuple[str, int], dict[str, Any]] = {}
        for row in rows:
            if row["batching"] == "static" and row["load"] == (4 if name == "s" else 1):
                point = points.setdefault((row["audio"], row["utterances"]), {})
                point[f"{row['runtime']} {row['precision']}"] = row[field]
        theirs = {(row["audio"], row["utterances"]): row for row in published.JASPER}
        made = [
            {"audio": audio, "utterances": count, **point}
            | {f"t4_{each}": theirs.get((audio, count), {}).get(f"{each}_{name}") for each in published.RUNTIMES}
            for (audio, count), point in sorted(points.items(), key=lambda each: (float(each[0][0]), each[0][1]))
        ]
        ours = dict.fromkeys(system for point in points.values() for system in point)
        columns = [
            Column("audio", "Audio length in seconds", align="right"),
            Column("utterances", "Batch size", digits=0),
            *(Column(system, f"{system} ({unit})", digits=digits) for system in ours),
            *(
                Column(f"t4_{each}", f"T4: {words} ({unit})", digits=digits)
                for each, words in published.RUNTIMES.items()
            ),
        ]
        tables.append(Table(title, columns, made))
    columns = [
        Column("batching", "batching"),
        Column("load", "requests in flight", digits=0),
        Column("utterances_s", "utt/s", digits=0),
        Column("mean_ms", "avg (ms)", digits=2),
        Column("p95_ms", "p95 (ms)", digits=2),
        Column("queue_ms", "of it in the queue (ms)", digits=2),
        Column("batch", "batch", digits=2),
        Column("failed", "errors", digits=0),
    ]
    single = [
        row
        for row in rows
        if (row["audio"], row["utterances"], row["precision"], row["runtime"]) == ("7", 1, "fp16", "torch")
    ]
    single.sort(key=lambda row: (row["batching"] == "dynamic", row["load"]))
    told = (
        "NVIDIA's document: Jasper Large through its inference server, fp16, one T4, static batching: a request is a "
        "batch. Throughput there is of the best number of requests in flight. Here: random weights, two instances, "
        "int16 audio, features and search in the model; the programs of the runtime torch are compiled, those of "
        "TorchScript run as they are. Dynamic batching: batches of up to 4, put together for up to 5 ms."
    )
    title = "Static against dynamic batching, 7 s, torch fp16, one utterance in a request"
    note = f"All points together: {sum(row['failed'] for row in rows)} errors in {len(rows)} loads."
    return _page(part, f"{told} {note}", *tables, Table(title, columns, single))


def _page(part: str, told: str, *tables: Table) -> str:
    shown = (table.without_empty().to_markdown().strip() for table in tables if table.rows)
    return "\n\n".join([f"# {PARTS[part].title}", told, *shown])
