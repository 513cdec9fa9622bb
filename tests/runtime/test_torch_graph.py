"""The runtime `torch` on the CPU, and what of its work on a GPU can be seen without one."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import toy
from tritone.audio import waveform as audio
from tritone.bundle import Bundle
from tritone.errors import MissingDependencyError, OperatorError
from tritone.installing import pip_install
from tritone.pipelines import Step, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import TensorSpec, obstacle, open_graph
from tritone.runtime import runtime as page
from tritone.runtime.cuda import queue as torch_cuda
from tritone.runtime.cuda.held import Held
from tritone.runtime.cuda.queue import CudaQueue, Replays
from tritone.runtime.cuda.slots import DeviceSlots
from tritone.runtime.graph import HELD, PCM_SCALE, Bucket
from tritone.runtime.slots import HostSlots
from tritone.runtime.torch.graph import TorchGraph

NEVER = 10**9  # calls
STATES = {"offset": TensorSpec(np.dtype(np.int64), ()), "level": TensorSpec(np.dtype(np.float32), (1,))}


@pytest.fixture(scope="module")
def both(toy_bundle_of_both: Path) -> Path:
    """The toy for both runtimes."""
    return toy_bundle_of_both


def feed(text: str) -> dict[str, np.ndarray]:
    waveform = toy.toy_waveform(text)[None]
    return {"waveform": waveform, "num_samples": np.array([waveform.size])}


def test_a_graph_knows_its_tensors_and_runs(both: Path) -> None:
    graph = open_graph(both / "encoder.pt2", threads=1)
    assert graph.inputs == open_graph(both / "encoder.onnx").inputs
    tokens, frames = graph(feed("hello"), ["best_tokens", "num_frames"])
    assert [toy.TOKENS[token] for token in tokens[0]] == ["h", "e", "l", "<blank>", "l", "o"]
    assert frames.tolist() == [6]


def test_arrays_in_any_layout_are_taken(both: Path) -> None:
    graph = open_graph(both / "encoder.pt2", threads=1)
    inputs = feed("layout")
    (plain,) = graph(inputs, ["best_tokens"])
    locked = inputs["waveform"].copy()
    locked.flags.writeable = False
    strided = np.stack([inputs["waveform"][0]] * 2, axis=1)[:, :1].T
    reversed_twice = inputs["waveform"][:, ::-1].copy()[:, ::-1]
    for waveform in (locked, strided, reversed_twice):
        (found,) = graph({**inputs, "waveform": waveform}, ["best_tokens"])
        np.testing.assert_array_equal(found, plain)


def test_outputs_are_derived_and_stay_on_the_device(both: Path) -> None:
    graph = TorchGraph(both / "encoder.pt2", threads=1)
    tokens, scores = graph(feed("hello"), ["best_tokens", "best_log_probs"])
    graph.derive("scored", ("best_log_probs", "best_tokens"), lambda scores, tokens: scores - tokens)
    held, derived, frames = graph(feed("hello"), ["held:best_tokens", "scored", "num_frames"])
    np.testing.assert_array_equal(derived, scores - tokens.astype(np.float32))
    assert isinstance(held, Held)
    assert (held.shape, held.dtype, frames.tolist()) == (tokens.shape, tokens.dtype, [6])
    np.testing.assert_array_equal(held[:1].numpy(), tokens)
    waveform = Held(torch.from_numpy(feed("hello")["waveform"]).repeat(2, 1)).rows([1])
    np.testing.assert_array_equal(graph({**feed("hello"), "waveform": waveform}, ["best_tokens"])[0], tokens)
    with pytest.raises(ValueError, match=r"scored of nothing cannot be derived: the graph has .*best_tokens"):
        graph.derive("scored", ("nothing",), lambda x: x)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"waveform": np.zeros((1, 9000))}, r"input waveform is float64 of shape \(1, 9000\), the graph takes float32"),
        ({"waveform": np.zeros(9000, np.float32)}, r"input waveform is float32 of shape \(9000,\)"),
        ({"waveform": None}, "input waveform is missing; the graph takes waveform, num_samples"),
    ],
)
def test_inputs_that_do_not_fit_are_named(both: Path, change: dict[str, Any], told: str) -> None:
    inputs = {name: value for name, value in {**feed("a"), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=told):
        open_graph(both / "encoder.pt2", threads=1)(inputs, ["num_frames"])


def test_16_bit_samples_give_what_the_floats_give_that_they_stand_for(both: Path) -> None:
    graph = TorchGraph(both / "encoder.pt2", threads=1)
    numbers = np.arange(-32768, 32768).astype(np.int16)[None, ::3].copy()
    inputs = {"num_samples": np.array([numbers.size])}
    names = ["best_tokens", "best_log_probs"]
    narrow = graph({**inputs, "waveform": numbers}, names)
    wide = graph({**inputs, "waveform": numbers.astype(np.float32) / PCM_SCALE}, names)
    for found, expected in zip(narrow, wide, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert PCM_SCALE == audio.PCM_SCALE  # rooms that may not know each other
    with pytest.raises(ValueError, match="input num_samples is int16"):
        graph({"waveform": numbers, "num_samples": np.array([9], np.int16)}, names)


def test_the_threads_of_others_are_as_before_after_a_call(both: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        open_graph(both / "encoder.pt2", threads=1)(feed("a"), ["num_frames"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("split_calls", "calls"), [(True, 1), (False, 4)])
def test_a_call_of_a_network_beyond_the_caches_has_the_cpu_for_itself(
    both: Path, split_calls: bool, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.runtime.torch.graph.ALONE_BYTES", 1000)
    assert TorchGraph(both / "encoder.pt2", threads=4, split_calls=split_calls).concurrency == calls


@pytest.mark.parametrize(("split_calls", "shares"), [(True, [4, 2, 1]), (False, [1, 1, 1])])
def test_calls_at_once_share_the_threads(both: Path, split_calls: bool, shares: list[int]) -> None:
    graph = TorchGraph(both / "encoder.pt2", threads=4, split_calls=split_calls)
    assert graph.concurrency == 4
    seen: list[int] = []
    inside, leave = [threading.Event() for _ in shares], threading.Event()

    def function(*_: Tensor) -> Sequence[Tensor]:
        seen.append(torch.get_num_threads())
        inside[len(seen) - 1].set()
        assert leave.wait(30)
        return [torch.zeros(1)]

    graph._functions[("num_frames",)] = function
    callers = [threading.Thread(target=lambda: graph(feed("a"), ["num_frames"])) for _ in shares]
    for caller, entered in zip(callers, inside, strict=True):
        caller.start()
        assert entered.wait(30)
    leave.set()
    for caller in callers:
        caller.join()
    assert seen == shares


def test_cuda_without_support_is_an_error_and_never_the_cpu(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(OperatorError, match=r"device cuda was asked for, but the installed torch .* no CUDA support"):
        open_graph(both / "encoder.pt2", "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        OperatorError, match=r"finds no usable NVIDIA GPU: the driver is missing, or too old for CUDA 13"
    ):
        open_graph(both / "encoder.pt2", "cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(OperatorError, match="this machine has 1 GPUs, counted from 0"):
        open_graph(both / "encoder.pt2", "cuda:1")
    assert (obstacle("torch", "cpu"), obstacle("torch", "cuda:0")) == (None, None)


@pytest.mark.parametrize(
    ("options", "told"), [({"device": "gpu"}, "device must be cpu"), ({"threads": 0}, "at least 1")]
)
def test_devices_and_threads_that_cannot_be_are_refused(both: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        open_graph(both / "encoder.pt2", **options)


def test_without_torch_the_message_names_what_to_install(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(MissingDependencyError, match=r"encoder\.pt2 needs the package torch.*\[torch\]'"):
        open_graph(both / "encoder.pt2")
    assert pip_install("torch") in str(obstacle("torch", "cpu"))
    open_graph(both / "encoder.onnx")


def test_a_torch_that_is_too_old_is_told(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "version", lambda package: "2.10.1+cu128")
    with pytest.raises(
        MissingDependencyError, match=r"torch 2\.11 or newer, installed is 2\.10\.1\+cu128: pip install"
    ):
        open_graph(both / "encoder.pt2")


class HostQueue:
    """Stands in for a `CudaQueue`: the device is the CPU."""

    device = torch.device("cpu")
    stream = None
    alone, sent, free = True, 0, 2**40

    def free_bytes(self) -> int:
        return self.free

    def call(self) -> AbstractContextManager[bool]:
        return nullcontext(self.alone)

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        self.sent += 1
        return [torch.from_numpy(array.copy()) for array in arrays]

    def received(self, sent: list[Tensor]) -> list[Tensor]:
        return sent

    def turn(self, *, shared: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def recording(self) -> Iterator[Callable[[Any, Any], AbstractContextManager[None]]]:
        yield torch.cuda.graph

    def block(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), 0xFF, dtype=torch.uint8)  # NaN where it is not filled

    def pinned(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array)

    def fetch(self, tensors: Sequence[Tensor], names: Sequence[str] = (), *, alone: bool = False) -> "Arrived":
        self.fetched_alone = alone
        return Arrived(
            [
                Held(tensor.clone()) if name.startswith(HELD) else tensor.numpy().copy()
                for tensor, name in zip(tensors, names, strict=True)
            ]
        )


class Arrived:
    def __init__(self, results: list[Any]) -> None:
        self.results = results

    def wait(self) -> list[Any]:
        return self.results


def test_steps_are_padded_to_the_rows_that_they_are_compiled_for(both: Path) -> None:
    graph = TorchGraph(both / "streaming_encoder.pt2", threads=1, split_calls=False)
    queue = HostQueue()
    slots = DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=12)  # type: ignore[arg-type]
    assert slots.sizes(12) == [1, 2, 4, 8, 16]
    row = sum(spec.dtype.itemsize * math.prod(size or 1 for size in spec.shape) for spec in STATES.values())
    queue.free = 2 * 16 * row
    assert slots.sizes(12)[-1] == 16
    queue.free -= 1
    with pytest.raises(OperatorError, match=r"steps of 12 streams take .*--max-batch-size.*--instances.*--max-streams"):
        slots.sizes(12)
    assert slots.sizes(8)[-1] == 8
    queue.free = HostQueue.free
    graph.buckets_for = lambda outputs: [Bucket(5, toy.WINDOW), Bucket(9, toy.WINDOW)]  # type: ignore[method-assign]
    assert slots.sizes(12) == [5, 9, 16]


def test_states_on_a_device_give_what_states_in_host_memory_give(both: Path) -> None:
    """Streams of many lengths, in batches of any size, in slots that are used again."""
    graph = TorchGraph(both / "streaming_encoder.pt2", threads=1, split_calls=False)
    queue = HostQueue()
    device = DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=12)  # type: ignore[arg-type]
    host = HostSlots(graph, STATES, capacity=12)
    for slot in range(12):
        device.clear(slot)
        host.clear(slot)
    rng = np.random.default_rng(0)
    outputs = [f"{HELD}best_log_probs", "best_tokens", "num_frames"]
    for _ in range(30):
        slots = rng.permutation(12)[: rng.integers(1, 13)].tolist()
        levels = rng.integers(0, 40, (len(slots), toy.CHUNK))
        block = np.zeros((len(slots), toy.WINDOW), np.float32)
        block[:, : toy.SHIFT] = np.repeat(levels, toy.FRAME, axis=1) / toy.LEVELS
        inputs = {"waveform": block, "num_samples": np.full(len(slots), toy.WINDOW)}
        host.reserve(len(slots))
        for found, expected in zip(device(slots, inputs, outputs), host(slots, inputs, outputs), strict=True):
            assert isinstance(found, Held) == isinstance(expected, Held)
            ours, theirs = (each.numpy() if isinstance(each, Held) else each for each in (found, expected))
            np.testing.assert_array_equal(ours, theirs)
        cleared = int(rng.integers(12))
        device.clear(cleared)
        host.clear(cleared)


def test_inputs_that_were_filled_into_the_room_for_them_are_not_copied_and_padding_is_silent(both: Path) -> None:
    graph = TorchGraph(both / "streaming_encoder.pt2", threads=1, split_calls=False)
    queue = HostQueue()
    slots = DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=12)  # type: ignore[arg-type]
    specs = {
        "waveform": TensorSpec(np.dtype(np.int16), (toy.WINDOW,)),
        "num_samples": TensorSpec(np.dtype(np.int64), ()),
    }
    room = slots.room(5, specs)
    room["waveform"][:], room["num_samples"][:] = 1, toy.WINDOW
    block = slots._room
    assert block is not None
    assert slots._filled(room, 5) is block
    assert block.arrays["waveform"].shape == (8, toy.WINDOW), "steps have few numbers of rows"
    assert block.arrays["waveform"].sum() == 5 * toy.WINDOW
    assert block.arrays["num_samples"].tolist() == [toy.WINDOW] * 5 + [0] * 3
    other = slots._filled({name: values.copy() for name, values in room.items()}, 5)
    assert other is not block
    slots._room = None
    names = ["num_frames"]
    step = slots.room(5, specs)
    step["waveform"][:], step["num_samples"][:] = 1.0, toy.WINDOW
    filled: Any = slots._room
    memory = filled.memory
    slots(range(5), step, names)
    slots.room(3, specs)
    again: Any = slots._room
    assert again.memory is memory, "it was pinned once"
    assert other.arrays["waveform"].sum() == 5 * toy.WINDOW


def test_steps_of_a_device_may_be_started_before_the_last_one_is_over(both: Path) -> None:
    graph = TorchGraph(both / "streaming_encoder.pt2", threads=1, split_calls=False)
    queue = HostQueue()
    device = DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=12)  # type: ignore[arg-type]
    host = HostSlots(graph, STATES, capacity=12)
    for slot in range(12):
        host.clear(slot)
    rng, outputs, waiting = np.random.default_rng(1), ["num_frames", "best_tokens"], []
    for slots in ([3, 1, 2], [0, 5, 4, 7, 6], [1, 0, 3]):
        block = rng.normal(0, 0.1, (len(slots), toy.WINDOW)).astype(np.float32)
        inputs = {"waveform": block, "num_samples": np.full(len(slots), toy.WINDOW)}
        host.reserve(len(slots))
        waiting.append((device.start(slots, inputs, outputs), host(slots, inputs, outputs)))
    for wait, expected in waiting:
        for found, each in zip(wait(), expected, strict=True):
            np.testing.assert_array_equal(found, each)


def test_the_sizes_of_steps_of_a_device_are_those_that_calls_are_padded_to(both: Path) -> None:
    graph = TorchGraph(both / "streaming_encoder.pt2", threads=1, split_calls=False)
    queue = HostQueue()
    slots = DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=2)  # type: ignore[arg-type]
    assert slots.sizes(1) == [1]
    assert slots.sizes(100) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    compiled = [Bucket(rows, toy.WINDOW) for rows in (1, 4, 64, 256)]
    graph.buckets_for = lambda outputs: compiled  # type: ignore[method-assign]
    assert slots.sizes(300) == [1, 4, 64, 96, 128, 256, 384]
    compiled.clear()
    assert slots.sizes(2000) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048]


@pytest.mark.parametrize("num_frames", [0, 7])
def test_streams_on_a_device_have_the_texts_of_streams_in_host_memory(both: Path, num_frames: int) -> None:
    """As floats, as 16-bit numbers or both in turn; and in more calls than one, which follow each other closely."""
    bundle, rng = Bundle.open(both), np.random.default_rng(2)
    pipelines = [
        open_streaming(bundle, placement=Placement(runtime="torch", threads=1), capacity=12, max_batch=most)
        for most in (5, 64)
    ]
    device: Any = pipelines[0]
    queue: Any = HostQueue()
    graph = device.runner.graph
    graph.widens = True
    device._slots = DeviceSlots(graph, queue, Replays(queue, NEVER), device.geometry.states, capacity=12)
    levels = [rng.integers(0, 39, 60).tolist() for _ in range(12)]
    waves = [np.round(toy.frames_waveform(each) * PCM_SCALE).astype(np.int16) for each in levels]
    slots = [(device.open(), pipelines[1].open()) for _ in waves]
    for begin in range(0, len(waves[0]), 3000):
        final = begin + 3000 >= len(waves[0])
        told = []
        for place, pipeline in enumerate(pipelines):
            steps = []
            for row, ((*both_slots,), wave) in enumerate(zip(slots, waves, strict=True)):
                chunk = wave[begin : begin + 3000]
                is_wide = place == 1 or (row + num_frames * begin) % 3 == 1
                samples: Any = audio.widened(chunk) if is_wide else chunk
                steps.append(Step(both_slots[place], samples, final, details=row % 2 == 0))
            told.append(pipeline.advance(steps))
        assert told[0] == told[1]
    assert any(each.text for each in told[0])


class Recording:
    """Stands in for a recorded CUDA graph."""

    made: list[Any]

    def __init__(self, queue: Any, pool: Any, function: Any, inputs: Sequence[Tensor]) -> None:
        if inputs[0].shape[0] == 13:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.made.append([tuple(each.shape) for each in inputs])
        self.function = function

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [self.function(*inputs)[0] + 1000]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    Recording.made = []
    monkeypatch.setattr(torch_cuda, "_Recording", Recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return Replays(HostQueue(), record_after=3)  # type: ignore[arg-type]


def double(x: Tensor) -> Sequence[Tensor]:
    return [2 * x]


def test_only_shapes_that_come_often_are_recorded(replays: Replays) -> None:
    found = [replays.run("double", double, [torch.full((rows,), 7)])[0].tolist() for rows in (2, 1, 2, 2, 2, 1)]
    assert found == [[14, 14], [14], [14, 14], [1014, 1014], [1014, 1014], [14]]
    assert Recording.made == [[(2,)]]


def test_no_more_shapes_are_recorded_than_fit(replays: Replays, monkeypatch: pytest.MonkeyPatch) -> None:
    replays._limit = 2
    for rows in (1, 2, 3):
        for _ in range(4):
            replays.run("double", double, [torch.zeros(rows)])
    assert Recording.made == [[(1,)], [(2,)]]


def test_what_cannot_be_recorded_is_run_as_it_is(replays: Replays, caplog: pytest.LogCaptureFixture) -> None:
    found = [replays.run("double", double, [torch.full((13,), 1)])[0].tolist() for _ in range(5)]
    assert found == [[2] * 13] * 5
    assert [record.message for record in caplog.records] == [
        "operators are launched one by one, because recording them failed: operation not permitted when stream is "
        "capturing"
    ]


class PlayedGraph:
    """Stands in for a CUDA graph: its replay calls again what was called while it was captured."""

    replay: Callable[[], object]


def test_recordings_share_the_memory_of_their_inputs_and_take_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[PlayedGraph] = []
    places: dict[int, Tensor] = {}
    results: dict[int, Tensor] = {}

    @contextmanager
    def capture(graph: PlayedGraph, *_: object, **__: object) -> Iterator[None]:
        captured.append(graph)
        yield

    def halved(x: Tensor) -> list[Tensor]:
        rows = len(x)
        if captured and not hasattr(captured[-1], "replay"):
            captured[-1].replay = lambda: halved(x)
            places[rows] = x
        result = results.setdefault(rows, torch.zeros(rows, 3))
        return [torch.mul(x, 0.5, out=result)]

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlayedGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    replays = Replays(HostQueue())  # type: ignore[arg-type]
    for rows, value in ((4, 1), (2, 3), (4, -5), (6, 7), (2, 9)):
        narrow = torch.full((rows, 3), value * 2048, dtype=torch.int16)
        for given in (torch.full((rows, 3), value / 16), narrow):
            (found,) = replays.run("halved", halved, [given], wide=True, at_once=True)
            assert found.tolist() == [[value / 32] * 3] * rows
    assert len(captured) == 3  # one of each shape, for both types
    assert places[2].data_ptr() == places[4].data_ptr() != places[6].data_ptr()  # there was too little room


def test_float32_convolutions_are_exact_while_anybody_computes_and_as_before_afterwards() -> None:
    before = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    with torch_cuda.EXACT:
        with torch_cuda.EXACT:
            assert torch.backends.cudnn.conv.fp32_precision == "ieee"  # type: ignore[attr-defined]
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"  # type: ignore[attr-defined]
    assert torch.backends.cudnn.conv.fp32_precision == before  # type: ignore[attr-defined]


class PlayedCuda:
    """Stands in for `torch.cuda`: events and streams that only tell what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self._streams = iter(["computing", "there", "back", "after"])
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: self.Stream(self.told, next(self._streams)))
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: self.Event(self.told))
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(CudaQueue, "_to_host", staticmethod(Tensor.clone))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.told.append(f"on {stream}")
        yield

    class Stream:
        def __init__(self, told: list[str], name: str) -> None:
            self._told, self._name = told, name

        def __str__(self) -> str:
            return self._name

        def wait_event(self, event: Any) -> None:
            self._told.append(f"{self._name} waits")

    class Event:
        def __init__(self, told: list[str]) -> None:
            self._told = told

        def record(self, stream: Any) -> None:
            self._told.append(f"event in {stream}")

        def query(self) -> bool:
            self._told.append("host looks")
            return self._told.count("host looks") == 3

        def synchronize(self) -> None:
            self._told.append("host waits")


