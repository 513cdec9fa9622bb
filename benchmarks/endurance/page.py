"""The page of the endurance run: its numbers with their bars, and what the server kept over time as plots.

results.json, PART.json.gz  ->  report.md, plots/PART.png
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import to_markdown
from tritone.report.plots import COLOURS, INK, label_axes, legend, new_figure, png

INTRODUCTION = """\
The demo models on one `tritone serve`, treated badly: hostile requests between good ones, clients that are killed,
processes that are paused and killed, SIGTERM under load, and hostile files for every command. Written by `python -m
benchmarks.endurance`, whose parts may have been run one by one: each carries its conditions.

Every good request has an answer that was computed in process before (text, and words with their times where details
were asked for; embeddings within 0.2 %): *wrong* is any other answer that says it is one. *Told* is the time from the
harm to a client's first error or to the model's not being ready; where tritonserver itself stood still it counts from
its going on. *Back* is the time from the end of the harm until all models answer right and no errors come any more.
Memory is what processes have that is neither a file's nor shared (RssAnon), and the server's regions in /dev/shm, each
counted once. *Own* is of one process; *shared* is /dev/shm."""


def write_page(folder: Path) -> Path:
    """Write the page and its plots from the results in a folder."""
    findings = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    text = to_markdown(findings, "Endurance", INTRODUCTION)
    plots = []
    for path in sorted(folder.glob("*.json.gz")):
        name, part = path.name.partition(".")[0], json.loads(gzip.decompress(path.read_bytes()))
        if len(part.get("samples", ())) > 1:
            (folder / "plots").mkdir(exist_ok=True)
            (folder / "plots" / f"{name}.png").write_bytes(draw(name, part["samples"]))
            plots.append(f"![memory and descriptors during {name}](plots/{name}.png)")
    if plots:
        text += "\n".join(["", "## Over time", "", *"\n\n".join(plots).split("\n"), ""])
    page = folder / "report.md"
    page.write_text(text, encoding="utf-8")
    return page


def draw(part: str, samples: Sequence[Mapping[str, Any]]) -> bytes:
    """Memory of each process and shared memory over time, and descriptors, as a PNG."""
    figure, (memory, descriptors) = new_figure(
        f"Memory during {part}",
        subtitle="own memory of each process, shared memory, and open descriptors",
        panels=(3, 2),
    )
    minutes = [sample["at_s"] / 60 for sample in samples]
    total = [sum(sample["own"].values()) + sample["shared"] for sample in samples]
    memory.plot(minutes, total, color=INK, linewidth=1.8, label="all")
    memory.plot(
        minutes, [sample["shared"] for sample in samples], color=COLOURS[1], linestyle="--", label="shared memory"
    )
    for index, role in enumerate(largest_roles(samples)):
        colour = COLOURS[(index + 2) % len(COLOURS)]
        values = [sample["own"].get(role, float("nan")) for sample in samples]
        memory.plot(minutes, values, color=colour, linewidth=1.1, label=role)
        opened = [sample["descriptors"].get(role, float("nan")) for sample in samples]
        descriptors.plot(minutes, opened, color=colour, linewidth=1.1)
    label_axes(memory, "minutes", "MiB")
    label_axes(descriptors, "minutes", "descriptors")
    for axes in (memory, descriptors):
        axes.set_ylim(bottom=0)
    legend(memory, columns=3, below=True)
    return png(figure)


def largest_roles(samples: Sequence[Mapping[str, Any]], most: int = 7) -> list[str]:
    """The roles of processes that ever had most memory, the largest first."""
    peaks: dict[str, float] = {}
    for sample in samples:
        for role, value in sample["own"].items():
            peaks[role] = max(peaks.get(role, 0.0), value)
    return sorted(peaks, key=lambda role: -peaks[role])[:most]
