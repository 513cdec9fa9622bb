"""Whether the first requests after readiness are as fast as later ones, each on a freshly started server."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from benchmarks.measure import Cell, Finding, Setup, timed
from benchmarks.served import MODEL, serving
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.workload.speech import Tape

LENGTHS_S = (2.0, 7.0, 19.0)
STARTS = 6
REPEATS = 25


def first_over_median(bundle: Bundle, setup: Setup) -> Finding:
    """The latency of the very first request, divided by the median of those of the same kind that follow."""
    rate = bundle.manifest.sample_rate
    rng, tape = np.random.default_rng(0), Tape.shipped(rate)
    audio = {f"{length_s:g} s": tape.cut(round(length_s * rate), rng) for length_s in LENGTHS_S}
    rows: list[dict[str, Cell]] = []
    for start in range(STARTS):
        began = time.perf_counter()
        with serving(bundle) as server, Client(server.grpc_address) as client:
            ready_s = time.perf_counter() - began
            client.models()  # opens the connection, as every client does before its first request

            def offline(name: str, client: Client = client) -> None:
                client.transcribe([audio[name]], MODEL)[0].text  # noqa: B018  raises if it failed

            def streaming(client: Client = client) -> None:
                with client.stream(f"{MODEL}-streaming", chunk_ms=1000) as stream:
                    stream.accept(audio["2 s"][:rate])

            works: dict[str, Callable[[], None]] = {
                **{name: partial(offline, name) for name in audio},
                "stream, 1 s": streaming,
            }
            # Every kind comes first on some server: only one request can be the very first.
            names = [*works][start % len(works) :] + [*works][: start % len(works)]
            for name in names:
                times = [timed(works[name]) for _ in range(1 + REPEATS)]
                later = median(times[1:])
                rows.append(
                    {
                        "start": start + 1,
                        "request": name,
                        "very first": "yes" if name == names[0] else "of its kind",
                        "first ms": 1000 * times[0],
                        "median ms": 1000 * later,
                        "ratio": times[0] / later,
                        "server ready s": ready_s,
                    }
                )
    very_first = [float(row["ratio"]) for row in rows if row["very first"] == "yes"]
    return Finding(
        key="first",
        title="first request after readiness ÷ median request",
        value=max(very_first),
        bar=2.0,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            f"The value is the worst of {STARTS} server starts (median {median(very_first):.2f}). Worst first "
            f"request of any kind: {max(float(row['ratio']) for row in rows):.2f}.",
            f"Each median is of {REPEATS} requests of the same kind, one at a time, over gRPC. A stream's request "
            "opens it, sends its first second and closes it.",
        ],
    )
