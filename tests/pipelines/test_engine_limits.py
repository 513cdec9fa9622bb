"""Engines take some sizes and no others, which pipelines keep to; they are opened only where they were built for."""

import ctypes
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from serving import backend_module
from toy import CHUNK, FRAME, MIN_SAMPLES, SAMPLE_RATE, WINDOW, toy_waveform, write_toy_bundle
from toy_speaker import toy_embedding, toy_voice, write_toy_speaker
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Engine, Manifest
from tritone.errors import BundleError, InputError, OperatorError
from tritone.kinds.ctc.kind import KIND as CTC
from tritone.pipelines import EmbeddingPipeline, EmbedOptions, open_offline, open_streaming
from tritone.pipelines.graphs import choice
from tritone.pipelines.graphs.choice import choose
from tritone.pipelines.graphs.geometry import Geometry
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.rescoring import Candidate, Rescorer
from tritone.pipelines.streaming import Step
from tritone.runtime import obstacle, open_graph
from tritone.runtime.cuda import tensorrt as tensorrt_library
from tritone.runtime.cuda.tensorrt import Gpu, Library
from tritone.runtime.graph import Array, Bucket, Graph, TensorSpec
from tritone.runtime.slots import HostSlots
from tritone.runtime.tensorrt import graph as tensorrt
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions

STAMP = Engine(
    library="tensorrt", version="10.13.3.9", gpu="NVIDIA A", compute_capability="9.0", profiles=("1x1s 2x2s 4x4s",)
)
Limits = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


class LimitedGraph:
    """A graph that has the limits of an engine, and tells of every call."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        self._graph = graph
        self.inputs = {
            name: replace(spec, least=limits[name][0], most=limits[name][1]) if name in limits else spec
            for name, spec in graph.inputs.items()
        }
        self.outputs = graph.outputs
        self.concurrency = 1
        self.widens = False
        self.calls: list[dict[str, tuple[int, ...]]] = []

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        self.calls.append({name: value.shape for name, value in inputs.items()})
        for name, value in inputs.items():
            spec = self.inputs[name]
            for size, low, high in zip(value.shape, spec.least, spec.most, strict=False):
                assert low <= size <= high, f"{name}: {value.shape} is not within {spec}"
        return self._graph(inputs, outputs)

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        return ()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._graph.empty(shape, dtype)

    def slots(self, states: Mapping[str, TensorSpec], capacity: int) -> HostSlots:
        return HostSlots(self, states, capacity)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens graphs with limits, by the role in their file's name; returns what was opened."""
    limits: dict[str, Limits] = {}
    opened: dict[str, LimitedGraph] = {}

    def opening(path: Path, *args: Any, **options: Any) -> LimitedGraph:
        opened[path.stem] = LimitedGraph(open_graph(path, *args, **options), limits.get(path.stem, {}))
        return opened[path.stem]

    monkeypatch.setattr(choice, "open_graph", opening)
    return SimpleNamespace(limits=limits, opened=opened)


ENCODER: Limits = {"waveform": ((1, SAMPLE_RATE), (3, 2 * SAMPLE_RATE)), "num_samples": ((1,), (3,))}
TEXTS = ["a", "hello", "", "one two three", "xyz", "k9", "seven", "the end"]


def test_batches_are_cut_and_padded_to_what_an_engine_takes(toy_bundle: Path, limited: Any) -> None:
    waveforms = [toy_waveform(text) for text in TEXTS if text]
    expected = [each.text for each in open_offline(Bundle.open(toy_bundle)).recognize(waveforms)]
    assert expected == [text for text in TEXTS if text]
    limited.limits["encoder"] = ENCODER
    pipeline = open_offline(Bundle.open(toy_bundle))
    assert (pipeline.max_audio_s, pipeline.runner.limits.max_batch) == (2.0, 3)
    assert [each.text for each in pipeline.recognize(waveforms)] == expected
    shapes = [call["waveform"] for call in limited.opened["encoder"].calls]
    assert sum(rows for rows, _ in shapes) == len(waveforms)
    assert min(samples for _, samples in shapes) == SAMPLE_RATE, "short audio is padded to the least"
    pipeline.warm_up()


