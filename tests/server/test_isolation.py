"""What the backend does when a pipeline itself fails. Triton's module exists only within Triton: it is played here."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.backend.settings import Settings
from tritone.backend.streams import StreamTable
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.kinds.ctc import CTC
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

START, END = 1, 2
SETTINGS = Settings(sample_rate=16000)


class PlayedError(Exception):
    INVALID_ARG, UNAVAILABLE, INTERNAL = "INVALID_ARG", "UNAVAILABLE", "INTERNAL"

    def __init__(self, message: str, code: str) -> None:
        self.told = (code, message)


class PlayedTensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class PlayedRequest:
    """One row of `value`s."""

    def __init__(self, value: float, stream: int = 1, flags: int = 0) -> None:
        wav = np.full((1, 8), value, np.float32)
        self._inputs = [PlayedTensor("WAV", wav), PlayedTensor("WAV_LENS", np.array([[8]], np.int32))]
        self._stream, self._flags = stream, flags

    def inputs(self) -> list[PlayedTensor]:
        return self._inputs

    def parameters(self) -> str:
        return "{}"

    def requested_output_names(self) -> set[str]:
        return {"TRANSCRIPTS"}

    def correlation_id(self) -> int:
        return self._stream

    def flags(self) -> int:
        return self._flags


class Fragile:
    """Offline and streaming pipeline in one: says the first sample, and breaks on a 9."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.closed: list[int] = []
        self.slots = iter(range(100))
        self.work = WorkLog(SETTINGS.sample_rate)
        self.searching = SimpleNamespace(options=SearchOptions())

    def check(self, waveform: np.ndarray) -> None:
        """Nothing is too long."""

    def run(self, waveforms: Sequence[np.ndarray], options: object = None) -> list[Transcript]:
        self.calls.append(len(waveforms))
        if any(wav[0] == 9 for wav in waveforms):
            raise MemoryError("a nine")
        return [Transcript(f"{wav[0]:g}") for wav in waveforms]

    def advance(self, steps: Sequence[Any]) -> list[Transcript]:
        return self.run([step.samples for step in steps])

    def open(self, options: SearchOptions) -> int:
        return next(self.slots)

    def close(self, slot: int) -> None:
        self.closed.append(slot)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module: Any = ModuleType("triton_python_backend_utils")
    module.TritonError, module.Tensor = PlayedError, PlayedTensor
    silent = {name: lambda message: None for name in ("log_error", "log_warn", "log_info")}
    module.Logger = SimpleNamespace(**silent)
    module.InferenceResponse = lambda output_tensors=(), error=None: (
        error.told if error else output_tensors[0].as_numpy()[0].decode()
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    names = [f"tritone.backend.{name}" for name in ("replies", "metrics", "batch", "offline", "streaming")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in names:
        sys.modules.pop(name, None)


def table(made: Any, **more: Any) -> StreamTable[..., Any]:
    if not hasattr(made, "_open"):  # an offline model has no streams
        return StreamTable(lambda: None, lambda _: None, capacity=9, **more)
    return StreamTable(made._open, lambda stream: made._pipeline.close(stream.slot), capacity=9, **more)


def model(mode: str) -> tuple[Any, Fragile]:
    """A model of the backend on a fragile pipeline, as `initialize` leaves it."""
    made = importlib.import_module(f"tritone.backend.{mode}").TritonPythonModel()
    pipeline = made._pipeline = Fragile()
    made._settings = SETTINGS
    made._kind = CTC
    made._streams = table(made, idle_timeout_s=60)
    made._outcomes = []
    args = {"model_name": "fragile", "model_version": "1", "model_instance_name": "fragile_0"}
    made._metrics = importlib.import_module("tritone.backend.metrics").Metrics(args, streaming=mode == "streaming")
    return made, pipeline


@pytest.mark.usefixtures("played")
def test_an_utterance_that_breaks_the_batch_breaks_only_its_own_request() -> None:
    offline, pipeline = model("offline")
    answers = offline.execute([PlayedRequest(value) for value in (1, 9, np.nan, 2)])
    assert (answers[0], answers[3]) == ("1", "2")
    assert answers[1] == ("INTERNAL", "MemoryError: a nine")
    assert answers[2][0] == "INVALID_ARG"
    assert pipeline.calls == [3, 1, 1, 1], "together first, then each alone"
    assert offline.execute([PlayedRequest(3)]) == ["3"]


@pytest.mark.usefixtures("played")
def test_a_good_batch_is_one_call() -> None:
    offline, pipeline = model("offline")
    assert offline.execute([PlayedRequest(value) for value in (1, 2, 3)]) == ["1", "2", "3"]
    assert pipeline.calls == [3]


@pytest.mark.usefixtures("played")
def test_a_step_that_fails_closes_the_streams_it_may_have_harmed_and_no_others() -> None:
    streaming, pipeline = model("streaming")
    assert streaming.execute([PlayedRequest(n, stream=n, flags=START) for n in (1, 2, 3)]) == ["1", "2", "3"]
    failed = streaming.execute([PlayedRequest(9, stream=1), PlayedRequest(5, stream=2)])
    assert [code for code, _ in failed] == ["INTERNAL", "INTERNAL"]
    assert "MemoryError: a nine" in failed[0][1]
    assert "Start the stream again" in failed[1][1]
    assert pipeline.closed == [0, 1]
    (code, told), third = streaming.execute([PlayedRequest(5, stream=1), PlayedRequest(6, stream=3)])
    assert (code, third) == ("INVALID_ARG", "6")
    assert "stream 1 is not open" in told


@pytest.mark.usefixtures("played")
def test_a_chunk_that_waited_longer_than_the_idle_time_finds_its_stream_open() -> None:
    streaming, pipeline = model("streaming")
    now = 0.0
    streaming._streams = table(streaming, idle_timeout_s=5, clock=lambda: now)
    streaming.execute([PlayedRequest(n, stream=n, flags=START) for n in (1, 2)])
    now = 60.0
    assert streaming.execute([PlayedRequest(3, stream=1)]) == ["3"]
    assert pipeline.closed == [1], "the stream without a chunk was idle"


@pytest.mark.usefixtures("played")
def test_a_restart_that_shares_a_batch_with_an_old_chunk_comes_after_it() -> None:
    streaming, pipeline = model("streaming")
    streaming.execute([PlayedRequest(1, stream=7, flags=START)])
    assert streaming.execute([PlayedRequest(2, stream=7), PlayedRequest(3, stream=7, flags=START | END)]) == ["2", "3"]
    assert pipeline.calls == [1, 1, 1]
    assert pipeline.closed == [0], "the final step frees the second slot by itself"
    assert len(streaming._streams) == 0
