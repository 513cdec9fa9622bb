"""Whether the server's memory settles: resident memory after many requests, over that after few."""

import numpy as np

from benchmarks.measure import Bystanders, Cell, Finding, Setup
from benchmarks.served import MODEL, resident_mib, serving
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.workload.speech import Tape

REQUESTS = 5000
EARLY = 500
SHORTEST_S, LONGEST_S = 0.1, 20.0
CONCURRENCY = 8


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