def test_audio_beyond_an_engine_is_refused_with_its_limit(toy_bundle: Path, limited: Any) -> None:
    limited.limits["encoder"] = ENCODER
    pipeline = open_offline(Bundle.open(toy_bundle), max_audio_s=300.0)
    fitting = np.zeros(2 * SAMPLE_RATE, np.float32)
    assert len(pipeline.recognize([fitting])) == 1
    for call in (
        pipeline.recognize,
        lambda given: pipeline.check(given[0]),
        lambda given: pipeline.log_probs(given[0]),
    ):
        with pytest.raises(InputError, match=r"2\.500 s long, and the engine .* built for up to 2 s.*--max"):
            call([np.zeros(5 * SAMPLE_RATE // 2, np.float32)])
    assert max(samples for _, samples in (each["waveform"] for each in limited.opened["encoder"].calls)) <= len(fitting)


def test_an_engine_embeds_long_audio_in_windows_and_refuses_it_whole(tmp_path: Path, limited: Any) -> None:
    limited.limits["encoder"] = ENCODER
    pipeline = EmbeddingPipeline(Bundle.open(write_toy_speaker(tmp_path / "speaker")))
    wave = toy_voice([1, 2, 3], 5 * SAMPLE_RATE // 2)
    with pytest.raises(InputError, match=r"input 0: the audio is 2\.500 s long, and the engine .* up to 2 s"):
        pipeline.embed([wave])
    options = EmbedOptions(window_s=1.0, shift_s=0.5)
    (found,) = pipeline.embed([wave], [options])
    by_hand = [toy_embedding(wave[start : start + SAMPLE_RATE]) for start in range(0, 24001, 8000)]
    np.testing.assert_allclose(found, np.mean(by_hand, axis=0), atol=1e-5)
    assert {each["waveform"][0] for each in limited.opened["encoder"].calls} == {3, 1}, "four windows, three in a call"
    with pytest.raises(InputError, match=r"window_s is 2\.1, but the engine .* at most 2 s at once"):
        pipeline.embed([wave], [EmbedOptions(window_s=2.1)])


def test_where_padding_is_heard_an_engine_embeds_nothing_below_its_least(tmp_path: Path, limited: Any) -> None:
    limited.limits["encoder"] = ENCODER
    short = toy_voice([1, 2, 3], 1000)
    padded = EmbeddingPipeline(Bundle.open(write_toy_speaker(tmp_path / "masks")))
    np.testing.assert_allclose(padded.embed([short])[0], toy_embedding(short), atol=1e-5)
    heard = EmbeddingPipeline(Bundle.open(write_toy_speaker(tmp_path / "hears", equal_lengths=True)))
    with pytest.raises(InputError, match=r"needs at least 1\.000 s"):
        heard.embed([short])


@pytest.fixture
def served() -> Iterator[Any]:
    """The model that Triton runs, without Triton."""
    with backend_module("offline") as module:
        yield module.TritonPythonModel()


def test_a_request_beyond_an_engine_is_refused_before_it_shares_a_batch(
    toy_bundle: Path, limited: Any, served: Any
) -> None:
    limited.limits["encoder"] = ENCODER
    model = served
    model._pipeline = open_offline(Bundle.open(toy_bundle))
    model._settings = SimpleNamespace(sample_rate=SAMPLE_RATE, max_audio_s=120.0)
    model._kind = CTC

    def request(seconds: float) -> Any:
        samples = int(seconds * SAMPLE_RATE)
        tensors = {"WAV": np.zeros((1, samples), np.float32), "WAV_LENS": np.array([[samples]], np.int32)}
        inputs = [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda value=value: value)
            for name, value in tensors.items()
        ]
        return SimpleNamespace(inputs=lambda: inputs, parameters=lambda: "{}", requested_output_names=lambda: [])

    short, long = model.run([model.parse(request(2.0)), model.parse(request(3.0))])
    assert len(short) == 1
    assert re.search(r"3\.000 s long, and the engine .* up to 2 s", str(long))
    assert model._pipeline.work.take().calls == 1


def test_the_limit_of_a_pipeline_stays_where_an_engine_takes_more(toy_bundle: Path, limited: Any) -> None:
    limited.limits["encoder"] = ENCODER
    assert open_offline(Bundle.open(toy_bundle), max_audio_s=1.5).max_audio_s == 1.5


def test_streams_share_no_more_rows_than_an_engine_has(toy_bundle: Path, limited: Any) -> None:
    limited.limits["streaming_encoder"] = {"waveform": ((1, WINDOW), (2, WINDOW)), "level": ((1, 1), (2, 1))}
    pipeline = open_streaming(Bundle.open(toy_bundle), max_batch=64)
    assert pipeline.max_batch == 2
    texts = ["abc", "hello", "zebra", "nine", "x"]
    slots = [pipeline.open() for _ in texts]
    steps = [Step(slot, toy_waveform(text), final=True) for slot, text in zip(slots, texts, strict=True)]
    assert [each.text for each in pipeline.advance(steps)] == texts
    assert max(call["waveform"][0] for call in limited.opened["streaming_encoder"].calls) == 2


def flexible(left_chunks: int, chunk_size: int = CHUNK) -> tuple[Geometry, dict[str, TensorSpec]]:
    """Steps of a flexible model with one history of any length, and what its graph takes."""
    shape = (2, None if left_chunks < 0 else chunk_size * left_chunks)
    geometry = Geometry(
        chunk_size=chunk_size,
        left_chunks=left_chunks,
        window_samples=MIN_SAMPLES + (chunk_size - 1) * FRAME,
        shift_samples=chunk_size * FRAME,
        states={"cache": TensorSpec(np.dtype(np.float32), shape)},
        left_frames=None if left_chunks < 0 else chunk_size * left_chunks,
        max_history=1500 if left_chunks < 0 else chunk_size * left_chunks,
    )
    window = MIN_SAMPLES + (CHUNK - 1) * FRAME
    inputs = {
        "waveform": TensorSpec(np.dtype(np.float32), (None, None), (1, window), (16, window)),
        "cache": TensorSpec(np.dtype(np.float32), (None, 2, None), (1, 2, 12), (16, 2, 1500)),
    }
    return geometry, inputs


def test_an_engine_of_a_stream_is_for_the_steps_it_was_built_for() -> None:
    for left_chunks in (3, -1):
        geometry, inputs = flexible(left_chunks)
        assert geometry.within(inputs, 64) == 16
        assert geometry.within(inputs, 4) == 4
        free = {name: TensorSpec(spec.dtype, spec.shape) for name, spec in inputs.items()}
        assert geometry.within(free, 64) == 64
    for left_chunks, chunk_size, what in ((3, 8, "windows of samples"), (2, CHUNK, "past frames from 12 to 1500")):
        geometry, inputs = flexible(left_chunks, chunk_size)
        with pytest.raises(BundleError, match=rf"the engine takes {what}.*chunk_size {chunk_size} .*another runtime"):
            geometry.within(inputs, 64)


def candidate(frames: int, hypotheses: int) -> Candidate:
    nbest = [Hypothesis((), -float(place)) for place in range(hypotheses)]
    return Candidate(np.zeros((frames, 1), np.float32), nbest, SearchOptions(mode="rescoring"))


def test_rescoring_keeps_to_an_engine_of_the_decoder(tmp_path: Path, limited: Any) -> None:
    limited.limits["decoder"] = {
        "encoder_out": ((1, 1, 1), (8, 50, 1)),
        "hypotheses": ((1, 1, 1), (8, 4, 50)),
        "num_tokens": ((1, 1), (8, 4)),
    }
    rescorer = Rescorer(Bundle.open(write_toy_bundle(tmp_path / "b", decoder=True)))
    found = rescorer([candidate(20, 10), candidate(50, 3)])
    assert [len(each) for each in found] == [10, 3]
    assert max(call["hypotheses"][1] for call in limited.opened["decoder"].calls) <= 4
    with pytest.raises(InputError, match=r"51 encoder frames, and the engine of the decoder was built for up to 50"):
        rescorer([candidate(51, 1)])


def test_segments_that_will_be_rescored_end_before_the_decoder_has_no_room(tmp_path: Path, limited: Any) -> None:
    limited.limits["decoder"] = {"encoder_out": ((1, 1, 1), (8, 20, 1)), "hypotheses": ((1, 1, 1), (8, 10, 20))}
    pipeline = open_streaming(Bundle.open(write_toy_bundle(tmp_path / "b", decoder=True)))
    assert pipeline.searching.max_rescored_s == pytest.approx(20 * 0.04)
    slot = pipeline.open(SearchOptions(mode="rescoring"))
    transcript = pipeline.advance([Step(slot, toy_waveform("abcdefghij" * 6), final=True)])[0]
    assert len(transcript.ended) >= 3
    assert max(call["encoder_out"][1] for call in limited.opened["decoder"].calls) <= 20


@pytest.fixture
def with_engine(toy_bundle: Path) -> Bundle:
    """The toy, whose manifest names an engine first."""
    bundle = Bundle.open(toy_bundle)
    engine = bundle.manifest.artifacts[0].model_copy(update={"runtime": "tensorrt", "engine": STAMP})
    manifest: Manifest = bundle.manifest.model_copy(update={"artifacts": (engine, *bundle.manifest.artifacts)})
    return Bundle(bundle.path, manifest)


def test_an_engine_runs_only_where_it_was_asked_for(with_engine: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(with_engine, "encoder").runtime == "onnxruntime"
    monkeypatch.setattr(choice, "obstacle", lambda runtime, device: None)
    assert choose(with_engine, "encoder", Placement(device="cuda")).runtime == "onnxruntime", "a plan is code"
    assert choose(with_engine, "encoder", Placement(device="cuda", runtime="tensorrt")).runtime == "tensorrt"


def test_without_a_gpu_or_tensorrt_engines_say_why_they_cannot_run(
    with_engine: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OperatorError, match=r"runtime tensorrt: it runs on NVIDIA GPUs alone: device cuda"):
        choose(with_engine, "encoder", Placement(runtime="tensorrt"))
    monkeypatch.setattr(tensorrt_library, "installed", lambda: ())
    assert "TensorRT is not installed: pip install tensorrt" in str(obstacle("tensorrt", "cuda"))
    monkeypatch.setattr(tensorrt_library, "installed", lambda: ("tensorrt",))
    if not torch.cuda.is_available():
        assert "torch" in str(obstacle("tensorrt", "cuda"))


def test_what_asks_for_an_engine_where_there_is_none_is_told_the_command(toy_bundle: Path) -> None:
    with pytest.raises(
        BundleError, match=r"no graph for encoder \(tensorrt, fp16\).*`tritone engine .* --precision fp16`"
    ):
        Bundle.open(toy_bundle).artifacts("encoder", "tensorrt", "fp16")


# What follows stands in for TensorRT and a GPU, neither of which is here: a library that computes on the CPU with the
# addresses that it is given.


@dataclass
class FakeContext:
    engine: "FakeEngine"
    profile: int = 0

    def __post_init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))
        assert fits, f"{name} {shape} in profile {self.profile}"
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address
        self.addresses[name] = address
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes["x"] if name == "doubled" else self.shapes["x"][:1]

    def execute_async_v3(self, stream: int) -> bool:
        self.engine.calls.append((self.profile, self.shapes["x"]))
        x = self._array("x", np.float32, self.shapes["x"])
        self._array("doubled", np.float32, x.shape)[:] = 2 * x
        self._array("counts", np.int64, x.shape[:1])[:] = self._array("n", np.int64, x.shape[:1]) + 1
        return True

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_byte * size).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)  # type: ignore[call-overload]


