"""The page of Parakeet and Nemotron: what NVIDIA and others print, and what was measured here.

python -m benchmarks.gpu --quick --seconds 3 --only published-parakeet --out docs/performance/parakeet
python -m benchmarks.gpu.parakeet_page

FOLDER/published-parakeet.json, published-parakeet-large.json, published-nemotron.json  ->  FOLDER/README.md
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import published
from benchmarks.gpu.audio import LIBRISPEECH
from benchmarks.gpu.found import Found, plain, search_words, title_of
from benchmarks.gpu.page import ceilings_table, endings, loads_table, pipelines_table
from benchmarks.gpu.plan import IN_TIME, PARTS, Load
from benchmarks.measure import ROOT
from tritone.report.table import Column, Table

OUTPUT = ROOT / "docs" / "performance" / "parakeet"
MEASURED = ("published-parakeet", "published-parakeet-large", "published-nemotron")
NOT_RUN, NO_ANSWER = "not run yet", "no answer in time"
LENGTHS = {"10": "10 s", LIBRISPEECH: "mixed lengths, unsorted"}
MODELS_OF = ("parakeet-0.6b", "parakeet-ctc-1.1b", "parakeet-rnnt-1.1b")


def parakeet_page(folder: Path) -> str:
    """The page of the JSON in a folder; what was not measured says so."""
    paths = {name: folder / f"{name}.json" for name in MEASURED}
    content = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
    found = Found(content)
    ours: list[dict[str, Any]] = []
    for model, audio, search in itertools.product(MODELS_OF, LENGTHS, ("", "modified-beam")):
        if (planned := _planned(model, audio, search)) is None:
            continue
        part, load = planned
        row = found.best(part, "rtfx", of=model, audio=audio, search=search)
        ran = found.rows(part, "served", of=model, audio=audio, search=search)
        ours.append(
            {
                "what": title_of(model),
                "system": "Tritone, served",
                "gpu": _gpu(found, part),
                "conditions": f"{LENGTHS[audio]}, {load.precision}, {search_words(load.search)}",
                "rtfx": f"{row['rtfx']:,.0f}" if row and row["rtfx"] else NO_ANSWER if ran else NOT_RUN,
                "source": f"--only {part}",
            }
        )
    theirs = [{**row, "rtfx": f"{row['rtfx']:,.0f}"} for row in published.PARAKEET]
    columns = [
        Column("what", "model"),
        Column("system", "system"),
        Column("gpu", "GPU"),
        Column("conditions", "conditions"),
        Column("rtfx", "× real time", align="right"),
        Column("source", "source"),
    ]
    part = "published-nemotron"
    streams: list[dict[str, Any]] = []
    for chunk_ms in dict.fromkeys(load.chunk_ms for load in PARTS[part].loads):
        ran = found.rows(part, "served", chunk_ms=chunk_ms)
        most = max((row["streams"] for row in ran if (row["in_time"] or 0.0) >= IN_TIME), default=None)
        late = f"fewer than {min(row['streams'] for row in ran):,}" if ran else NOT_RUN
        streams.append(
            {
                "what": title_of("nemotron-0.6b"),
                "system": "Tritone, served",
                "gpu": _gpu(found, part),
                "chunk_ms": chunk_ms,
                "streams": f"{most:,}" if most else late,
                "source": f"--only {part}",
            }
        )
    of_streams = [
        *columns[:3],
        Column("chunk_ms", "chunk (ms)", digits=0),
        Column("streams", "streams at once", align="right"),
        columns[-1],
    ]
    told = (
        "Figures that others print, each with its source and conditions, beside what this project measures with random "
        "weights of the same sizes, which say five word pieces a second. Theirs are of other audio, and of libraries "
        "called with whole batches; ours are served, through Triton and gRPC, with the load test on the same machine. "
        f"Of streams the most of which {IN_TIME:.0%} of the chunks were answered in time. Where no GPU stands, the "
        "source does not name one. For 1.1B no figure was found that says its conditions. A part of ours is measured "
        "with `python -m benchmarks.gpu --quick --seconds 3 --out docs/performance/parakeet --only PART`, meant for "
        "ten minutes of a machine with 16 cores; the page is written by `python -m benchmarks.gpu.parakeet_page`."
    )
    tables = (
        Table("Whole utterances", columns, [*theirs, *ours]),
        Table(
            "Streams in real time",
            of_streams,
            [{**row, "streams": f"{row['streams']:,}"} for row in published.NEMOTRON] + streams,
        ),
    )
    parts = ["# Parakeet on a GPU", told, *(table.to_markdown() for table in tables)]
    for name in content:
        measured = [ceilings_table(found, name), pipelines_table(found, name), loads_table(found, name)]
        parts += [f"## {PARTS[name].title}", *(each for each in measured if each)]
    return "\n\n".join(each.strip() for each in [*parts, *(endings(found, content, summary=False) if content else [])])


def _planned(model: str, audio: str, search: str) -> tuple[str, Load] | None:
    """The part that measures a model on such audio with a search, and a load of it."""
    for part, plan in PARTS.items():
        for load in plan.loads:
            if (load.model, load.audio, plain(load.search)) == (model, audio, search):
                return part, load
    return None


def _gpu(found: Found, part: str) -> str:
    return ", ".join(found.content[part]["stamp"]["gpus"]) if part in found.content else ""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=OUTPUT, help="folder of the JSON, and of the page")
    folder = parser.parse_args().results
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(parakeet_page(folder) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
