"""What of a call to a GPU is hidden behind the call before it: filling, the way there, the network, the way back.

    python -m benchmarks.overlap [--rows 64] [--ms 15]

A stand-in network of matrix products is replayed on blocks of audio. Each row's sum comes back, so that a block that
was overwritten on its way is an error. Printed: how fast blocks are filled, what the parts of a call take that is alone
(fed ahead on a stream of its own or in that of its replay; waited for asleep, by the driver or by looking again and
again), and what a call takes with the network alone and with 1 to 3 callers, float32 and int16.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from tritone.pipelines.graphs import filling
from tritone.runtime.cuda.queue import CudaQueue, Replays, widening
from tritone.runtime.graph import Array, TensorSpec

SAMPLES, PADDED = 160_000, 163_840
WIDTH = 8192  # of the stand-in's square matrices
SPECS = {"waveform": TensorSpec(np.dtype(np.float32), (None, None))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--ms", type=float, default=15.0, help="how long the network takes")
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    queue = CudaQueue(torch.device("cuda", 0))
    audio = {dtype: _audio(arguments.rows, dtype) for dtype in (np.float32, np.int16)}
    _time_filling(queue, audio)
    with torch.inference_mode():
        _time_call_alone(queue)
        network = _Network(queue, arguments.ms, arguments.rows)
        for dtype, waveforms in audio.items():
            alone = network.alone(waveforms)
            print(f"{np.dtype(dtype)}: network alone {alone:.2f} ms", flush=True)
            for staged in (False, True):
                for callers in (1, 2, 3):
                    took = network.measure(waveforms, callers, arguments.repeats, staged=staged)
                    way = "sent beside" if staged else "sent within"
                    print(f"{np.dtype(dtype)}, {way}, {callers} callers: {took:.2f} ms a call, {took / alone:.2f}x")


def _audio(rows: int, dtype: Any) -> list[Array]:
    rng = np.random.default_rng(0)
    numbers = rng.integers(-3000, 3000, (rows, SAMPLES)).astype(np.int16)
    return list(numbers if dtype == np.int16 else (numbers / 32768).astype(np.float32))


def _time_filling(queue: CudaQueue, audio: dict[Any, list[Array]]) -> None:
    for count in range(4):
        start = time.perf_counter()
        block = queue.empty((len(audio[np.int16]), PADDED), np.float32)
        print(f"pinned block {count + 1}: {(time.perf_counter() - start) * 1e6:.0f} us", flush=True)
    narrow = queue.empty(block.shape, np.int16)
    for given, into in ((np.float32, block), (np.int16, block), (np.int16, narrow)):
        for threads in (0, 1, 2, 4, 8):
            took = []
            for _ in range(7):
                start = time.perf_counter()
                if threads:
                    filling._fill_compiled(into, audio[given], threads)
                else:
                    for row, each in zip(into, audio[given], strict=True):
                        row[: len(each)] = each
                        row[len(each) :] = 0
                took.append(time.perf_counter() - start)
            best = sorted(took)[3]
            print(
                f"fill {np.dtype(given)} -> {into.dtype}, {threads or 'numpy'} threads: {best * 1e3:.2f} ms, "
                f"{into.nbytes / best / 1e9:.1f} GB/s written",
                flush=True,
            )


def _time_call_alone(queue: CudaQueue, repeats: int = 200) -> None:
    """Microseconds of the parts of a call, medians, with a network of a millisecond and one thread."""
    network = _Network(queue, 1.0, 1)
    for rows, samples, dtype in ((1, 160_000, np.int16), (1, 32_320, np.float32), (8, 267_200, np.float32)):
        waveforms = [np.ones(samples, dtype)] * rows
        alone = network.alone(waveforms) * 1e3
        for feeding in ("ahead", "direct"):
            for waiting in ("asleep", "driver", "looking"):
                times = np.array([network.parts(waveforms, feeding, waiting) for _ in range(repeats)])
                parts = dict(
                    zip(("fill", "feed", "issue", "wait"), np.median(times[repeats // 4 :], axis=0) * 1e6, strict=True)
                )
                told = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
                print(
                    f"alone, {rows} x {samples / 16_000:g} s {np.dtype(dtype)}, fed {feeding}, waited {waiting}: "
                    f"{told}, together {sum(parts.values()):.0f} us; network {alone:.0f} us",
                    flush=True,
                )


class _Network:
    """Matrix products that take so many milliseconds, and the sum of each row."""

    def __init__(self, queue: CudaQueue, ms: float, rows: int) -> None:
        self._queue = queue
        self._replays = Replays(queue, record_after=1)
        with queue.turn():
            self._weights = torch.randn(WIDTH, WIDTH, device=queue.device, dtype=torch.bfloat16) / WIDTH**0.5
            self._value = torch.randn(WIDTH, WIDTH, device=queue.device, dtype=torch.bfloat16)
        self._layers = 1
        once = self._time(10)
        self._layers = max(1, round(ms / once))
        self._function = widening(self._compute, SPECS)

    def _compute(self, waveform: torch.Tensor) -> list[torch.Tensor]:
        sums = waveform.double().sum(dim=1)
        value = self._value
        for _ in range(self._layers):
            value = value @ self._weights
        return [sums + 0 * value[0, 0].double()]

    def _time(self, count: int) -> float:
        with self._queue.turn():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for index in range(count + 3):
                if index == 3:
                    start.record()
                _ = self._value @ self._weights
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / count

    def alone(self, waveforms: list[Array], count: int = 20) -> float:
        """Milliseconds of a replay on what is on the device already."""
        sent = self._queue.send([self._filled(waveforms)])
        with self._queue.turn():
            given = self._queue.received(sent)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for index in range(count + 3):
                if index == 3:
                    start.record()
                self._replays.run("network", self._function, given)
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / count

    def parts(self, waveforms: list[Array], feeding: str, waiting: str) -> list[float]:
        """Seconds of filling a block, feeding it, issuing the call, and waiting for its results."""
        marks = [time.perf_counter()]
        block = self._filled(waveforms)
        marks.append(time.perf_counter())
        sent = self._queue.send([block]) if feeding == "ahead" else None
        pinned = [self._queue.pinned(block)] if sent is None else []
        marks.append(time.perf_counter())
        seen = torch.cuda.Event()
        with self._queue.turn():
            given = pinned if sent is None else self._queue.received(sent)
            fetched = self._queue.fetch(self._replays.run("network", self._function, given))
            seen.record(self._queue.stream)
        marks.append(time.perf_counter())
        if waiting == "driver":
            seen.synchronize()
        while waiting == "looking" and not seen.query():
            time.sleep(0)
        (sums,) = fetched.wait()
        marks.append(time.perf_counter())
        expected = [each.astype(np.float64).sum() / (32768 if each.dtype == np.int16 else 1) for each in waveforms]
        if not np.allclose(sums, expected):
            raise SystemExit("wrong sums: the audio was not what was sent")
        return np.diff(marks).tolist()

    def measure(self, waveforms: list[Array], callers: int, repeats: int, *, staged: bool) -> float:
        """Milliseconds a call of so many callers at once."""
        expected = np.array([each.astype(np.float64).sum() for each in waveforms])
        if waveforms[0].dtype == np.int16:
            expected /= 32768

        def call(index: int) -> None:
            turned = waveforms[index % 7 :] + waveforms[: index % 7]
            block = self._filled(turned)
            if staged:
                sent = self._queue.send([block])
            else:
                pinned = self._queue.pinned(block)
            with torch.inference_mode(), self._queue.turn():
                given = self._queue.received(sent) if staged else [pinned]
                fetched = self._queue.fetch(self._replays.run("network", self._function, given))
            (sums,) = fetched.wait()
            if not np.allclose(np.roll(sums, index % 7), expected, rtol=1e-9, atol=1e-6):
                raise SystemExit(f"call {index}: wrong sums: the audio was not what was sent")

        with ThreadPoolExecutor(callers) as pool:
            list(pool.map(call, range(6)))
            start = time.perf_counter()
            list(pool.map(call, range(repeats)))
            return (time.perf_counter() - start) / repeats * 1000

    def _filled(self, waveforms: list[Array]) -> Array:
        longest = max(map(len, waveforms))
        block = self._queue.empty((len(waveforms), PADDED if longest == SAMPLES else longest), waveforms[0].dtype)
        filling.fill_rows(block, waveforms)
        return block


if __name__ == "__main__":
    main()
