"""What the backend does when a pipeline itself fails. Triton's module exists only within Triton: it is played here."""

import gc
import importlib
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.audio.waveform import check_level
from tritone.backend.settings import Settings
from tritone.backend.streams import StreamTable
from tritone.errors import TritoneError
from tritone.kinds.ctc.kind import KIND as CTC
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.isolation import attempt
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript
from waiting import until

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
    """One row of `value`s. An exception in place of the stream or the parameters is raised where they are read."""

    def __init__(
        self, value: float, stream: Any = 1, flags: int = 0, *, request_id: str = "", parameters: Any = "{}"
    ) -> None:
        wav = np.full((1, 8), value, np.float32)
        self._inputs = [PlayedTensor("WAV", wav), PlayedTensor("WAV_LENS", np.array([[8]], np.int32))]
        self._stream, self._flags, self._id, self._parameters = stream, flags, request_id, parameters
        self.wanted = {"TRANSCRIPTS"}
        self.cancelled = False
        self.asked = 0
        self.answered: list[tuple[Any, int]] = []

    def inputs(self) -> list[PlayedTensor]:
        return self._inputs

    def get_response_sender(self) -> Any:
        def send(answer: Any, flags: int) -> None:
            self.answered.append((answer, flags))

        return SimpleNamespace(send=send, is_cancelled=self.is_cancelled)

    def is_cancelled(self) -> bool:
        self.asked += 1
        return self.cancelled

    def parameters(self) -> str:
        return played_or_raised(self._parameters)

    def requested_output_names(self) -> set[str]:
        return self.wanted

    def correlation_id(self) -> int:
        return played_or_raised(self._stream)

    def request_id(self) -> str:
        return self._id

    def flags(self) -> int:
        return self._flags