TENSORS = {"x": "FLOAT", "n": "INT64", "doubled": "FLOAT", "counts": "INT64"}


class FakeEngine:
    num_io_tensors = len(TENSORS)

    def __init__(self, profiles: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> None:
        self.profiles = profiles
        self.num_optimization_profiles = len(profiles)
        self.calls: list[tuple[int, tuple[int, ...]]] = []
        self.contexts = 0

    def get_tensor_name(self, place: int) -> str:
        return list(TENSORS)[place]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name in ("x", "n") else "out"

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=TENSORS[name])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (-1, -1) if TENSORS[name] == "FLOAT" else (-1,)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        least, most = self.profiles[profile]
        both = [least, least, most]
        return [tuple(each) for each in both] if name == "x" else [each[:1] for each in both]

    def create_execution_context(self) -> FakeContext:
        self.contexts += 1
        return FakeContext(self)


class FakeQueue:
    """Takes no time to copy from the CPU to the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._lock:
            yield

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.empty(shape, dtype)

    def pinned(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Any:
        return SimpleNamespace(wait=lambda: [tensor.numpy().copy() for tensor in tensors])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine that doubles, for 1 to 4 rows of up to 10 and for 1 to 2 rows of up to 100."""
    fake = FakeEngine([((1, 2), (4, 10)), ((1, 5), (2, 100))])
    logger = SimpleNamespace(Severity=SimpleNamespace(ERROR=1))
    module = SimpleNamespace(
        Logger=type("Logger", (), {"Severity": logger.Severity, "__init__": lambda self, severity: None}),
        Runtime=lambda log: SimpleNamespace(deserialize_cuda_engine=lambda plan: fake if plan == b"plan" else None),
        TensorIOMode=SimpleNamespace(INPUT="in"),
    )
    monkeypatch.setattr(tensorrt, "obstacle", lambda device: None)
    monkeypatch.setattr(tensorrt, "CudaQueue", FakeQueue)
    monkeypatch.setattr(tensorrt, "_place", lambda index: torch.device("cpu"))
    monkeypatch.setattr(tensorrt, "_gpu", lambda index: Gpu("NVIDIA A", "9.0"))
    monkeypatch.setattr(torch.cuda, "device", lambda place: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(tensorrt_library, "load_library", lambda name: Library(name, module, "10.13.3.9"))
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "encoder.plan").write_bytes(b"plan")
    return tmp_path / "encoder.plan"


