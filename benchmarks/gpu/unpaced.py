"""Streams that are not in real time: each sends a chunk as soon as the one before is answered, as WeNet measured them.

closed_streams(server, "wenet-256-bf16", 100, ...)  ->  answers a second, and what a chunk and the last one wait
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from benchmarks.gpu.audio import workload
from benchmarks.gpu.served import STREAM_TIMEOUT_S, Server, target_of
from tritone.client import AsyncClient
from tritone.errors import TritoneError

AUDIO = "10"  # seconds of a stream
STREAMS_OF_A_PROCESS = 8  # of the generator, which then is not what is measured
WARM_UP_S = 3.0  # in which the first streams end, too
READY_S = 60.0  # until every process of the generator is
Answered = tuple[float, float, bool]  # when, after how many seconds, whether the stream ended with it
Played = tuple[list[Answered], Counter[str], float]  # answers of the measured time, all errors, cores in use


def closed_streams(
    server: Server, model: str, streams: int, chunk_ms: float, seconds: float, wire: str = "float32"
) -> dict[str, Any]:
    """So many streams, each with one chunk on its way at any time; a stream that ends is followed by another."""
    target = target_of(server, model, wire, streaming=True)
    as_int16 = bool(getattr(target, "pcm", False))
    processes = min(max(1, len(os.sched_getaffinity(0)) // 2), -(-streams // STREAMS_OF_A_PROCESS))
    shares = [
        (server.grpc, model, streams // processes + (index < streams % processes), index, chunk_ms, as_int16, seconds)
        for index in range(processes)
    ]
    spawn = get_context("spawn")
    together = spawn.Barrier(processes)
    with ProcessPoolExecutor(processes, spawn, initializer=_begin_together, initargs=(together,)) as pool:
        played = list(pool.map(_play, shares))
    answered = [each for found, _, _ in played for each in found]
    errors = sum((counted for _, counted, _ in played), Counter[str]())
    waits = 1000 * np.array([wait for _, wait, _ in answered])
    finals = 1000 * np.array([wait for _, wait, is_last in answered if is_last])
    row: dict[str, Any] = {
        "model": model,
        "load": streams,
        "streams": streams,
        "paced": False,
        "audio": AUDIO,
        "wire": "int16" if as_int16 else "float32",
        "requests": len(answered),
        "errors": dict(errors),
        "answers_s": len(answered) / seconds,
        "rtfx": len(answered) / seconds * chunk_ms / 1000,
        "generator_cores": sum(cores for *_, cores in played),
        "generator_processes": processes,
        "notes": [],
    }
    if len(waits):
        p50, p95, p99 = np.percentile(waits, (50, 95, 99)).tolist()
        row |= {"mean_ms": float(waits.mean()), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
    if len(finals):
        row["final_p95_ms"] = float(np.percentile(finals, 95))
    return row


_together: Barrier | None = None  # of a process of the generator


def _begin_together(barrier: Barrier) -> None:
    global _together  # a barrier cannot be an argument of a task
    _together = barrier


def _play(share: tuple[str, str, int, int, float, bool, float]) -> Played:
    return asyncio.run(_play_all(*share))


async def _play_all(
    grpc: str, model: str, streams: int, index: int, chunk_ms: float, as_int16: bool, seconds: float
) -> Played:
    answered: list[Answered] = []
    errors: Counter[str] = Counter()
    async with AsyncClient(f"grpc://{grpc}", timeout_s=STREAM_TIMEOUT_S) as client:
        rate = (await client.model(model, kind="streaming")).sample_rate
        waveforms: Sequence[Any] = workload(AUDIO, rate, seed=index).waveforms
        if as_int16:
            waveforms = [(32767 * np.clip(each, -1, 1)).astype(np.int16) for each in waveforms]
        size = round(rate * chunk_ms / 1000)
        assert _together is not None
        await asyncio.to_thread(_together.wait, READY_S)
        spent_s = time.process_time()
        begin = time.time() + WARM_UP_S
        end = begin + seconds

        async def speak(number: int) -> None:
            while time.time() < end:
                number += streams
                waveform = waveforms[number % len(waveforms)]
                chunks = [waveform[start : start + size] for start in range(0, len(waveform), size)]
                try:
                    async with await client.stream(model, chunk_ms=chunk_ms) as stream:
                        for chunk in chunks[:-1]:
                            sent = time.time()
                            await stream.accept(chunk)
                            answered.append((time.time(), time.time() - sent, False))
                        sent = time.time()
                        await stream.accept(chunks[-1])  # is less than a chunk, and goes with the end
                        await stream.finish()
                        answered.append((time.time(), time.time() - sent, True))
                except TritoneError as error:
                    errors[f"{type(error).__name__}: {error}"[:200]] += 1

        await asyncio.gather(*(speak(number) for number in range(streams)))
        cores = (time.process_time() - spent_s) / (time.time() - begin + WARM_UP_S)
    return [each for each in answered if begin <= each[0] < end], errors, cores
