"""The page of Whisper's engine on a GPU, from what `benchmarks.whisper_gpu` and `benchmarks.startup` kept.

    python -m benchmarks.whisper_gpu_page docs/performance/whisper

FOLDER/turbo-engine.json, turbo-served.json, ...  ->  FOLDER/README.md, with what is not there said to be not measured
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Runs = Mapping[str, Mapping[str, Any]]

TITLE = """# Whisper's engine on a GPU

Random weights of true sizes in bf16, windows of 30 s, 80 tokens each unless it says otherwise; × is times real time,
the median of three runs in process. `transformers` does 32 windows together by `generate`. Written by
`python -m benchmarks.whisper_gpu_page` of the files beside it, which have all figures.
"""
FORMS = {"plain": "plain", "static": "static cache", "encoder": "static cache, encoder compiled"}


def x(value: float) -> str:
    return f"{value:,.0f} ×"


def table(head: str, rows: list[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|" + " --- |" * columns, *(f"| {row} |" for row in rows)]) + "\n"


def best(run: Mapping[str, Any]) -> float:
    """The fastest form of transformers in this run."""
    return float(max(each["x"] for each in run["transformers"].values() if isinstance(each, dict) and "x" in each))


def asked(runs: Runs) -> str:
    """What was asked for, beside what was reached."""
    rows = []
    for size, least in (("turbo", 4500), ("large-v3", 1650)):
        served = runs.get(f"{size}-served")
        if served is None:
            rows.append(f"{size}, served, 64 in flight | ≥ {least:,} ×, ≥ 1.45 × transformers | not measured")
            continue
        measured = [each for each in (served, runs.get(f"{size}-served-again")) if each]
        for name in ("64 in flight", "128 in flight"):
            values = [(each["served"][name]["x"], best(each)) for each in measured]
            reached = "; ".join(f"{x(value)}, {value / other:.2f} ×" for value, other in values)
            rows.append(f"{size}, served, {name} | ≥ {least:,} ×, ≥ 1.45 × transformers | {reached}")
    engine = runs["turbo-engine"]
    alone, kernels = 1e3 * sorted(engine["engine"]["1"]["s"])[1], engine["step"]["kernels_of_one_request_ms"]
    rows.append(
        f"one window, idle, turbo, in process | ≤ 1.5 × its kernels | "
        f"{alone:.1f} ms, {alone / kernels:.2f} × {kernels:.1f} ms"
    )
    if "turbo-served-again" in runs:
        alone = runs["turbo-served-again"]["served"]["alone_ms"]
        rows.append(
            f"one window, idle, turbo, served | ≤ 1.5 × its kernels | "
            f"{alone:.1f} ms, {alone / kernels:.2f} × the same kernels"
        )
    beam = engine["engine"]["64 beam 5"]["x"] / engine["engine"]["64"]["x"]
    rows.append(f"beam of 5, turbo, in process | ≥ 0.4 of greedy | {beam:.2f}")
    if "turbo-served" in runs:
        found = runs["turbo-served"]["served"]["mixed"]["of_expected_time"]
        rows.append(f"2 to 30 s, 256 in flight, served | ≤ 1.25 × a windows + b tokens | {found:.2f} ×")
    for name in ("60 streams, 1 s", "100 streams, 2 s"):
        found = runs["turbo-live"]["live"][name]
        rows.append(f"live, {name} between partials | p95 ≤ 0.5 s | {found['p95_ms']:.0f} ms")
    warm = runs["startup"]["starts"][-1]
    rows.append(
        f"restart, warm cache, turbo | first text ≤ 20 s, full speed ≤ 30 s | "
        f"{warm['first_text_s']:.1f} s, {warm['full_speed_s']:.1f} s"
    )
    return table("work | asked | reached", rows)


def in_process(runs: Runs, size: str) -> str:
    engine = runs[f"{size}-engine"]
    rows = [f"{name} | {x(each['x'])}" for name, each in engine["engine"].items() if isinstance(each, dict)]
    rows += [f"transformers, {FORMS[name]}, 32 | {x(engine['transformers'][name]['x'])}" for name in FORMS]
    step = engine["step"]
    said = (
        f"\nThe encoder takes {step['encoder_ms_1']:.1f} ms for one window and {step['encoder_ms_16']:.0f} for 16, "
        f"a step {step['step_ms_1']:.2f} ms for one text, {step['step_ms_64']:.2f} for 64, "
        f"{step['step_ms_128']:.2f} for 128. {engine['memory']['reserved_gb']} GB of the device were reserved.\n"
    )
    schedule = runs[f"{size}-schedule"]
    beside = [
        f"{name} | {x(schedule['beside'][name]['x'])} | {x(schedule['apart'][name]['x'])}"
        for name in schedule["apart"]
        if name != "took_s"
    ]
    return (
        f"\n## {size}, in process\n\n"
        + table("windows together | speed", rows)
        + said
        + "\nSteps beside the encoder, or apart from it as now:\n\n"
        + table("windows together | beside | apart", beside)
    )


def served(runs: Runs, size: str) -> str:
    names = [name for name in (f"{size}-served", f"{size}-served-again") if name in runs]
    return "".join(one_served(runs[name], size) for name in names) or f"\n## {size}, served\n\nNot measured.\n"


def one_served(run: Mapping[str, Any], size: str) -> str:
    found = run["served"]
    cases = {name: each for name, each in found.items() if name.endswith("in flight")} | {
        f"{name}, 256 in flight": each for name, each in found.get("mixed", {}).items() if isinstance(each, dict)
    }
    rows = [
        f"{name} | {each['requests']:,} | {x(each['windows_x'])} | {x(each['x'])} | "
        f"{each['p50_ms']:.0f} | {each['p95_ms']:.0f}"
        for name, each in cases.items()
    ]
    forms = ", ".join(f"{FORMS[name]} {x(run['transformers'][name]['x'])}" for name in FORMS)
    return (
        f"\n## {size}, served, {run['date']}\n\nEight client processes over gRPC, 16-bit audio.\n\n"
        + table("requests | number | in windows of 30 s | in audio | p50 ms | p95 ms", rows)
        + f"\ntransformers in the same run: {forms}.\n"
        + (f"One request of 30 s alone: {found['alone_ms']:.1f} ms.\n" if "alone_ms" in found else "")
    )


def live(runs: Runs) -> str:
    rows = [
        f"{each['streams']} | {each['partial_s']:g} s | {each['p50_ms']:.0f} | {each['p95_ms']:.0f} | "
        f"{each['looks_a_second']:.0f}"
        for each in runs["turbo-live"]["live"].values()
    ]
    return (
        "\n## Live streams, turbo, in process\n\nRandom weights whose tokens are replaced by a script as long as "
        "speech; milliseconds from a chunk of audio to the text that is new because of it.\n\n"
        + table("streams | between partials | p50 ms | p95 ms | decoded a second", rows)
    )


def restart(runs: Runs) -> str:
    rows = [
        f"{each['cache']} | {each['ready_s']:.1f} s | {each['first_text_s']:.1f} s | "
        f"{each['full_speed_s']:.1f} s | {x(each['x_real_time'])}"
        for each in runs["startup"]["starts"]
    ]
    speed = "Full speed is that of the second half of the texts, which one process of clients asks for.\n\n"
    return (
        "\n## Restart, turbo, served, 64 in flight\n\n"
        + speed
        + table("cache | ready | first text | full speed | speed", rows)
    )


def conditions(runs: Runs) -> str:
    lines = ["\n## Conditions\n"]
    for name, run in runs.items():
        if (stamp := run.get("stamp")) is not None:
            lines.append(f"* {name}: `{stamp['command']}`, {stamp['date']}, commit {stamp['commit']}.")
        else:
            note = f" {run['note'][0].upper()}{run['note'][1:]}." if run["note"] else ""
            lines.append(
                f"* {name}: `{run['command']}`, {run['date']}, commit {run['commit']}; {run['machine']}.{note}"
            )
    return "\n".join(lines) + "\n"


def page(runs: Runs) -> str:
    parts = [TITLE + "\n" + asked(runs)]
    for size in ("turbo", "large-v3"):
        parts += [in_process(runs, size), served(runs, size)]
    return "".join([*parts, live(runs), restart(runs), conditions(runs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    runs = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    (folder / "README.md").write_text(page(runs), encoding="utf-8")


if __name__ == "__main__":
    main()
