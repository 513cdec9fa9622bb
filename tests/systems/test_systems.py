"""Systems: specifications as people write them, streams side by side, and a bundle in this process."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import tritone
from toy import SAMPLE_RATE, toy_waveform
from tritone.audio import read_ahead
from tritone.audio.waveform import Waveform
from tritone.errors import AudioError, BundleError, InputError, OperatorError, ServerBusyError, TritoneError
from tritone.kinds import kind_named
from tritone.pipelines import sources
from tritone.pipelines.offline import OfflinePipeline
from tritone.result import Partial, TranscriptResult
from tritone.systems import (
    BundleSystem,
    Playback,
    ServedSystem,
    open_system,
    parse_spec,
    streams,
)
from tritone.systems.spec import load_options
from tritone.transcript import Transcript

TEXTS = ("hello world", "seven 7", "tritone")
RATE = 1000  # Hz, of the streams below


@pytest.fixture
def speech(tmp_path: Path) -> list[str]:
    """A file for each of `TEXTS`, which the toy bundle transcribes to it."""
    paths = [tmp_path / f"{place}.wav" for place in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        soundfile.write(path, toy_waveform(text), SAMPLE_RATE, subtype="FLOAT")
    return [str(path) for path in paths]


@pytest.fixture
def noise(tmp_path: Path) -> Callable[[int], str]:
    """Makes a file of so many samples at `RATE`."""

    def make(num_samples: int) -> str:
        path = tmp_path / f"{num_samples}.wav"
        soundfile.write(path, np.full(num_samples, 0.25), RATE, subtype="FLOAT")
        return str(path)

    return make


class FakeStream:
    """Says how many chunks and samples it has heard; what `behave` does comes before each answer."""

    def __init__(self, behave: Callable[[int], object] = lambda chunk: None) -> None:
        self.chunks: list[int] = []
        self.closed = False
        self._behave = behave

    def accept(self, samples: Waveform) -> Transcript:
        self.chunks.append(len(samples))
        self._behave(len(self.chunks))
        return Transcript(f"{len(self.chunks)} {sum(self.chunks)}", is_final=False)

    def finish(self) -> Transcript:
        self._behave(len(self.chunks) + 1)
        return Transcript(f"{sum(self.chunks)} in all")

    def close(self) -> None:
        self.closed = True


def play(
    paths: list[str] | Iterator[str],
    open_stream: Callable[[], FakeStream] = FakeStream,
    *,
    concurrency: int = 1,
    chunk_ms: float = 100,
    realtime: bool = False,
    on_partial: Any = None,
) -> Any:
    return streams.play_files(
        paths,
        lambda: closing(open_stream()),
        sample_rate=RATE,
        playback=Playback(chunk_ms=chunk_ms, realtime=realtime),
        concurrency=concurrency,
        on_partial=on_partial,
    )


class FakeTime:
    """A clock that only moves when it is told to, in place of `time` in a module."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(streams, "time", fake)
    monkeypatch.setattr("tritone.client.playback.time", fake)
    return fake