def test_small_results_come_back_in_the_stream_that_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PlayedCuda(monkeypatch)
    queue = CudaQueue(torch.device("cpu"))
    (found,) = queue.fetch([torch.arange(3)]).wait()
    assert (found.tolist(), cuda.told) == ([0, 1, 2], ["event in computing", "host waits"])
    cuda.told.clear()
    held, found = queue.fetch([torch.arange(2), torch.arange(3)], ["held:x", "y"]).wait()
    assert (held.shape, found.tolist()) == ((2,), [0, 1, 2])
    assert cuda.told == ["event in computing", "computing waits", "on computing", "event in computing", "host waits"]
    cuda.told.clear()
    (found,) = queue.fetch([torch.zeros(torch_cuda.ASIDE_BYTES // 4)]).wait()
    assert found.nbytes == torch_cuda.ASIDE_BYTES
    assert cuda.told == ["event in computing", "back waits", "on back", "event in back", "host waits"]


@pytest.mark.parametrize("names", [["y"], ["held:x", "y"]])
def test_results_of_a_call_alone_are_looked_for_until_they_are_there(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = PlayedCuda(monkeypatch)
    *_, found = CudaQueue(torch.device("cpu")).fetch([torch.arange(3)] * len(names), names, alone=True).wait()
    assert (found.tolist(), cuda.told[-4:]) == ([0, 1, 2], ["host looks"] * 3 + ["host waits"])


def test_a_call_is_alone_until_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedCuda(monkeypatch)
    queue = CudaQueue(torch.device("cpu"))
    with pytest.raises(KeyError), queue.call() as first, queue.call() as second:
        raise KeyError
    with queue.call() as third:
        assert (first, second, third) == (True, False, True)


def test_only_a_call_alone_is_fed_in_the_stream_that_computes_it_and_looked_for(both: Path) -> None:
    """Beside others, and where nothing is recorded, arrays are sent ahead; the results are the same."""
    graph = TorchGraph(both / "encoder.pt2", threads=1)
    names = ["best_tokens", "num_frames"]
    expected = graph(feed("hello"), names)
    queue: Any = HostQueue()
    graph._cuda, graph._replays = queue, Replays(queue, NEVER)
    for alone, most, sent in ((True, 10**6, 0), (False, 10**6, 1), (True, 0, 2)):
        queue.alone = alone
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tritone.runtime.torch.graph.MAX_REPLAYED", most)
            for found, each in zip(graph(feed("hello"), names), expected, strict=True):
                np.testing.assert_array_equal(found, each)
        assert (queue.sent, queue.fetched_alone) == (sent, alone)
