"""How many processes keep one GPU busy: each answers batches as a model of the backend does, without Triton.

    python -m benchmarks.instances [--ms 18] [--processes 4]

The network is a stand-in of matrix products that takes so many milliseconds for 64 rows of ten seconds; the rest is
what serves: reading requests, filling the block, the ways there and back, search, text, answers; see `benchmarks.host`.
Printed are utterances a second of 1 to so many processes at once, and their share of what the network alone could do.
"""

import argparse
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.host import FRAMES, Instant, PlayedRequest, open_model
from tritone.runtime.graph import Array, Bucket, TensorSpec

ROWS, PADDED = 64, 163_840
WIDTH = 8192  # of the stand-in's square matrices
PHASE_S = 1.5
KINDS = ("WAV", "PCM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ms", type=float, default=18.0, help="how long the network takes")
    parser.add_argument("--words", type=int, default=30, help="in each utterance, as said in ten seconds")
    parser.add_argument("--processes", type=int, default=4)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(arguments.processes), context.Queue()
    layers = context.Value("i", 0)
    workers = [
        context.Process(target=work, args=(index, arguments, barrier, results, layers))
        for index in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    alone = results.get(timeout=120)
    print(f"network alone: {alone:.2f} ms for {ROWS} rows, {ROWS / alone * 1000:.0f} utterances a second", flush=True)
    for kind in KINDS:
        for count in range(1, arguments.processes + 1):
            done = sum(results.get(timeout=60) for _ in range(arguments.processes))
            rate = done * ROWS / PHASE_S
            print(
                f"{kind}, {count} processes: {rate:.0f} utterances a second, {rate * alone / ROWS / 1000:.2f}",
                flush=True,
            )
    for worker in workers:
        worker.join()


def work(index: int, arguments: Any, barrier: Any, results: Any, layers: Any) -> None:
    """One process: in each phase it answers batches as long as the phase lasts, or waits for the others."""
    model = open_model(arguments.words)
    graph = Products(model._pipeline.runner.graph, arguments.words)
    if index == 0:
        layers.value = max(1, round(arguments.ms / graph.time_of_a_product()))
    barrier.wait()
    graph.layers = layers.value
    model._pipeline.runner.graph = graph
    requests = {kind: [PlayedRequest(kind, {"TRANSCRIPTS"}) for _ in range(ROWS)] for kind in KINDS}
    for kind in KINDS:
        for _ in range(3):
            answers = model.execute(requests[kind])
            assert not any(answer.error for answer in answers), answers[0].error
    barrier.wait()
    if index == 0:
        results.put(graph.alone())
    for kind in KINDS:
        for count in range(1, arguments.processes + 1):
            barrier.wait()
            done, end = 0, time.perf_counter() + PHASE_S
            while index < count and time.perf_counter() < end:
                model.execute(requests[kind])
                done += 1
            barrier.wait()
            results.put(done)


class Products(Instant):
    """Matrix products on a GPU, recorded as the runtime records a network, and the answers of `Instant`."""

    def __init__(self, graph: Any, words: int) -> None:
        super().__init__(graph, words, widens=True)
        import torch

        from tritone.runtime.cuda.queue import CudaQueue, Replays, widening

        self.buckets = [Bucket(ROWS, PADDED)]
        self._torch = torch
        self._queue = CudaQueue(torch.device("cuda", 0))
        self._replays = Replays(self._queue, record_after=1)
        with torch.inference_mode(), self._queue.turn():
            self._weights = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
            self._value = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
            self._tokens = torch.from_numpy(np.tile(self._row, (ROWS, 1))).cuda()
        self.layers = 1
        specs = {"waveform": TensorSpec(np.dtype(np.float32), (None, None)), "num_samples": graph.inputs["num_samples"]}
        self._function = widening(self._compute, specs)

    def _compute(self, waveform: Any, num_samples: Any) -> list[Any]:
        value = self._value
        for _ in range(self.layers):
            value = value @ self._weights
        nothing = 0 * (waveform.sum() + value[0, 0].float())
        tokens = self._tokens[: len(waveform)] + nothing.long()
        return [tokens, nothing - 0.1 + 0 * tokens.float(), num_samples * 0 + FRAMES]

    def time_of_a_product(self) -> float:
        """Milliseconds of one."""
        with self._torch.inference_mode(), self._queue.turn():
            return self._milliseconds(lambda: self._value @ self._weights)

    def _milliseconds(self, function: Any, count: int = 20) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        for index in range(count + 3):
            if index == 3:
                start.record()
            function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    def alone(self) -> float:
        """Milliseconds of the network on what is on the device already."""
        inputs: list[Array] = [np.zeros((ROWS, PADDED), np.float32), np.zeros(ROWS, np.int64)]
        with self._torch.inference_mode():
            sent = self._queue.send(inputs)
            with self._queue.turn():
                given = self._queue.received(sent)
                return self._milliseconds(lambda: self._replays.run("network", self._function, given))

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        with self._torch.inference_mode():
            sent = self._queue.send([inputs["waveform"], inputs["num_samples"]])
            with self._queue.turn():
                given = self._queue.received(sent)
                fetched = self._queue.fetch(self._replays.run("network", self._function, given))
            names = ("best_tokens", "best_log_probs", "num_frames")
            found = dict(zip(names, fetched.wait(), strict=True))
        return [found[name] for name in outputs]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._queue.empty(shape, dtype)


if __name__ == "__main__":
    main()