@pytest.mark.parametrize(
    ("text", "name", "target", "options"),
    [
        ("demo-asr", "demo-asr", "demo-asr", {}),
        ("/models/big/", "big", "/models/big/", {}),
        ("fast=/models/big", "fast", "/models/big", {}),
        ("fast=big,device=cuda:1,threads=2", "fast", "big", {"device": "cuda:1", "threads": "2"}),
        ("big,threads=2", "big,threads=2", "big", {"threads": "2"}),
        ("/a=b/c", "c", "/a=b/c", {}),
        ("grpc://h:1/m", "grpc://h:1/m", "grpc://h:1/m", {}),
        ("there=http://h:1/asr/m,timeout_s=5", "there", "http://h:1/asr/m", {"timeout_s": "5"}),
        ("s=big, mode=streaming, chunk_ms=320", "s", "big", {"mode": "streaming", "chunk_ms": "320"}),
    ],
)
def test_a_specification_is_name_target_and_options(text: str, name: str, target: str, options: dict[str, str]):
    spec = parse_spec(text)
    assert (spec.name, spec.target, dict(spec.options)) == (name, target, options)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names nothing to run"),
        ("fast=", "names nothing to run"),
        ("big,threads", "'threads' is not key=value"),
        ("big,threads=", "'threads=' is not key=value"),
        ("big,threads=1,threads=2", "threads is given twice"),
        ("big,model=m", "unknown model; a bundle takes mode, chunk_ms, realtime, concurrency, device, threads"),
        (
            "grpc://h/m,device=cpu",
            "unknown device; a served model takes mode, chunk_ms, realtime, concurrency, timeout_s",
        ),
    ],
)
def test_a_specification_that_makes_no_sense_is_explained(text: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        parse_spec(text)


def test_the_options_of_bundles_are_those_of_load():
    known = load_options()
    assert {"device": "str", "threads": "int", "max_audio_s": "float"}.items() <= known.items()
    assert "bundle" not in known
    models: list[tuple[type[tritone.Model], str]] = [(tritone.Recognizer, "ctc"), (tritone.Transcriber, "whisper")]
    loadable = {name for model, kind in models for name in model.loadable(kind_named(kind))}
    assert set(known) == loadable - {"endpoints"} | {"trust"}  # rules, which text cannot give


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("threads=two", "threads must be a whole number, got 'two'"),
        ("max_audio_s=long", "max_audio_s must be a number, got 'long'"),
        ("mode=both", "mode must be offline or streaming, got 'both'"),
        ("chunk_ms=100", "chunk_ms and realtime go with mode=streaming"),
        ("mode=streaming,chunk_ms=0", "chunk_ms must be at least 1, got 0"),
        ("mode=streaming,realtime=maybe", "realtime must be true or false, got 'maybe'"),
        ("concurrency=0", "concurrency must be at least 1, got 0"),
    ],
)
def test_a_value_that_makes_no_sense_is_explained(toy_bundle: Path, options: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        open_system(f"it={toy_bundle},{options}")


def test_own_options_of_a_specification_go_before_those_of_the_caller(toy_bundle: Path):
    given = Playback(chunk_ms=100, realtime=True)
    plain = open_system(f"{toy_bundle}", playback=given, concurrency=3)
    own = open_system(f"{toy_bundle},chunk_ms=320,realtime=no,concurrency=5", playback=given, concurrency=3)
    offline = open_system(f"{toy_bundle},mode=offline", playback=given)
    assert (plain.mode, plain.concurrency) == ("streaming", 3)
    assert {"chunk_ms": "100", "realtime": "true"}.items() <= plain.describe().items()
    assert own.concurrency == 5
    assert {"chunk_ms": "320", "realtime": "false"}.items() <= own.describe().items()
    assert offline.mode == "offline"
    assert "chunk_ms" not in offline.describe()


def test_a_missing_bundle_is_told_before_anything_runs():
    with pytest.raises(BundleError, match="no-such-bundle"):
        open_system("it=no-such-bundle")


@pytest.mark.parametrize(
    ("target", "address", "model"),
    [
        ("grpc://localhost:8001/demo", "grpc://localhost:8001", "demo"),
        ("http://localhost:8000/asr/demo", "http://localhost:8000/asr", "demo"),
        ("http://localhost:8000/asr/", "http://localhost:8000/asr", None),
    ],
)
def test_the_last_part_of_an_address_is_the_model(
    monkeypatch: pytest.MonkeyPatch, target: str, address: str, model: str | None
):
    made: dict[str, Any] = {}

    class Client:
        def __init__(self, url: str, **options: Any) -> None:
            made.update(url=url, **options)
            self.endpoint = url
            self.transcribe_iter = None

    monkeypatch.setattr("tritone.client.Client", Client)
    system = open_system(f"there={target},timeout_s=7")
    assert made == {"url": address, "timeout_s": 7.0}
    assert isinstance(system, ServedSystem)
    assert (system._model, system.name) == (model, "there")


def test_descriptions_differ_with_what_decides_the_texts_and_with_nothing_else(toy_bundle: Path, tmp_path: Path):
    def description(spec: str) -> dict[str, str]:
        return dict(open_system(spec).describe())

    assert description(f"a={toy_bundle}") == description(f"b={toy_bundle},concurrency=2")
    assert description(f"a={toy_bundle}") != description(f"a={toy_bundle},threads=1")
    assert description(f"a={toy_bundle}") != description(f"a={toy_bundle},mode=streaming")
    assert description(f"a={toy_bundle}")["model"] == "toy"


@pytest.mark.parametrize("playback", [None, Playback(chunk_ms=50)])
@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_bundle_answers_every_file(toy_bundle: Path, speech: list[str], playback: Playback | None, concurrency: int):
    system = BundleSystem(tritone.load(toy_bundle), playback=playback, concurrency=concurrency)
    system.prepare(warm_up=True)
    outcomes = {outcome.index: outcome for outcome in system.run(speech)}
    assert [outcomes[place].transcript.text for place in range(3)] == list(TEXTS)  # type: ignore[union-attr]
    for place, outcome in outcomes.items():
        assert outcome.source == speech[place]
        assert outcome.audio_s == pytest.approx(len(toy_waveform(TEXTS[place])) / SAMPLE_RATE)
        assert outcome.compute_s > 0
        assert bool(outcome.partials) == (playback is not None)


def test_a_file_that_cannot_be_read_fails_alone(toy_bundle: Path, speech: list[str], tmp_path: Path):
    bad = str(tmp_path / "absent.wav")
    for playback in (None, Playback()):
        system = BundleSystem(tritone.load(toy_bundle), playback=playback)
        outcomes = sorted(system.run([speech[0], bad, speech[1]]), key=lambda outcome: outcome.index)
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]
        assert isinstance(outcomes[1].error, AudioError)
        assert "absent.wav" in str(outcomes[1].error)