def feed(rows: int, columns: int) -> dict[str, Array]:
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return {"x": x, "n": np.arange(rows, dtype=np.int64)}


def test_a_call_runs_in_the_first_profile_that_it_fits(engine: FakeEngine, plan: Path) -> None:
    graph = open_graph(plan, "cuda", engine=STAMP)
    assert graph.inputs["x"] == TensorSpec(np.dtype(np.float32), (None, None), (1, 2), (4, 100))
    assert graph.inputs["n"] == TensorSpec(np.dtype(np.int64), (None,), (1,), (4,))
    assert graph.outputs["counts"] == TensorSpec(np.dtype(np.int64), (None,))
    for rows, columns, profile in ((1, 2, 0), (4, 10, 0), (2, 7, 0), (2, 11, 1)):
        inputs = feed(rows, columns)
        counts, doubled = graph(inputs, ["counts", "doubled"])
        np.testing.assert_array_equal(doubled, 2 * inputs["x"])
        np.testing.assert_array_equal(counts, inputs["n"] + 1)
        assert engine.calls.pop() == (profile, (rows, columns))
    assert engine.contexts == 2, "one for each profile"


def test_more_rows_than_fit_are_computed_in_parts(engine: FakeEngine, plan: Path) -> None:
    graph = open_graph(plan, "cuda", engine=STAMP)
    for rows, columns, parts in ((9, 8, [(0, 4), (0, 4), (0, 1)]), (5, 50, [(1, 2), (1, 2), (1, 1)])):
        engine.calls.clear()
        inputs = feed(rows, columns)
        doubled, counts = graph(inputs, ["doubled", "counts"])
        np.testing.assert_array_equal(doubled, 2 * inputs["x"])
        np.testing.assert_array_equal(counts, inputs["n"] + 1)
        assert [(profile, shape[0]) for profile, shape in engine.calls] == parts


