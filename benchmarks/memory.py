"""Whether the server's memory settles, and whether a model keeps its budget.

    python -m benchmarks.memory [--bundle demo-transducer|DIR] [--requests 2400] [--output FILE.json]

Mixed requests of 0.1 to 29 s, searched in two ways; then a burst of the longest audio that the model takes, all of it
in flight at once. Resident memory after many requests over that after few is a part of `python -m benchmarks.serving`.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import ROOT, Bystanders, Cell, Finding, Setup, save, to_markdown
from benchmarks.served import MODEL, resident_mib, serving
from tritone.audio.waveform import Waveform
from tritone.backend.settings import MB, MEMORY_MB
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.loadtest.workload.speech import Tape
from tritone.repository import ModelOptions
from tritone.repository.memory import fitted
from tritone.result import Result
from tritone.server import TritonServer

REQUESTS = 5000
EARLY = 500
SHORTEST_S, LONGEST_S = 0.1, 20.0
CONCURRENCY = 8
MIXED_S = 0.1, 29.0
MIXED_CONCURRENCY = 64
BURST = 32
TIMEOUT_S = 900.0  # the last of a burst waits for all others
BEAMS = {"ctc": "prefix-beam", "transducer": "modified-beam"}
TITLE = "Memory of a served model"
INTRODUCTION = """\
A model with its usual limits, of which one process runs. "process" is the resident memory of the model's process,
"peak" the most it had since it began (VmHWM), "server" the resident memory of tritonserver and its models together.
Written by `python -m benchmarks.memory`; raw rows are in [memory.json](memory.json)."""


def memory_growth(bundle: Bundle, setup: Setup) -> Finding:
    """Resident memory of server and stubs after 5,000 requests, divided by that after 500."""
    rate = bundle.manifest.sample_rate
    rng, tape = np.random.default_rng(0), Tape.shipped(rate)
    rows: list[dict[str, Cell]] = []
    with serving(bundle) as server, Client(server.grpc_address) as client:
        rows.append({"requests": 0, "resident MiB": resident_mib(server), "audio s": 0.0, "others %": 0.0})
        done, audio_s = 0, 0.0
        while done < REQUESTS:
            # The logarithm is drawn evenly: every octave of lengths has its share, and hardly a length comes twice.
            lengths = np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S), EARLY))
            waveforms = (tape.cut(round(length * rate), rng) for length in lengths)
            with Bystanders() as bystanders:
                for result in client.transcribe_iter(waveforms, MODEL, concurrency=CONCURRENCY):
                    _ = result.text  # raises if it failed
                    audio_s += result.audio_s
            done += EARLY
            rows.append(
                {
                    "requests": done,
                    "resident MiB": resident_mib(server),
                    "audio s": round(audio_s),
                    "others %": bystanders.percent,
                }
            )
    resident = {row["requests"]: float(row["resident MiB"]) for row in rows}
    return Finding(
        key="memory",
        title=f"resident memory after {REQUESTS} requests ÷ after {EARLY}",
        value=resident[REQUESTS] / resident[EARLY],
        bar=1.05,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            f"Random lengths of {SHORTEST_S:g} to {LONGEST_S:g} s, {CONCURRENCY} requests in flight. Resident memory "
            "is the sum over tritonserver and its stubs (an offline and a streaming model), shared pages in each.",
        ],
    )


def budget_kept(bundle: Bundle, setup: Setup, requests: int) -> list[Finding]:
    """The peak of a model's process after many mixed requests over that after few, and over its budget."""
    rate, rng = bundle.manifest.sample_rate, np.random.default_rng(0)
    tape = Tape.shipped(rate)
    mode = "embedding" if bundle.manifest.find(EmbeddingPart) else "offline"
    longest_s = fitted(ModelOptions(), bundle, mode).longest_s  # type: ignore[arg-type]  # one of two modes
    beam = BEAMS.get(bundle.manifest.kind)
    rows: list[dict[str, Cell]] = []

    def mixed(count: int) -> Iterator[Waveform]:
        return (tape.cut(round(length * rate), rng) for length in rng.uniform(*MIXED_S, count))

    with serving(bundle, modes="offline") as server, Client(server.grpc_address, timeout_s=TIMEOUT_S) as client:

        def send(waveforms: Iterator[Waveform], concurrency: int, what: str, search: str | None = None) -> None:
            audio_s = 0.0
            results: Iterator[Result[Any]]
            if beam is None and bundle.manifest.find(EmbeddingPart):
                results = client.embed_iter(waveforms, MODEL, concurrency=concurrency)
            else:
                asked = None if search is None else {"search": search}
                results = client.transcribe_iter(waveforms, MODEL, concurrency=concurrency, search=asked)
            for result in results:
                audio_s += result.audio_s
                if result.error is not None:
                    raise result.error
            rows.append({"requests": what, "audio s": round(audio_s), **_levels(server)})

        part = requests // 10
        for done in range(part, requests + 1, part):
            send(mixed(part // 2), MIXED_CONCURRENCY, f"{done - part // 2} mixed")
            send(mixed(part - part // 2), MIXED_CONCURRENCY, f"{done} mixed", beam)
        for _ in range(2):
            burst = (tape.cut(int(longest_s * rate), rng) for _ in range(BURST))
            send(burst, BURST, f"{BURST} x {longest_s:g} s")
        send(mixed(part), MIXED_CONCURRENCY, f"{part} mixed")
    early, late = (float(rows[index]["peak MB"]) for index in (1, 2 * requests // part - 1))
    peak = max(float(row["peak MB"]) for row in rows)
    note = f"{MIXED_S[0]:g} to {MIXED_S[1]:g} s, {MIXED_CONCURRENCY} in flight, half of them searched with {beam}."
    return [
        Finding(
            key="mixed",
            title=f"peak memory of the model's process after {requests} mixed requests ÷ after {part}",
            value=late / early,
            bar=1.05,
            sense="at most",
            setup=setup,
            rows=rows,
            notes=[note],
        ),
        Finding(
            key="budget",
            title=f"peak memory of the model's process ÷ its budget ({MEMORY_MB} MB)",
            value=peak / MEMORY_MB,
            bar=1.0,
            sense="at most",
            setup=setup,
            notes=[
                "Over all that was sent, the bursts of the longest audio included. The peak counts the audio in shared "
                "memory that the process sees as well, up to 105 MB in a burst, which is no part of the budget "
                "(max_queued_s bounds it)."
            ],
        ),
    ]


def _levels(server: TritonServer) -> dict[str, Cell]:
    """Memory in MB: the model's process is the one that has had most."""
    processes = [each for each in psutil.Process(server.pid).children(recursive=True) if each.is_running()]
    peaks = {each.pid: _status(each.pid, "VmHWM") for each in processes}
    model = max(peaks, key=lambda pid: peaks[pid])
    levels = {"process MB": _status(model, "VmRSS"), "peak MB": peaks[model], "server MB": resident_mib(server) * 2**20}
    return {name: round(value / MB) for name, value in levels.items()}


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-transducer", help="shipped bundle or folder")
    parser.add_argument("--requests", type=int, default=2400, help="mixed requests")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance" / "memory.json", help="JSON file")
    arguments = parser.parse_args()
    bundle = Bundle.open(arguments.bundle)
    setup = Setup.here(bundle.manifest.name, "benchmarks.memory")
    findings = budget_kept(bundle, setup, max(20, arguments.requests))
    for finding in findings:
        print(finding, flush=True)
    page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
    arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