def test_a_runtime_that_breaks_on_one_file_of_a_batch_fails_for_this_file_alone(
    toy_bundle: Path, speech: list[str], monkeypatch: pytest.MonkeyPatch
):
    recognizer = tritone.load(toy_bundle)
    recognize, bad = OfflinePipeline._recognize, len(toy_waveform(TEXTS[0]))

    def breaking(self: OfflinePipeline, jobs: Any) -> list[Transcript | TritoneError]:
        if any(len(waveform) == bad for waveform, _ in jobs):
            raise RuntimeError("out of memory")
        return recognize(self, jobs)

    monkeypatch.setattr(OfflinePipeline, "_recognize", breaking)
    outcomes = sorted(BundleSystem(recognizer).run(speech), key=lambda outcome: outcome.index)
    assert [None if each.transcript is None else each.transcript.text for each in outcomes] == [
        None,
        TEXTS[1],
        TEXTS[2],
    ]
    assert isinstance(outcomes[0].error, OperatorError)
    with pytest.raises(OperatorError) as raised:
        outcomes[0].get()
    assert str(raised.value) == f"{speech[0]}: RuntimeError: out of memory"


def test_a_batch_shares_its_time_by_the_length_of_the_audio(
    toy_bundle: Path, speech: list[str], monkeypatch: pytest.MonkeyPatch
):
    clock = FakeTime()
    monkeypatch.setattr(sources, "time", clock)
    recognizer = tritone.load(toy_bundle)

    def slow(self: OfflinePipeline, waveforms: Any, options: Any = None) -> list[Transcript]:
        clock.sleep(6.0)
        return [Transcript("") for _ in waveforms]

    monkeypatch.setattr(OfflinePipeline, "run", slow)
    outcomes = list(BundleSystem(recognizer).run(speech))
    assert [outcome.latency_s for outcome in outcomes] == pytest.approx([6.0, 6.0, 6.0])
    assert sum(outcome.compute_s for outcome in outcomes) == pytest.approx(6.0)
    assert outcomes[0].compute_s / outcomes[1].compute_s == pytest.approx(outcomes[0].audio_s / outcomes[1].audio_s)


