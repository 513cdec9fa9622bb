"""What a served request costs the interpreter: requests of ten seconds through the backend, with a network of no time.

    python -m benchmarks.host [--batch 64] [--words 30]

Triton's module is played, its serialisation of text included. Printed are microseconds a request: reading it, the
pipeline (planning, filling the block, search, text) and answering; with and without DETAILS, float32 and int16. Times
are those of the thread that serves: threads that help to fill blocks are not in them.
"""

import argparse
import importlib
import statistics
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tritone.backend.settings import Settings
from tritone.bundle import Bundle, manifest
from tritone.bundle.vocabulary import Vocabulary
from tritone.kinds.ctc.kind import KIND as CTC
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.offline import OfflinePipeline
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array, Bucket

SAMPLE_RATE = 16_000
SECONDS = 10.0
FRAMES = 250
VOCAB = 5000
REPEATS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--words", type=int, default=30, help="in each utterance, as said in ten seconds")
    arguments = parser.parse_args()
    print(f"{arguments.batch} requests of {SECONDS:g} s, {arguments.words} words; microseconds a request")
    print(f"{'':28} {'read':>7} {'pipeline':>9} {'of it fill':>11} {'answer':>7} {'all':>7}")
    for wanted in ({"TRANSCRIPTS"}, {"TRANSCRIPTS", "DETAILS"}):
        for name in ("WAV", "PCM"):
            took = measure(arguments.batch, arguments.words, name, wanted)
            print(f"{name + ' -> ' + ', '.join(sorted(wanted)):28} " + " ".join(took), flush=True)


def measure(batch: int, words: int, name: str, wanted: set[str]) -> list[str]:
    """The columns of a row."""
    model = open_model(words)
    pipeline = model._pipeline
    spent: dict[str, list[float]] = {}
    timed(pipeline.runner.blocks, "fill", spent)
    for method in ("parse", "run", "answer", "execute"):
        timed(model, method, spent)
    for _ in range(REPEATS):
        requests = [PlayedRequest(name, wanted) for _ in range(batch)]
        answers = model.execute(requests)
        assert len(answers) == batch
        assert not any(answer.error for answer in answers), answers[0].error
    batches = {
        method: statistics.median(sums(each, len(each) // REPEATS)) / batch * 1e6 for method, each in spent.items()
    }
    return [
        f"{batches[key]:{width}.1f}"
        for key, width in zip(("parse", "run", "fill", "answer", "execute"), (7, 9, 11, 7, 7), strict=True)
    ]


def open_model(words: int) -> Any:
    """A model of the backend as `initialize` leaves it, on a pipeline whose network takes no time."""
    sys.modules["triton_python_backend_utils"] = played()
    model = importlib.import_module("tritone.backend.offline").TritonPythonModel()
    model._settings, model._kind = Settings(sample_rate=SAMPLE_RATE), CTC
    model._pipeline = open_pipeline(words, widens=True)
    metrics = importlib.import_module("tritone.backend.metrics").Metrics
    model._metrics = metrics({"model_name": "m", "model_version": "1"})
    return model


def sums(values: Sequence[float], size: int) -> list[float]:
    """Sums of each `size` values, without the first group, which warms up."""
    return [sum(values[first : first + size]) for first in range(size, len(values), size)]


def timed(owner: Any, name: str, spent: dict[str, list[float]]) -> None:
    """Have the calls of a method timed."""
    function, times = getattr(owner, name), spent.setdefault(name, [])

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()  # of this thread: what others on a busy machine take is no cost of ours
        result = function(*args, **kwargs)
        times.append(time.thread_time() - start)
        return result

    setattr(owner, name, call)


def open_pipeline(words: int, *, widens: bool) -> OfflinePipeline:
    """A pipeline of a model with thousands of pieces, whose network takes no time."""
    bundle = Bundle.open("demo-asr")
    settings = manifest.Vocabulary(size=VOCAB, units="bpe", blank_id=0, unk_id=1)
    tokens = ["<blank>", "<unk>", *(f"▁w{id:x}" if id % 4 else f"e{id:x}" for id in range(2, VOCAB))]
    bundle.__dict__["vocabulary"] = Vocabulary(tokens, settings)
    pipeline = OfflinePipeline(bundle, limits=BatchLimits())
    pipeline.runner.graph = Instant(pipeline.runner.graph, words, widens=widens)  # type: ignore[assignment]
    pipeline.runner.crew = Crew(1)
    pipeline.searching._has_best = True  # type: ignore[attr-defined]
    return pipeline


class Instant:
    """A graph that has its answer ready: so many words, a piece and a third each, in each row."""

    def __init__(self, graph: Any, words: int, *, widens: bool) -> None:
        self.inputs, self.outputs, self.concurrency, self.widens = graph.inputs, graph.outputs, 1, widens
        self.buckets: Sequence[Bucket] = ()
        rng = np.random.default_rng(0)
        pieces = rng.integers(2, VOCAB, round(words * 4 / 3))
        self._row = np.zeros(FRAMES, np.int64)
        self._row[np.sort(rng.choice(FRAMES, len(pieces), replace=False))] = pieces
        self._blocks: dict[tuple[Any, ...], Array] = {}

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        rows = len(inputs["num_samples"])
        given: dict[str, Array] = {
            "best_tokens": np.tile(self._row, (rows, 1)),
            "best_log_probs": np.full((rows, FRAMES), -0.1, np.float32),
            "num_frames": np.full(rows, FRAMES),
        }
        return [given[name] for name in outputs]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Pinned memory is kept for the next call."""
        return self._blocks.setdefault((shape, dtype), np.empty(shape, dtype))

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        return self.buckets

    def give_back(self, inputs: Mapping[str, Array]) -> None: ...


class PlayedTensor:
    """Triton's tensor: text is written one string after the other, as its module does."""

    def __init__(self, name: str, values: Array) -> None:
        self._name, self._values = name, values
        if values.dtype == object:
            self.serialized = serialize(values)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._values


def serialize(values: Array) -> bytes:
    """As in triton_python_backend_utils.py."""
    flattened = []
    for item in np.nditer(values, flags=["refs_ok"], order="C"):
        text = item.item()  # type: ignore[attr-defined]
        flattened += [struct.pack("<I", len(text)), text]
    return b"".join(flattened)


class PlayedRequest:
    """Ten seconds of audio."""

    def __init__(self, name: str, wanted: set[str]) -> None:
        samples = int(SECONDS * SAMPLE_RATE)
        wav = np.zeros((1, samples), np.float32 if name == "WAV" else np.int16)
        self._inputs = [PlayedTensor(name, wav), PlayedTensor("WAV_LENS", np.array([[samples]], np.int32))]
        self._wanted = wanted

    def inputs(self) -> list[PlayedTensor]:
        return self._inputs

    def parameters(self) -> str:
        return "{}"

    def is_cancelled(self) -> bool:
        return False

    def requested_output_names(self) -> set[str]:
        return self._wanted


def played() -> ModuleType:
    """Triton's module."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor = PlayedTensor
    module.TritonError = lambda message, code: (code, message)
    module.TritonError.INTERNAL = module.TritonError.INVALID_ARG = module.TritonError.UNAVAILABLE = 0
    module.Logger = SimpleNamespace(log_error=print, log_warn=lambda _: None, log_info=lambda _: None)
    module.InferenceResponse = lambda output_tensors=(), error=None: SimpleNamespace(
        output_tensors=output_tensors, error=error
    )
    return module


if __name__ == "__main__":
    main()