def test_what_no_profile_takes_is_refused_with_what_they_take(engine: FakeEngine, plan: Path) -> None:
    graph = open_graph(plan, "cuda", engine=STAMP)
    for columns in (1, 101):
        with pytest.raises(
            ValueError, match=rf"not built for .*x \[1, {columns}\].*x \[1, 2\] to \[4, 10\].*; or x \[1, 5\]"
        ):
            graph(feed(1, columns), ["doubled"])
    with pytest.raises(ValueError, match="input n is missing"):
        graph({"x": feed(1, 2)["x"]}, ["doubled"])
    with pytest.raises(ValueError, match=r"input n is float32 .*takes int64"):
        graph({"x": feed(1, 2)["x"], "n": np.zeros(1, np.float32)}, ["doubled"])


@pytest.mark.parametrize(
    ("change", "built"),
    [
        ({"version": "10.9.0.34"}, r"TensorRT 10\.9\.0\.34 on NVIDIA A"),
        ({"gpu": "NVIDIA B"}, r"TensorRT 10\.13\.3\.9 on NVIDIA B \(compute capability 9\.0\)"),
        ({"compute_capability": "8.6"}, r"on NVIDIA A \(compute capability 8\.6\)"),
    ],
)
def test_an_engine_that_was_built_for_something_else_is_not_read(
    engine: FakeEngine, tmp_path: Path, change: dict[str, str], built: str
) -> None:
    (tmp_path / "encoder.plan").write_bytes(b"this would end the process")
    here = r"here is TensorRT 10\.13\.3\.9 on NVIDIA A \(compute capability 9\.0\)\. Build it again .*`tritone engine`"
    with pytest.raises(OperatorError, match=rf"built with .*{built}.*; {here}"):
        open_graph(tmp_path / "encoder.plan", "cuda", engine=STAMP.model_copy(update=change))