def played_or_raised(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def not_utf8() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte")


class Fragile:
    """Offline and streaming pipeline in one: says the first sample, and breaks on a 9."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.closed: list[int] = []
        self.slots = iter(range(100))
        self.work = WorkLog(SETTINGS.sample_rate)
        self.searching = SimpleNamespace(options=SearchOptions(), check=lambda options: options)

    def check(self, waveform: np.ndarray) -> None:
        """Nothing is too long."""

    def changed(self, parameters: dict[str, Any], options: SearchOptions | None = None) -> SearchOptions:
        """As of a pipeline for streams."""
        return (options or self.searching.options).changed(parameters)

    def run(self, waveforms: Sequence[np.ndarray], options: object = None) -> list[Transcript | TritoneError]:
        self.calls.append(len(waveforms))
        if any(wav[0] == 9 for wav in waveforms):
            raise MemoryError("a nine")
        return [attempt(self.heard, wav) for wav in waveforms]

    def heard(self, waveform: np.ndarray) -> Transcript:
        check_level(waveform, sample_rate=SETTINGS.sample_rate)
        return Transcript(f"{waveform[0]:g}")

    def advance(self, steps: Sequence[Any]) -> list[Transcript | TritoneError]:
        return self.run([step.samples for step in steps])

    def open(self, options: SearchOptions) -> int:
        return next(self.slots)

    def close(self, slot: int) -> None:
        self.closed.append(slot)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Triton's module, played; what was logged as an error."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.TritonError, module.Tensor = PlayedError, PlayedTensor
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    logged: list[str] = []
    module.Logger = SimpleNamespace(log_error=logged.append, log_warn=lambda _: None, log_info=lambda _: None)
    module.InferenceResponse = lambda output_tensors=(), error=None: (
        error.told if error else output_tensors[0].as_numpy()[0].decode()
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    modules = ("replies", "metrics", "given_up", "batch", "continuous", "offline", "streaming")
    names = [f"tritone.backend.{name}" for name in modules]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield logged
    for name in names:
        sys.modules.pop(name, None)


def table(made: Any, **more: Any) -> StreamTable[..., Any]:
    if not hasattr(made, "_open"):  # an offline model has no streams
        return StreamTable(lambda: None, lambda _: None, capacity=9, **more)
    return StreamTable(made._open, made._close, capacity=9, **more)


def model(mode: str) -> tuple[Any, Fragile]:
    """A model of the backend on a fragile pipeline, as `initialize` leaves it."""
    made = importlib.import_module(f"tritone.backend.{mode}").TritonPythonModel()
    pipeline = made._pipeline = Fragile()
    made._settings = SETTINGS
    made._kind = CTC
    made._streams = table(made, idle_timeout_s=60)
    made._outcomes = []
    args = {"model_name": "fragile", "model_version": "1", "model_instance_name": "fragile_0"}
    made._metrics = importlib.import_module("tritone.backend.metrics").Metrics(args, slots=int(mode == "streaming"))
    return made, pipeline


def test_an_utterance_that_breaks_the_batch_breaks_only_its_own_request(played: list[str]) -> None:
    offline, pipeline = model("offline")
    answers = offline.execute([PlayedRequest(value) for value in (1, 9, np.nan, 2)])
    assert (answers[0], answers[3]) == ("1", "2")
    assert answers[1][0] == "INTERNAL"
    assert answers[2][0] == "INVALID_ARG"
    assert pipeline.calls == [4, 1, 1, 1, 1], "together first, then each alone"
    assert offline.execute([PlayedRequest(3)]) == ["3"]


def test_an_error_that_nobody_expected_is_explained_to_the_operator_alone(played: list[str]) -> None:
    offline, _ = model("offline")
    ((_, told),) = offline.execute([PlayedRequest(9)])
    assert told == "the model failed at this request; the server's log says why. Tell who runs the server."
    (logged,) = played
    assert "MemoryError: a nine" in logged
    assert "test_failing_pipelines.py" in logged, "where it came from"


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("mode", ["offline", "streaming"])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"parameters": not_utf8()}, "not UTF-8: byte 0xff"),
        ({"parameters": '{"search": ' + "[" * 100_000}, "cannot be read"),
        ({"parameters": '{"hotwords": "' + "a:1," * 300_000 + '"}'}, "1,200,016 characters as JSON; at most 1,048,576"),
        ({"parameters": '{"beam": 1e999}'}, "request parameter beam: expected a finite number, got inf"),
        ({"parameters": '{"beam": "' + "1" * 5000 + '"}'}, "request parameter beam: expected a finite number"),
        ({"value": np.inf}, "must be finite numbers"),
    ],
)
def test_whatever_is_wrong_with_a_request_its_neighbours_are_answered(
    mode: str, bad: dict[str, Any], told: str
) -> None:
    made, _ = model(mode)
    requests = [
        PlayedRequest(**({"value": value} | more), stream=n, flags=START | END)  # type: ignore[arg-type]
        for n, (value, more) in enumerate([(1, {}), (2, bad), (3, {})], start=1)
    ]
    first, (code, message), third = made.execute(requests)
    assert (first, code, third) == ("1", "INVALID_ARG", "3")
    assert told in message
    assert len(message) < 1010


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_an_answer_that_cannot_be_made_harms_no_other(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = model(mode)
    odd = PlayedRequest(2, stream=2, flags=START | END)
    monkeypatch.setattr(odd, "requested_output_names", lambda: played_or_raised(not_utf8()), raising=False)
    requests = [PlayedRequest(1, stream=1, flags=START | END), odd, PlayedRequest(3, stream=3, flags=START | END)]
    first, (code, _), third = made.execute(requests)
    assert (first, code, third) == ("1", "INTERNAL", "3")


@pytest.mark.usefixtures("played")
def test_a_stream_id_that_is_no_text_is_an_error_of_its_chunk() -> None:
    streaming, _ = model("streaming")
    first, (code, told), third = streaming.execute(
        [PlayedRequest(n, stream=id, flags=START) for n, id in ((1, 1), (2, not_utf8()), (3, 3))]
    )
    assert (first, code, third) == ("1", "INVALID_ARG", "3")
    assert "sequence id" in told
    assert "not UTF-8" in told


@pytest.mark.usefixtures("played")
def test_a_good_batch_is_one_call() -> None:
    offline, pipeline = model("offline")
    assert offline.execute([PlayedRequest(value) for value in (1, 2, 3)]) == ["1", "2", "3"]
    assert pipeline.calls == [3]


def test_a_step_that_fails_closes_the_streams_it_may_have_harmed_and_no_others(played: list[str]) -> None:
    streaming, pipeline = model("streaming")
    assert streaming.execute([PlayedRequest(n, stream=n, flags=START) for n in (1, 2, 3)]) == ["1", "2", "3"]
    failed = streaming.execute([PlayedRequest(9, stream=1), PlayedRequest(5, stream=2)])
    assert [code for code, _ in failed] == ["INTERNAL", "INTERNAL"]
    assert "the step failed (MemoryError)" in failed[0][1]
    assert "Start the stream again" in failed[1][1]
    (logged,) = played
    assert "MemoryError: a nine" in logged
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
def test_a_restart_that_shares_a_batch_with_the_end_of_the_stream_comes_after_it() -> None:
    streaming, pipeline = model("streaming")
    streaming.execute([PlayedRequest(1, stream=7, flags=START)])
    last, first = PlayedRequest(2, stream=7, flags=END), PlayedRequest(3, stream=7, flags=START | END)
    assert streaming.execute([last, first]) == ["2", "3"]
    assert pipeline.calls == [1, 1, 1]
    assert pipeline.closed == [], "the final step frees the slot by itself"
    assert len(streaming._streams) == 0


@pytest.mark.usefixtures("played")
def test_start_on_an_open_stream_is_refused_and_the_stream_goes_on() -> None:
    streaming, pipeline = model("streaming")
    streaming.execute([PlayedRequest(1, stream=7, flags=START)])
    (code, told), mine = streaming.execute([PlayedRequest(9, stream=7, flags=START), PlayedRequest(2, stream=7)])
    assert (code, mine) == ("INVALID_ARG", "2")
    assert "stream 7 is in use" in told
    assert "63 bits" in told
    assert pipeline.calls == [1, 1], "what the second client sent is not computed"
    assert pipeline.closed == []


@pytest.mark.usefixtures("played")
def test_chunks_of_a_refused_client_are_known_by_their_request_id() -> None:
    streaming, pipeline = model("streaming")
    streaming.execute([PlayedRequest(1, stream=7, flags=START, request_id="first")])
    streaming.execute([PlayedRequest(2, stream=7, flags=START, request_id="second")])
    ((code, told),) = streaming.execute([PlayedRequest(3, stream=7, request_id="second")])
    assert code == "INVALID_ARG"
    assert "belongs to another client" in told
    assert streaming.execute([PlayedRequest(4, stream=7, request_id="first", flags=END)]) == ["4"]
    assert pipeline.calls == [1, 1]


@pytest.mark.usefixtures("played")
def test_an_idle_stream_gives_its_id_to_who_starts_it() -> None:
    streaming, pipeline = model("streaming")
    now = 0.0
    streaming._streams = table(streaming, idle_timeout_s=5, clock=lambda: now)
    streaming.execute([PlayedRequest(1, stream=7, flags=START)])
    now = 6.0
    assert streaming.execute([PlayedRequest(2, stream=7, flags=START)]) == ["2"]
    assert pipeline.closed == [0]


@pytest.mark.usefixtures("played")
def test_details_of_a_stream_are_made_for_chunks_that_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming, pipeline = model("streaming")
    told: list[bool] = []

    def advance(steps: Sequence[Any]) -> Any:
        told.extend(step.details for step in steps)
        return Fragile.advance(pipeline, steps)

    monkeypatch.setattr(pipeline, "advance", advance)
    monkeypatch.setattr(
        sys.modules["triton_python_backend_utils"],
        "InferenceResponse",
        lambda output_tensors: [tensor.name() for tensor in output_tensors],
    )
    plain, full = PlayedRequest(1, 1, START), PlayedRequest(2, 2, START)
    full.wanted = {"TRANSCRIPTS", "DETAILS"}
    assert streaming.execute([plain, full]) == [["TRANSCRIPTS"], ["TRANSCRIPTS", "DETAILS"]]
    assert told == [False, True]


@pytest.mark.usefixtures("played")
def test_several_warm_ups_may_share_a_batch() -> None:
    streaming, _ = model("streaming")
    assert streaming.execute([PlayedRequest(n, stream=0) for n in (1, 2, 3)]) == ["1", "2", "3"]
    assert len(streaming._streams) == 0


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_no_refused_request_is_kept_in_memory(mode: str) -> None:
    """Without the garbage collector, whose next run may be long after Triton's shared memory is full."""
    made, _ = model(mode)
    bad: list[dict[str, Any]] = [
        {"value": np.nan},
        {"value": 9},
        {"value": 1, "parameters": not_utf8()},
        {"value": 1, "parameters": '{"beam": "x"}'},
        {"value": 1, "parameters": "{"},
    ]
    bad += [{"value": 1, "stream": not_utf8()}] if mode == "streaming" else []
    made.execute([PlayedRequest(1, stream=99, flags=START)])  # a stream for chunks with other parameters
    gc.disable()
    try:
        for case in bad:
            for flags, stream in ((START, 1), (START | END, 2), (END, 99), (0, 99), (0, 5)):
                requests = [PlayedRequest(**({"stream": stream, "flags": flags} | case))]  # type: ignore[arg-type]
                held = [weakref.ref(each.as_numpy()) for each in requests[0].inputs()]
                answers = made.execute(requests)
                del requests
                assert [each() for each in held] == [None, None], (case, flags)
                del answers
    finally:
        gc.enable()


def given_up(*args: Any, **more: Any) -> PlayedRequest:
    request = PlayedRequest(*args, **more)
    request.cancelled = True
    return request


@pytest.mark.usefixtures("played")
@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_what_nobody_waits_for_is_dropped_after_a_long_batch_and_not_asked_about_after_a_short_one(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pipeline = model(mode)
    now = 0.0
    monkeypatch.setattr("tritone.backend.given_up.time.monotonic", lambda: now)
    seconds = 0.1

    def passing(result: Any) -> Any:
        nonlocal now
        now += seconds
        return result

    run = Fragile.run
    monkeypatch.setattr(pipeline, "run", lambda *args: passing(run(pipeline, *args)))
    good, dropped = PlayedRequest(1, 1, START | END), given_up(2, 2, START | END)
    made.execute([PlayedRequest(1, 1, START | END)])
    assert made.execute([good, dropped]) == ["1", "2"], "the batch before was short: it is not worth asking"
    assert good.asked == dropped.asked == 0
    seconds = 0.5
    made.execute([PlayedRequest(1, 1, START | END)])
    first, (code, told) = made.execute([good, dropped])
    assert (first, code) == ("1", "UNAVAILABLE")
    assert "cancelled, or its deadline passed" in told
    assert pipeline.calls[-1] == 1
    now += 1
    assert made.execute([dropped]) == ["2"], "the queue was empty, so it did not wait"


@pytest.mark.usefixtures("played")
def test_a_chunk_that_was_given_up_ends_its_stream_and_a_start_opens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming, pipeline = model("streaming")
    streaming.execute([PlayedRequest(n, stream=n, flags=START) for n in (1, 2)])
    monkeypatch.setattr("tritone.backend.given_up.ASK_AFTER_S", 0.0)
    monkeypatch.setattr("tritone.backend.given_up.IDLE_S", 60.0)
    answers = streaming.execute([given_up(1, 1), given_up(2, 2, START), given_up(3, 3, START), PlayedRequest(4, 2)])
    assert [answer[0] for answer in answers[:3]] == ["UNAVAILABLE"] * 3
    assert answers[3] == "4", "whoever gave up START on an open stream was not its owner"
    assert pipeline.closed == [0]
    assert len(streaming._streams) == 1


class Continuous(Fragile):
    """A pipeline that takes recordings at any time, and is done with them when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[Any] = []
        self.left = 2

    @property
    def has_room(self) -> bool:
        return self.left > 0

    def submit(self, waveform: np.ndarray, options: object, done: Any, given_up: Any) -> None:
        def finish() -> None:
            self.left += 1
            done(attempt(self.heard, waveform.copy()))

        self.left -= 1
        self.under_way.append((finish, given_up))


def test_requests_of_a_continuous_pipeline_are_answered_when_they_are_done(played: list[str]) -> None:
    offline, _ = model("offline")
    pipeline = offline._pipeline = Continuous()
    waits = threading.Event()

    def has_room() -> bool:
        if not pipeline.has_room:
            waits.set()
        return pipeline.has_room

    offline._answering = importlib.import_module("tritone.backend.continuous").Answering(has_room)
    counted: list[str] = []
    offline._metrics = SimpleNamespace(count=lambda outcomes, *_: counted.extend(outcomes))
    first, second = PlayedRequest(1), PlayedRequest(2)
    assert offline.execute([first, second]) is None
    second.cancelled = True
    assert [given_up() for _, given_up in pipeline.under_way] == [False, True]

    def finish() -> None:  # while `execute` waits for room
        if waits.wait(60):
            pipeline.under_way[1][0]()

    bad, third = PlayedRequest(4, parameters='{"beam": "x"}'), PlayedRequest(np.nan)
    finishing = threading.Thread(target=finish)
    finishing.start()
    offline.execute([bad])
    finishing.join()
    assert until(lambda: second.answered) == [("2", 1)]
    assert first.answered == []
    offline.execute([third])
    for done, _ in (pipeline.under_way[0], pipeline.under_way[2]):
        done()
    assert until(lambda: first.answered) == [("1", 1)]
    until(lambda: bad.answered and third.answered)
    assert [request.answered[0][0][0] for request in (bad, third)] == ["INVALID_ARG", "INVALID_ARG"]

    def all_counted() -> bool:  # which is done when an answer has been sent, and told with the next batch
        offline.execute([])
        return len(counted) == 4

    until(all_counted)
    assert sorted(counted) == ["bad_input", "bad_input", "ok", "ok"]
