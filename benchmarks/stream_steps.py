"""A step of many live streams: what the host does for it, and what it takes as a whole.

    python -m benchmarks.stream_steps                                        # a network that takes no time
    python -m benchmarks.stream_steps --bundle DIR --device cuda --network   # the whole step on a GPU

    streams, chunk by chunk  ->  `StreamingPipeline.advance`, and around it the model that Triton runs

With `--network` times are by the clock; without, they are CPU time of the one thread that does it all, so that other
work on the machine matters little. Triton's own objects are played: what they cost is not in these figures.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tritone.bundle import Bundle
from tritone.pipelines import Step, StreamingPipeline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime.graph import Array, TensorSpec
from tritone.runtime.slots import state_shape

ROWS = (1, 32, 256)
TOKENS = 2.5  # that a step finds, as in speech with tokens of three letters
WARM_UP, REPEATS = 4, 30
DISTINCT = 32  # outputs of the played network
START = 1


class InstantSlots:
    """In place of a network with its states: greedy tokens at random, at once."""

    def __init__(self, bundle: Bundle, rows: int, tokens: float) -> None:
        """Take the most rows of a step, and how many tokens each finds, on average."""
        streaming = bundle.manifest.streaming
        assert streaming is not None
        size, rng = (rows, streaming.chunk_size), np.random.default_rng(0)
        self._frames = streaming.chunk_size
        said = rng.random((DISTINCT, *size)) < tokens / self._frames
        self._ids = np.where(said, rng.integers(3, len(bundle.vocabulary), said.shape), 0)
        self._scores = -rng.exponential(0.1, said.shape).astype(np.float32)
        self._steps = 0

    def clear(self, slot: int) -> None: ...

    def release(self, slot: int) -> None: ...

    def reserve(self, count: int) -> None: ...

    def room(self, count: int, inputs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        return {name: np.empty((count, *state_shape(each)), each.dtype) for name, each in inputs.items()}

    def start(self, slots: Sequence[int], _: Any, outputs: Sequence[str], *__: int) -> Callable[[], list[Array]]:
        step, count = self._steps % DISTINCT, len(slots)
        self._steps += 1
        found = {
            "best_tokens": self._ids[step, :count],
            "best_log_probs": self._scores[step, :count],
            "num_frames": np.full(count, self._frames),
        }
        return lambda: [found[name] for name in outputs]


class Tensor:
    """Stands in for Triton's tensor."""

    def __init__(self, name: str, values: Array) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._values


class Request:
    """Stands in for Triton's request: a chunk of a stream."""

    def __init__(self, stream: int, samples: Array, flags: int) -> None:
        self._stream, self._flags = stream, flags
        lengths = np.array([[samples.shape[-1]]], np.int32)
        self._inputs = [Tensor("PCM" if samples.dtype == np.int16 else "WAV", samples), Tensor("WAV_LENS", lengths)]

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def parameters(self) -> str:
        return ""

    def requested_output_names(self) -> list[str]:
        return ["TRANSCRIPTS"]

    def correlation_id(self) -> int:
        return self._stream

    def request_id(self) -> str:
        return ""

    def flags(self) -> int:
        return self._flags

    def is_cancelled(self) -> bool:
        return False


def served(pipeline: StreamingPipeline) -> Any:
    """The model that Triton runs, around a pipeline; Triton's module is played."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor, module.TritonError = Tensor, RuntimeError
    module.InferenceResponse = lambda output_tensors=(), error=None: output_tensors
    module.Logger = SimpleNamespace(log_error=print, log_warn=lambda _: None, log_info=print)
    sys.modules[module.__name__] = module
    from tritone.backend.metrics import Metrics
    from tritone.backend.settings import Settings
    from tritone.backend.streaming import TritonPythonModel
    from tritone.backend.streams import StreamTable
    from tritone.kinds import kind_of

    model: Any = TritonPythonModel()
    model._settings = Settings(sample_rate=pipeline.sample_rate)
    model._kind, model._pipeline, model._outcomes = kind_of(pipeline.bundle), pipeline, []
    model._streams = StreamTable(model._open, model._close, capacity=pipeline.capacity, idle_timeout_s=600)
    model._metrics = Metrics(
        {"model_name": "", "model_version": "", "model_instance_name": ""}, slots=pipeline.capacity
    )
    return model


def measured(step: Callable[[int], object], clock: Callable[[], float]) -> float:
    """The median time of a step, in milliseconds."""
    times = []
    for number in range(WARM_UP + REPEATS):
        start = clock()
        step(number)
        times.append(1000 * (clock() - start))
    return median(times[WARM_UP:])


def rows_of(pipeline: StreamingPipeline, rows: int, pcm: bool, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of a step of so many streams: with details, with text alone, and with the model around it."""
    rng = np.random.default_rng(rows)
    chunks: list[Any] = [rng.normal(0, 0.1, pipeline.geometry.shift_samples).astype(np.float32) for _ in range(8)]
    if pcm:
        chunks = [(each * 32768).astype(np.int16) for each in chunks]
    found = {}
    for details in (True, False):
        slots = [pipeline.open() for _ in range(rows)]

        def advance(number: int, slots: Sequence[int] = slots, details: bool = details) -> None:
            pipeline.advance([Step(each, chunks[(each + number) % 8], False, details) for each in slots])

        found["details" if details else "text"] = measured(advance, clock)
        for slot in slots:
            pipeline.close(slot)
    model = served(pipeline)
    requests = {
        flags: [
            [Request(1 + row, chunks[(row + number) % 8][None], flags) for row in range(rows)] for number in range(8)
        ]
        for flags in (START, 0)
    }
    found["served"] = measured(lambda number: model.execute(requests[0 if number else START][number % 8]), clock)
    for stream in range(rows):
        model._streams.close(1 + stream)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a step of many streams.")
    parser.add_argument("--bundle", default="demo-asr")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", action="store_true", help="run the bundle's network, and time by the clock")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="streams of a step")
    parser.add_argument("--max-batch", type=int, default=0, help="rows of a call; as many as there are by default")
    parser.add_argument("--tokens", type=float, default=TOKENS, help="that a step of a played network finds")
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    given = parser.parse_args()
    bundle, most = Bundle.open(given.bundle), max(given.rows)
    pipeline = open_streaming(
        bundle,
        placement=Placement(device=given.device, threads=None if given.network else 1),  # more would work uncounted
        capacity=2 * most,
        max_batch=given.max_batch or most,
    )
    if given.network:
        pipeline.warm_up()
    else:
        searching: Any = pipeline.searching
        searching._has_best = True
        pipeline._slots = InstantSlots(bundle, most, given.tokens)  # type: ignore[assignment]  # all that is used of them
    clock = time.perf_counter if given.network else time.thread_time
    print("streams  audio  ms a step, and us a row: with details, text alone, as a model of Triton", flush=True)
    for rows in given.rows:
        for pcm in (False, True):
            row = rows_of(pipeline, rows, pcm, clock)
            kind = "int16" if pcm else "float"
            told = "   ".join(f"{name} {ms:.3f} ({1000 * ms / rows:.1f})" for name, ms in row.items())
            print(f"{rows:7d}  {kind}  {told}", flush=True)
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"rows": rows, "pcm": pcm, "max_batch": pipeline.max_batch, **row}) + "\n")


if __name__ == "__main__":
    main()
