"""The pipeline in process: waveforms to texts or embeddings, without a server.

bundle, rows, seconds  ->  utterances a second of some callers, or milliseconds a batch of one
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.audio import workload
from tritone.audio.waveform import Samples, Waveform
from tritone.bundle import Bundle
from tritone.kinds import kind_of
from tritone.pipelines import EmbeddingPipeline, Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.search.options import SearchOptions

WARM_UPS = 4
CALLERS = 2

Measure = Callable[[], dict[str, Any]]


def placement(device: str, precision: str) -> Placement:
    """Where and in which precision the torch program of a bundle runs."""
    return Placement(device=device, runtime="torch", precision=precision)


def prepare(
    bundle: str, device: str, precision: str, shapes: Sequence[Mapping[str, Any]], search: Mapping[str, Any]
) -> Callable[[float], list[dict[str, Any]]]:
    """Open and warm up a pipeline; the function measures it for so many seconds a shape.

    Args:
        shapes: `rows` and `seconds` of the batches, the `wire` (float32 or int16) that their audio has, and how many
            `callers` there are at once.
        search: as the parameters of a request.
    """
    opened = Bundle.open(bundle)
    where = placement(device, precision)
    call: Callable[[Sequence[Samples]], Sequence[Any]]
    if kind_of(opened).name == "embedding":
        embedding = EmbeddingPipeline(opened, placement=where)
        sample_rate, call = embedding.sample_rate, lambda batch: list(embedding.embed(batch))
        work = embedding.work
    else:
        settings = SearchSettings(options=SearchOptions().changed(search))
        pipeline = open_offline(opened, placement=where, search=settings)
        pipeline.searching.warm_up()
        sample_rate, call, work = pipeline.sample_rate, pipeline.recognize, pipeline.work
    batches = []
    for shape in shapes:
        pool = _in_wire(workload(f"{shape['seconds']:g}", sample_rate).waveforms, shape["wire"])
        batches.append([pool[index % len(pool)] for index in range(shape["rows"])])
    for batch in batches:
        for _ in range(WARM_UPS):
            found = call(batch)

    def measure(seconds: float) -> list[dict[str, Any]]:
        rows = []
        for shape, batch in zip(shapes, batches, strict=True):
            callers = shape.get("callers", 1)
            work.take()
            row = {**shape, **_measured(lambda: call(batch), len(batch), callers, seconds)}  # noqa: B023
            done, each_ms = work.take(), 1000 / row["batches"]
            row |= {"network_ms": each_ms * done.network_s, "search_ms": each_ms * done.search_s}
            rows.append(row)
        if rows and found is not None and hasattr(found[0], "text"):
            rows[-1]["words"] = float(np.mean([len(each.text.split()) for each in found]))
        return rows

    return measure


def _in_wire(waveforms: Sequence[Waveform], wire: str) -> Sequence[Samples]:
    if wire == "float32":
        return waveforms
    return [(32768 * each).clip(-32768, 32767).astype(np.int16) for each in waveforms]


def _measured(call: Callable[[], object], rows: int, callers: int, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)

    start = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(callers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wall_s = time.perf_counter() - start
    return {"utterances_s": len(times) * rows / wall_s, "batch_ms": 1000 * median(times), "batches": len(times)}


def prepare_streams(bundle: str, device: str, precision: str, streams: int) -> Callable[[float], list[dict[str, Any]]]:
    """Open a pipeline with so many streams; the function measures steps of all of them.

    First as streams are served that ask for nothing, with text alone and 16-bit audio, then with words, times and
    float32 audio.
    """
    opened = Bundle.open(bundle)
    pipeline = open_streaming(
        opened, placement=placement(device, precision), capacity=streams, max_batch=min(streams, 512)
    )
    shift = pipeline.geometry.shift_samples
    floats = workload("10", pipeline.sample_rate).waveforms

    def measured(details: bool, wire: str, seconds: float) -> dict[str, Any]:
        pool, positions = _in_wire(floats, wire), itertools.count()
        slots = [pipeline.open() for _ in range(streams)]

        def advance() -> None:
            position, steps = next(positions), []
            for number, slot in enumerate(slots):
                waveform = pool[number % len(pool)]
                start = (position * shift + 997 * number) % (len(waveform) - shift)
                steps.append(Step(slot, waveform[start : start + shift], details=details))
            pipeline.advance(steps)

        for _ in range(WARM_UPS):
            advance()
        found = _measured(advance, streams, 1, seconds)
        for slot in slots:
            pipeline.close(slot)
        told = {"streams": streams, "details": details, "wire": wire, "step_ms": found["batch_ms"]}
        return told | {"real_time": found["utterances_s"] * shift / pipeline.sample_rate}

    def measure(seconds: float) -> list[dict[str, Any]]:
        return [measured(details, wire, seconds) for details, wire in ((False, "int16"), (True, "float32"))]

    pipeline.warm_up()
    return measure
