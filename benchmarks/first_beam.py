"""What greedy requests take while the first beam search of a machine is compiled, and when that is answered.

    python -m benchmarks.first_beam [--clients 2] [--bundle demo-asr]

Serves a greedy model with an empty cache of numba. Clients ask for 5 s of speech, one request after the other each,
while one more asks for a prefix beam, and comes again when it is told to. Ends by itself within three minutes.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks.measure import Cell, Finding, Setup
from benchmarks.served import MODEL, serving
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.errors import ServerBusyError
from tritone.loadtest.workload.speech import Tape

LENGTH_S = 5.0
IDLE_S = 10.0
PATIENCE_S = 120.0
BEAM = {"search": "prefix-beam"}


class Crowd:
    """Clients that ask for greedy search all the time: when each answer came, and how long it took, in seconds."""

    def __init__(self, url: str, waveform: Waveform, count: int) -> None:
        self._url, self._waveform, self._over = url, waveform, threading.Event()
        self.answers: list[tuple[float, float]] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def _ask(self) -> None:
        with Client(self._url) as client:
            while not self._over.is_set():
                start = time.perf_counter()
                client.transcribe(self._waveform, model=MODEL)
                end = time.perf_counter()
                self.answers.append((end, end - start))

    @contextmanager
    def asking(self) -> Iterator[None]:
        for each in self._threads:
            each.start()
        try:
            yield
        finally:
            self._over.set()
            for each in self._threads:
                each.join()

    def row(self, what: str, begin: float, end: float) -> dict[str, Cell]:
        """The answers between two times."""
        took_ms = [1000 * took for came, took in list(self.answers) if begin <= came <= end]
        p50, p99 = np.percentile(took_ms, [50, 99])
        return {"greedy": what, "answers": len(took_ms), "p50 ms": p50, "p99 ms": p99, "longest ms": max(took_ms)}


def first_beam(bundle: Bundle, clients: int, setup: Setup) -> Finding:
    """p99 of greedy requests while a beam is compiled, divided by that before anybody asked for one."""
    tape = Tape.shipped(bundle.manifest.sample_rate)
    waveform = tape.cut(round(LENGTH_S * bundle.manifest.sample_rate), np.random.default_rng(0))
    with ExitStack() as stack:
        server = stack.enter_context(serving(bundle, "offline"))
        client = stack.enter_context(Client(server.grpc_address))
        crowd = Crowd(server.grpc_address, waveform, clients)
        stack.enter_context(crowd.asking())
        asked, tries = time.perf_counter(), 0
        while True:
            tried, tries = time.perf_counter(), tries + 1
            try:
                client.transcribe(waveform, model=MODEL, search=BEAM)
                break
            except ServerBusyError as error:
                if tried - asked > PATIENCE_S:
                    raise
                time.sleep(error.retry_after_s or 1.0)
        answered = time.perf_counter()
        time.sleep(1)
        rest = time.perf_counter()
        time.sleep(IDLE_S)
        rows = [
            crowd.row("compiled beside the model", asked, tried),
            crowd.row("around loading it", tried - 0.5, answered + 0.5),
            crowd.row("nothing else", rest, time.perf_counter()),
        ]
    return Finding(
        key=f"first-beam-{clients}",
        title=f"greedy p99 while the first beam is compiled ÷ without, {clients} clients",
        value=float(rows[0]["p99 ms"] or 0) / float(rows[2]["p99 ms"] or 1),
        bar=3.0,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[f"the first beam answer came after {answered - asked:.1f} s, with {tries} requests"],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_beam", description=__doc__)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--bundle", default="demo-asr")
    arguments = parser.parse_args()
    bundle = Bundle.open(arguments.bundle)
    with tempfile.TemporaryDirectory(prefix="tritone-numba-") as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        found = first_beam(bundle, arguments.clients, Setup.here(arguments.bundle, "benchmarks.first_beam"))
    print(found)
    return 0 if found.is_met else 1


if __name__ == "__main__":
    sys.exit(main())