def test_an_engine_that_trtexec_has_built_is_read(engine: FakeEngine, plan: Path) -> None:
    """It tells three numbers of the version."""
    assert open_graph(plan, "cuda", engine=STAMP.model_copy(update={"version": "10.13.3"})).inputs
    with pytest.raises(OperatorError, match=r"built with TensorRT 10\.13\.2 on"):
        open_graph(plan, "cuda", engine=STAMP.model_copy(update={"version": "10.13.2"}))


def test_an_engine_without_a_stamp_or_one_that_cannot_be_read_is_refused(engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "encoder.plan").write_bytes(b"damaged")
    with pytest.raises(BundleError, match=r"nothing records what it was built with"):
        open_graph(tmp_path / "encoder.plan", "cuda")
    with pytest.raises(BundleError, match=r"TensorRT 10\.13\.3\.9 cannot read .*encoder\.plan"):
        open_graph(tmp_path / "encoder.plan", "cuda", engine=STAMP)


def test_engines_for_rtx_that_were_built_without_a_gpu_are_for_all_of_them() -> None:
    stamp = Engine(library="tensorrt-rtx", version="1.7.1")
    tensorrt.check_stamp(Path("e.plan"), stamp, Library("tensorrt-rtx", None, "1.7.1"), Gpu("any", "12.0"))
    with pytest.raises(OperatorError, match=r"built with TensorRT for RTX 1\.7\.1; here is TensorRT 1\.7\.1 on any"):
        tensorrt.check_stamp(Path("e.plan"), stamp, Library("tensorrt", None, "1.7.1"), Gpu("any", "12.0"))