def test_a_bundle_holds_the_audio_of_one_batch_and_of_what_is_read_ahead(
    toy_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    alive: list[weakref.ref[Any]] = []
    most = 0

    def reading(path: str, rate: int, **_: Any) -> Waveform:
        nonlocal most
        waveform = np.zeros(SAMPLE_RATE, np.float32)
        alive.append(weakref.ref(waveform))
        most = max(most, sum(each() is not None for each in alive))
        return waveform

    monkeypatch.setattr("tritone.audio.inputs.read_audio", reading)
    monkeypatch.setattr(read_ahead, "ROOM_S", 5.0)
    monkeypatch.setattr(OfflinePipeline, "run", lambda self, waveforms, options: [Transcript("")] * len(waveforms))
    recognizer = tritone.load(toy_bundle)
    count = sum(1 for _ in BundleSystem(recognizer, concurrency=10).run(f"{n}.wav" for n in range(1000)))
    assert count == 1000
    assert (
        most <= 10 + 5 + 2 * read_ahead.MAX_READERS
    )  # a batch, what is read ahead, and one in the hand of each reader


def test_a_batch_of_long_files_has_few_of_them(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    batches: list[int] = []

    def count(self: OfflinePipeline, waveforms: list[Waveform], options: Any) -> list[Transcript]:
        batches.append(len(waveforms))
        return [Transcript("") for _ in waveforms]

    monkeypatch.setattr("tritone.pipelines.recognizer.Recognizer.batch_s", 2.5)
    monkeypatch.setattr(
        "tritone.pipelines.sources.read_or_blocks",
        lambda path, rate, *_, **__: np.zeros(int(float(path) * rate), np.float32),
    )
    monkeypatch.setattr(OfflinePipeline, "run", count)
    system = BundleSystem(tritone.load(toy_bundle), concurrency=4)
    assert len(list(system.run(["1", "1", "1", "9", ".5", ".5", ".5", ".5"]))) == 8
    assert batches == [3, 1, 4]


def test_a_system_that_is_closed_lets_go_of_its_model(toy_bundle: Path):
    recognizer = tritone.load(toy_bundle)
    gone = weakref.ref(recognizer)
    system = BundleSystem(recognizer)
    del recognizer
    system.close()
    assert gone() is None


def test_a_stream_gives_an_outcome_with_every_answer(noise: Callable[[int], str], clock: FakeTime):
    stream = FakeStream()
    (outcome,) = play([noise(250)], lambda: stream)
    assert stream.chunks == [100, 100, 50]
    assert stream.closed
    assert outcome.transcript == Transcript("250 in all")
    assert outcome.partials == (
        Partial(text="1 100", spoken_s=0.1, answered_s=0.1),
        Partial(text="2 200", spoken_s=0.2, answered_s=0.2),
        Partial(text="250 in all", spoken_s=0.25, answered_s=0.25, is_final=True),
    )
    assert (outcome.audio_s, outcome.latency_s, outcome.compute_s) == (0.25, 0.0, 0.0)


def test_the_latency_of_a_stream_that_is_not_paced_is_that_of_one_that_were(
    noise: Callable[[int], str], clock: FakeTime
):
    """Chunks are spoken at 0.1, 0.2, 0.25 s; answers take 0.03, 0.3, 0.02 s, and the end 0.04 s."""
    took = iter((0.03, 0.3, 0.02, 0.04))
    (outcome,) = play([noise(250)], lambda: FakeStream(lambda _: clock.sleep(next(took))))
    # The second answer comes at 0.2 + 0.3 s, so the third chunk, spoken at 0.25 s, is only sent at 0.5 s.
    assert [each.answered_s for each in outcome.partials] == pytest.approx([0.13, 0.5, 0.56])
    assert outcome.latency_s == pytest.approx(0.56 - 0.25)
    assert outcome.compute_s == pytest.approx(0.03 + 0.3 + 0.02 + 0.04)


def test_the_latency_of_a_paced_stream_counts_from_when_its_audio_was_spoken(
    noise: Callable[[int], str], clock: FakeTime
):
    took = iter((0.03, 0.3, 0.02, 0.04))
    (outcome,) = play([noise(250)], lambda: FakeStream(lambda _: clock.sleep(next(took))), realtime=True)
    assert [each.answered_s for each in outcome.partials] == pytest.approx([0.13, 0.5, 0.56])
    assert [each.latency_s for each in outcome.partials] == pytest.approx([0.03, 0.3, 0.31])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_streams_run_side_by_side_and_no_more_of_them_than_asked_for(noise: Callable[[int], str], concurrency: int):
    together = threading.Barrier(concurrency, timeout=20)
    lock = threading.Lock()
    opened = most = 0

    @contextmanager
    def open_stream() -> Iterator[FakeStream]:
        nonlocal opened, most
        with lock:
            opened += 1
            most = max(most, opened)
        together.wait()  # none goes on before all are there
        yield FakeStream()
        with lock:
            opened -= 1

    outcomes = streams.play_files(
        iter([noise(100 * n) for n in range(1, 2 * concurrency + 1)]),
        open_stream,
        sample_rate=RATE,
        playback=Playback(chunk_ms=100),
        concurrency=concurrency,
    )
    assert sorted((each.index, each.transcript.text) for each in outcomes) == [  # type: ignore[union-attr]
        (n, f"{100 * (n + 1)} in all") for n in range(2 * concurrency)
    ]
    assert most == concurrency


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    ("error", "seen"),
    [(ServerBusyError("no slots"), "no slots"), (KeyError("x"), "recognition failed (KeyError: 'x')")],
)
def test_a_stream_that_breaks_fails_alone_and_keeps_what_it_had(
    noise: Callable[[int], str], concurrency: int, error: Exception, seen: str
):
    def behave(chunk: int) -> None:
        if chunk == 3:
            raise error

    outcomes = {
        each.index: each
        for each in play([noise(100), noise(500), noise(150)], lambda: FakeStream(behave), concurrency=concurrency)
    }
    assert [outcomes[place].error is None for place in range(3)] == [True, False, False]
    assert seen in str(outcomes[1].error)
    assert [each.text for each in outcomes[1].partials] == ["1 100", "2 200"]
    assert outcomes[1].transcript is None


def test_a_stream_without_a_final_result_is_an_error(noise: Callable[[int], str]):
    class Endless(FakeStream):
        def finish(self) -> Transcript:
            return Transcript("still going", is_final=False)

    (outcome,) = play([noise(100)], Endless)
    assert isinstance(outcome.error, InputError)
    assert "no final result" in str(outcome.error)


def test_a_listener_hears_every_answer(noise: Callable[[int], str]):
    heard: list[tuple[int, str]] = []
    list(play([noise(100), noise(150)], on_partial=lambda index, transcript: heard.append((index, transcript.text))))
    assert heard == [(0, "100 in all"), (1, "1 100"), (1, "150 in all")]


def test_leaving_early_gives_up_streams_that_nobody_answers(
    noise: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams, "LEAVE_S", 0.05)
    silent, stuck = threading.Event(), threading.Event()
    before, sent = set(threading.enumerate()), []

    def behave(chunk: int) -> None:
        sent.append(chunk)
        if chunk > 2:
            stuck.set()
            silent.wait(120)

    outcomes = play([noise(100), *[noise(5000)] * 10], lambda: FakeStream(behave), concurrency=2)
    assert next(outcomes).index == 0
    assert stuck.wait(60)
    started = time.monotonic()
    outcomes.close()
    assert time.monotonic() - started < 60
    silent.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert max(sent) == 3  # an answer that comes after all is followed by no further chunk


def test_what_breaks_in_the_callers_own_listener_reaches_the_caller(noise: Callable[[int], str]):
    def listen(index: int, transcript: Transcript) -> None:
        raise SystemExit("enough")

    with pytest.raises(SystemExit, match="enough"):
        list(play([noise(100), noise(100)], concurrency=2, on_partial=listen))


def test_files_are_taken_only_as_streams_become_free(noise: Callable[[int], str]):
    taken: list[int] = []

    def paths() -> Iterator[str]:
        for place in range(6):
            taken.append(place)
            yield noise(100)

    outcomes = play(paths(), concurrency=2)
    next(outcomes)
    assert len(taken) <= 3
    assert len(list(outcomes)) == 5


def test_a_result_says_how_late_each_answer_was():
    partial = Partial(text="a", spoken_s=1.0, answered_s=1.25)
    assert partial.latency_s == 0.25
    assert TranscriptResult(index=0, source="a").partials == ()
