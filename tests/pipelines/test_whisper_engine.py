"""Whisper's engine on a CPU writes what the search on the host writes, alone and in any company."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tritone
from families.whisper_models import random_model, speech, write_folder
from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError, BundleError, InputError, OperatorError, RetryError
from tritone.families.whisper.export import export_whisper
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.isolation import UnexpectedError
from tritone.pipelines.streams import Step
from tritone.pipelines.whisper.device import MOST_ROWS, MOST_WINDOWS, fitting, held_features, open_device
from tritone.pipelines.whisper.draft import DraftModel, check_pair
from tritone.pipelines.whisper.engine import Engine
from tritone.pipelines.whisper.hypothesis import Look
from tritone.pipelines.whisper.network import features_of
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.settling import LiveWord
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.pipelines.whisper.together import Together
from tritone.preparing import Preparing
from tritone.repository import BuiltModel, ModelOptions, build_repository
from tritone.repository.config import from_text, model_config, parameter
from tritone.search.device.attending import Caches
from tritone.transcript import Transcript

PLACEMENT = Placement(threads=1, runtime="torch")
PLAIN = DecodingOptions(
    language="en",
    temperature=(0.0,),
    previous_text=False,
    no_speech_threshold=None,
    log_prob_threshold=None,
    compression_ratio_threshold=None,
)
LONG_PROMPT = "the and is in the and is in the"  # more tokens than are read step by step
JOBS = [
    (2.9, PLAIN),
    (0.3, replace(PLAIN, previous_text=True)),
    (1.7, replace(PLAIN, language="")),
    (0.005, PLAIN),
    (1.0, replace(PLAIN, prompt="and the", timestamps=False)),
    (3.4, replace(PLAIN, beam=2)),
    (1.9, replace(PLAIN, beam=5, previous_text=True)),
    (2.2, replace(PLAIN, max_tokens=3)),
    (0.6, replace(PLAIN, suppress=(1, 2, 3))),
    (1.0, replace(PLAIN, beam=3, language="", prompt=LONG_PROMPT, length_penalty=0.5)),
    (2.1, replace(PLAIN, previous_text=True, prompt=LONG_PROMPT, carry_prompt=True)),
    (0.8, replace(PLAIN, no_speech_threshold=0.0, log_prob_threshold=-3.0)),
    (1.2, replace(PLAIN, language="", allowed_languages=("zh", "de"))),
    (3.1, replace(PLAIN, language="", multilingual=True)),
    (3.3, replace(PLAIN, language="", task="identify")),
    (1.1, replace(PLAIN, language="", task="identify", allowed_languages=("zh", "en"))),
]
SAMPLED = [(1.4, replace(PLAIN, temperature=(0.7,), best_of=3, seed=seed, previous_text=True)) for seed in range(3)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> WhisperPipeline:
    folder = tmp_path_factory.mktemp("engine")
    checkpoint = write_folder(folder / "model", random_model())
    report = export_whisper(checkpoint=checkpoint, output=folder / "small", runtimes=("torch",), check=False)
    return WhisperPipeline(report.bundle, placement=PLACEMENT)


@pytest.fixture(scope="module")
def engine(host: WhisperPipeline) -> WhisperPipeline:
    return WhisperPipeline(host.bundle, placement=PLACEMENT, on_device=True)


@pytest.fixture(params=["host", "engine"])
def either(request: pytest.FixtureRequest) -> WhisperPipeline:
    """Both, one after the other: each takes recordings at any time."""
    found: WhisperPipeline = request.getfixturevalue(request.param)
    return found


def heard(jobs: list[tuple[float, DecodingOptions]]) -> tuple[list[np.ndarray], list[DecodingOptions]]:
    return [speech(seconds, seed) for seed, (seconds, _) in enumerate(jobs)], [options for _, options in jobs]


def tokens(found: Transcript) -> list[tuple[int, ...]]:
    return [each.tokens for each in found.segments]


def test_it_writes_what_the_host_writes_whatever_is_asked_for(host: WhisperPipeline, engine: WhisperPipeline) -> None:
    waveforms, options = heard(JOBS)
    expected, found = host.transcribe(waveforms, options), engine.transcribe(waveforms, options)
    assert sum(map(len, map(tokens, expected))) > 20
    for ours, theirs in zip(found, expected, strict=True):
        assert (tokens(ours), ours.text, ours.language) == (tokens(theirs), theirs.text, theirs.language)
        assert (ours.confidence is None) == (theirs.confidence is None)
        assert ours.confidence == (theirs.confidence and pytest.approx(theirs.confidence, rel=1e-4))
        assert [each for each, _ in ours.languages] == [each for each, _ in theirs.languages]
        assert dict(ours.languages) == pytest.approx(dict(theirs.languages), abs=1e-4)
        for one, other in zip(ours.segments, theirs.segments, strict=True):
            assert (one.start_s, one.end_s) == (other.start_s, other.end_s)
            assert one.avg_log_prob == pytest.approx(other.avg_log_prob, abs=1e-4)
            assert one.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-5)


def test_the_language_is_one_of_those_that_are_allowed(host: WhisperPipeline) -> None:
    waveform = speech(0.9)  # within a window of this model
    found = dict(host.transcribe([waveform], [DecodingOptions(task="identify")])[0].languages)
    assert set(found) == {"en", "zh", "de"}
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    free = max(found, key=found.__getitem__)
    others = tuple(code for code in found if code != free)
    options = [replace(PLAIN, language="", allowed_languages=each) for each in (tuple(found), others, others[:1])]
    written = host.transcribe([waveform] * 3, options)
    assert [each.language for each in written] == [free, max(others, key=found.__getitem__), others[0]]
    assert written[1].languages[0][1] == pytest.approx(
        found[written[1].language] / sum(found[code] for code in others), abs=1e-4
    )
    assert written[2].languages == ()  # nothing was to be detected
    assert {each.language for each in written[1].segments} == {written[1].language}


def test_a_long_recording_is_identified_by_windows_of_all_of_it(host: WhisperPipeline) -> None:
    options = DecodingOptions(task="identify")
    waveform = speech(27.0)
    whole, begin = host.transcribe([waveform, waveform[:16000]], [options] * 2)
    assert (whole.text, whole.segments, whole.audio_s) == ("", (), pytest.approx(27.0))
    assert sum(dict(whole.languages).values()) == pytest.approx(1.0, abs=0.02)
    assert dict(whole.languages) != pytest.approx(dict(begin.languages), abs=1e-6)
    assert whole.language == whole.languages[0][0]
    empty = host.transcribe([np.zeros(0, np.float32)], [options])[0]
    assert (empty.language, empty.languages) == ("", ())


@pytest.mark.gpu
def test_on_a_gpu_it_writes_what_it_writes_on_a_cpu(engine: WhisperPipeline) -> None:
    waveforms, options = heard([*JOBS, *SAMPLED])
    on_gpu = WhisperPipeline(engine.bundle, placement=replace(PLACEMENT, device="cuda"), on_device=True)
    on_gpu.warm_up()
    pairs = zip(on_gpu.transcribe(waveforms, options), engine.transcribe(waveforms, options), strict=True)
    same = [tokens(found) == tokens(expected) for found, expected in pairs]
    assert sum(same) >= len(same) - 1, "one may have two tokens that are as good as equally likely"


@pytest.mark.slow
def test_a_recording_gives_the_same_alone_and_in_company(either: WhisperPipeline) -> None:
    waveforms, options = heard([*JOBS, *SAMPLED])
    together = either.transcribe(waveforms, options)
    alone = [either.transcribe([each], [chosen])[0] for each, chosen in zip(waveforms, options, strict=True)]
    assert [*map(tokens, together)] == [*map(tokens, alone)]
    assert len({str(tokens(each)) for each in together[-3:]}) == 3, "seeds do nothing"


def test_temperatures_are_tried_until_a_text_is_good_enough(engine: WhisperPipeline) -> None:
    options = replace(PLAIN, temperature=(0.0, 0.5, 1.0), log_prob_threshold=0.0, fallback="last")
    [found] = engine.transcribe([speech(0.9)], [options])
    assert [each.temperature for each in found.segments] == [1.0] * len(found.segments)
    assert engine.transcribe([speech(0.9)], [replace(PLAIN, log_prob_threshold=-99.0)])[0].segments[0].temperature == 0


def test_words_have_times_without_another_call(host: WhisperPipeline, engine: WhisperPipeline) -> None:
    waveforms, options = heard([(2.7, replace(PLAIN, word_times=True)), (1.9, replace(PLAIN, word_times=True, beam=3))])
    for found, expected in zip(engine.transcribe(waveforms, options), host.transcribe(waveforms, options), strict=True):
        assert tokens(found) == tokens(expected)
        assert [each.text for each in found.words] == [each.text for each in expected.words]
        times = [time for each in found.words for time in (each.start_s, each.end_s)]
        assert times
        assert all(0 <= each.start_s <= each.end_s <= 2.72 for each in found.words)
        assert all(0 <= each.confidence <= 1 for each in found.words)


@pytest.mark.parametrize("before", [0, 9])
def test_a_text_after_final_words_is_what_the_host_writes_after_them(
    host: WhisperPipeline, engine: WhisperPipeline, before: int
) -> None:
    options = [PLAIN, replace(PLAIN, beam=3), replace(PLAIN, language="")]
    looks = [
        Look(
            model=host.model,
            features=features_of(host._features_of.args[0], speech(1.0, seed)),
            options=options[seed % 3],
            language=options[seed % 3].language,
            before=[65 + place for place in range(before)],
            final=[LiveWord(f" {n}", (70 + n,), 0.1 * n, 0.1 * n + 0.1, 1.0) for n in range(seed)],
            begin_s=0.0,
            end_s=1.0,
            quiet_s=1.0,
            is_last=False,
        )
        for seed in range(7)
    ]
    expected, found = (each.answer(look.course() for look in looks) for each in (host, engine))
    for ours, theirs in zip(found, expected, strict=True):
        assert [word.tokens for word in ours.words] == [word.tokens for word in theirs.words]
        assert ours.language == theirs.language
    assert sum(len(each.words) for each in found) >= 15
    for look, each in zip(looks, found, strict=True):
        first_s = look.final[-1].end_s if look.final else 0.0
        assert all(first_s - 0.02 <= word.start_s <= word.end_s <= 1.0 for word in each.words)


@pytest.fixture(scope="module")
def drafts(host: WhisperPipeline, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Bundles with the tokens of `host`: one that often guesses right, and a smaller one that hardly does."""
    folder = tmp_path_factory.mktemp("drafts")
    alike, other = random_model(), random_model(seed=5, decoder_layers=1, encoder_layers=1, d_model=16)
    with torch.no_grad():
        for parameter in alike.model.decoder.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * parameter
    found = {}
    for name, model in (("alike", alike), ("other", other)):
        checkpoint, output = write_folder(folder / f"{name}-model", model), folder / name
        found[name] = export_whisper(checkpoint=checkpoint, output=output, precisions=("fp32",), check=False).bundle
    return found


class Counting:
    """A decoder's graph that counts its calls, and the most tokens of a row in one that is no prompt."""

    def __init__(self, graph: Any) -> None:
        self._graph, self.calls, self.most = graph, 0, 0

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        self.calls += 1
        if next(value for name, value in inputs.items() if name.startswith("self_key")).shape[2]:
            self.most = max(self.most, inputs["tokens"].shape[1])
        return self._graph(inputs, outputs)


@pytest.mark.parametrize("name", ["alike", "other"])
def test_a_draft_changes_no_result_in_any_company(
    host: WhisperPipeline, drafts: dict[str, Bundle], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted = WhisperPipeline(host.bundle, placement=PLACEMENT, draft=DraftModel(drafts[name]))
    counts = {}
    for each in (host, drafted):
        assert isinstance(each._answers, Together)
        counts[each] = Counting(each._answers._network.decoder)
        monkeypatch.setattr(each._answers._network, "decoder", counts[each])
    words = [
        (2.7, replace(PLAIN, word_times=True)),
        (1.3, replace(PLAIN, temperature=(0.0, 0.6), log_prob_threshold=0)),
    ]
    waveforms, options = heard([*JOBS, *SAMPLED, *words])
    expected, together = host.transcribe(waveforms, options), drafted.transcribe(waveforms, options)
    some = slice(0, 5)  # alone
    alone = [
        drafted.transcribe([each], [chosen])[0] for each, chosen in zip(waveforms[some], options[some], strict=True)
    ]
    for ours, theirs in zip([*together, *alone], [*expected, *expected[some]], strict=True):
        assert (tokens(ours), ours.text, ours.language) == (tokens(theirs), theirs.text, theirs.language)
        assert (ours.confidence is None) == (theirs.confidence is None)
        assert ours.confidence == (theirs.confidence and pytest.approx(theirs.confidence, rel=1e-4))
        for one, other in zip(ours.segments, theirs.segments, strict=True):
            assert (one.start_s, one.end_s, one.temperature) == (other.start_s, other.end_s, other.temperature)
            assert one.avg_log_prob == pytest.approx(other.avg_log_prob, abs=1e-4)
            assert one.no_speech_prob == pytest.approx(other.no_speech_prob, abs=1e-5)
        assert [each.text for each in ours.words] == [each.text for each in theirs.words]
        starts = [[each.start_s for each in found.words] for found in (ours, theirs)]
        assert starts[0] == pytest.approx(starts[1], abs=1e-6)
    assert counts[drafted].most > 1 == counts[host].most


def test_right_guesses_save_calls(host: WhisperPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is its own draft guesses all: a text of six tokens takes its prompt and two calls."""
    drafted = WhisperPipeline(host.bundle, placement=PLACEMENT, draft=DraftModel(host.bundle))
    calls = []
    for each in (host, drafted):
        assert isinstance(each._answers, Together)
        counting = Counting(each._answers._network.decoder)
        monkeypatch.setattr(each._answers._network, "decoder", counting)
        [found] = each.transcribe([speech(4.0)], [PLAIN])
        calls.append(counting.calls)
    assert sum(map(len, tokens(found))) >= 15
    assert calls[1] <= 0.6 * calls[0]


def test_live_streams_with_a_draft_say_the_same(host: WhisperPipeline, drafts: dict[str, Bundle]) -> None:
    drafted = WhisperPipeline(host.bundle, placement=PLACEMENT, draft=DraftModel(drafts["alike"]))
    answers = []
    for pipeline in (host, drafted):
        streams = WhisperStreams(pipeline)
        slots = [streams.open(replace(PLAIN, partial_s=0.5)) for _ in range(2)]
        audio = [speech(1.6, seed) for seed in range(2)]
        for start in range(0, 25600, 6400):
            steps = [
                Step(slot, each[start : start + 6400], start + 6400 >= 25600)
                for slot, each in zip(slots, audio, strict=True)
            ]
            answers.append([(each.whole_text, each.settled) for each in streams.advance(steps)])
    assert answers[:4] == answers[4:]
    assert answers[3][0][0]


def stand_in(manifest: Any, tokens: tuple[str, ...], **whisper: Any) -> Any:
    """Stands for a bundle with this manifest, whose part on Whisper is changed, and these tokens."""
    changed = manifest.with_part(manifest.part(WhisperPart).model_copy(update=whisper))
    return SimpleNamespace(path="draft", manifest=changed, vocabulary=SimpleNamespace(tokens=tokens))


def test_pairs_that_cannot_be_are_refused(host: WhisperPipeline, drafts: dict[str, Bundle]) -> None:
    manifest, known = drafts["other"].manifest, drafts["other"].vocabulary.tokens
    english = stand_in(manifest, known, languages={})
    for draft, told in (
        (stand_in(manifest, ("zzz", *known[1:])), "its token 0 is 'zzz', not"),
        (stand_in(manifest, known[:-1]), f"it has {len(known) - 1} tokens, not {len(known)}"),
        (stand_in(manifest, known, sot=5, text_context=32), "they differ in sot, text_context"),
        (english, "they differ in languages"),
    ):
        with pytest.raises(BundleError, match=told):
            check_pair(host.bundle, draft)
    with pytest.raises(BundleError, match="writes its texts on the device, where there is no draft"):
        WhisperPipeline(host.bundle, placement=PLACEMENT, on_device=True, draft=DraftModel(drafts["alike"]))
    with pytest.raises(InputError, match="draft_precision is of a draft, and there is none"):
        tritone.load(host.bundle.path, draft_precision="int8")
    with pytest.raises(InputError, match="of kind embedding, which has no draft"):
        tritone.load("demo-speaker", draft=drafts["alike"].path)


def test_a_repository_has_a_draft_of_its_own(host: WhisperPipeline, drafts: dict[str, Bundle], tmp_path: Path) -> None:
    draft, folder = drafts["other"].path, host.bundle.path

    def build(model: str | Path, **options: Any) -> list[BuiltModel]:
        return build_repository([model], tmp_path / "repository", options=ModelOptions(**options))

    for built in build(folder, draft=str(draft), draft_precision="fp32"):
        written = Bundle.open(built.path / "1" / "draft")
        assert written.manifest == drafts["other"].manifest
        settings = from_text((built.path / "config.pbtxt").read_text(encoding="utf-8"))
        assert [parameter(settings, name) for name in ("draft", "draft_precision")] == ["draft", "fp32"]
    for model, options, told in (
        (folder, {"draft_precision": "int8"}, "--draft-precision is of a draft, and there is none"),
        (folder, {"draft": str(draft), "draft_precision": "int8"}, "int8"),
        (folder, {"draft": str(draft), "device": "gpu"}, "a draft guesses on the CPU, but the device is gpu"),
        ("demo-speaker", {"draft": str(draft)}, "is no Whisper model"),
    ):
        with pytest.raises(BundleError, match=told):
            build(model, **options)


def small(pipeline: WhisperPipeline, windows: int, rows: int) -> Engine | Together:
    """An engine with few slots, for a pipeline's courses."""
    if isinstance(pipeline._answers, Together):
        return Together(pipeline._answers._network, pipeline.work, pipeline.frame_shift, windows)
    device = open_device(pipeline.bundle, PLACEMENT, windows=windows, rows=rows)
    return Engine(device, pipeline.special, len(pipeline.bundle.vocabulary), pipeline.work, pipeline.frame_shift)


def test_caches_take_half_of_the_free_memory_with_what_waits_and_too_little_is_refused(host: WhisperPipeline) -> None:
    network: Any = open_device(host.bundle, PLACEMENT, windows=1, rows=1).writing.network
    window, row, held = Caches.window_bytes(network), Caches.row_bytes(network), 10**6
    for free in (10**8, 10**9):
        windows, rows = fitting(network, free, held)
        assert windows * (window + held) + rows * row <= free // 2
    assert fitting(network, 10**8, held)[0] < fitting(network, 10**8)[0]
    assert fitting(network, 10**12, held) == (MOST_WINDOWS, MOST_ROWS)
    with pytest.raises(OperatorError, match="must have room in half of it"):
        fitting(network, 2 * (window + 15 * row), held)


def test_what_no_text_needs_is_made_ready_beside_requests_and_the_first_text_does_not_wait(
    engine: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparing = Preparing()
    device = open_device(engine.bundle, PLACEMENT, windows=2, rows=5)
    held, made = threading.Event(), list[str]()

    def first_calls(*_: Any) -> list[Any]:
        return [partial(made.append, "needed"), partial(made.append, "needed"), held.wait, partial(made.append, "rest")]

    monkeypatch.setattr(device, "first_calls", first_calls)
    arguments = engine.special, len(engine.bundle.vocabulary), engine.work, engine.frame_shift, preparing
    beside = Engine(device, *arguments)
    beside.warm_up()
    assert made == ["needed", "needed"]
    assert preparing.text == "recording 0 of 2"
    held.set()
    [found] = beside.run([engine.course(speech(0.5), PLAIN)])
    assert isinstance(found, Transcript)
    if (thread := beside._thread) is not None:
        thread.join(60)
    assert made == ["needed", "needed", "rest"]
    assert preparing.text == "ready"


def test_first_calls_that_fail_are_told_and_texts_are_written_all_the_same(engine: WhisperPipeline) -> None:
    preparing = Preparing()
    few = small(engine, windows=2, rows=5)

    def fail() -> None:
        raise RuntimeError("no more memory")

    few._preparing, few._part = preparing, preparing.part("recording", 2)
    few._first_calls.extend([fail, fail])
    [found] = few.run([engine.course(speech(0.5), PLAIN)])
    assert isinstance(found, Transcript)
    if (thread := few._thread) is not None:
        thread.join(60)
    assert preparing.text == "recording failed: no more memory"


def test_first_calls_of_a_bundle_change_no_text(host: WhisperPipeline) -> None:
    preparing = Preparing()
    pipeline = WhisperPipeline(host.bundle, placement=replace(PLACEMENT, preparing=preparing), on_device=True)
    pipeline.warm_up()
    assert {*preparing.seconds} == {"weights", "kernels", "caches"}
    waveforms, options = heard(JOBS[:4])
    found, expected = pipeline.transcribe(waveforms, options), host.transcribe(waveforms, options)
    assert [*map(tokens, found)] == [*map(tokens, expected)]


def submit(
    engine: Engine | Together, pipeline: WhisperPipeline, seconds: float, options: DecodingOptions, done: Any
) -> None:
    engine.submit(pipeline.course(speech(seconds), options), done)


def test_more_recordings_than_slots_wait_and_a_short_one_does_not_wait_for_a_long_one(
    either: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[float] = []
    all_there, over = threading.Event(), threading.Semaphore(0)
    few = small(either, windows=2, rows=5)
    play = few._round

    def round_() -> None:
        assert all_there.wait(60)
        play()

    monkeypatch.setattr(few, "_round", round_)

    def done(seconds: float) -> Callable[[Any], None]:
        def told(result: Any) -> None:
            assert isinstance(result, Transcript)
            ended.append(seconds)
            over.release()

        return told

    lengths = [9.0, 8.0, 0.5, 0.6, 0.7]
    for seconds in lengths:
        submit(few, either, seconds, replace(PLAIN, beam=5 if seconds == 0.6 else 1), done(seconds))
    all_there.set()
    for _ in lengths:
        assert over.acquire(timeout=60)
    assert set(ended[:3]) == {0.5, 0.6, 0.7}


def test_who_is_not_waited_for_any_more_frees_what_it_has(either: WhisperPipeline) -> None:
    few = small(either, windows=1, rows=1)
    results: list[Any] = []
    over = threading.Semaphore(0)

    def done(result: Any) -> None:
        results.append(result)
        over.release()

    gone = time.monotonic() + 0.3
    endless = replace(PLAIN, temperature=(0.0,) * 8, log_prob_threshold=0.0)
    few.submit(either.course(speech(60.0), endless), done, lambda: time.monotonic() > gone)
    submit(few, either, 0.5, PLAIN, done)
    assert over.acquire(timeout=60)
    assert over.acquire(timeout=60)
    assert {type(each) for each in results} == {RetryError, Transcript}
    assert few.run([either.course(speech(0.5), PLAIN)]) == [each for each in results if isinstance(each, Transcript)]


def test_a_device_that_fails_fails_those_who_were_there_and_no_others(
    engine: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = small(engine, windows=2, rows=4)

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more memory")

    with monkeypatch.context() as patched:
        patched.setattr(few._device, "step", broken)
        found = few.run([engine.course(speech(0.5), PLAIN), engine.course(speech(0.7), PLAIN)])
    assert all(isinstance(each, UnexpectedError) and "no more memory" in str(each) for each in found)
    [after] = few.run([engine.course(speech(0.5), PLAIN)])
    assert isinstance(after, Transcript)


@pytest.mark.parametrize("windows", [1, 2])
def test_a_short_recording_waits_for_a_window_of_a_long_one_at_most(
    host: WhisperPipeline, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """Counted in rounds, each a call of the encoder at most and a step of all texts."""
    few, most = small(host, windows=windows, rows=0), 20
    options = replace(PLAIN, max_tokens=most)
    rounds, over, took = 0, threading.Semaphore(0), list[int]()
    play = few._round

    def done(since: int) -> Callable[[Any], None]:
        def told(_: Any) -> None:
            took.append(rounds - since)
            over.release()

        return told

    def round_() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 30:  # in the middle of a window of the long one
            submit(few, host, 0.5, options, done(rounds))
        play()

    monkeypatch.setattr(few, "_round", round_)
    submit(few, host, 60.0, options, done(0))
    for _ in range(2):
        assert over.acquire(timeout=60)
    own = most + 3  # its window, the prompt, a token a round, its end
    short, long = took
    assert short <= own + (most + 3 if windows == 1 else 1)
    assert long > 20 * own


def test_long_recordings_that_have_begun_hold_nobody_back(
    host: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = small(host, windows=1, rows=0)
    assert isinstance(few, Together)
    hear, may, over = few._network.encode, threading.Semaphore(0), threading.Semaphore(0)

    def slowly(windows: Any) -> Any:
        assert may.acquire(timeout=60)
        return hear(windows)

    monkeypatch.setattr(few._network, "encode", slowly)
    monkeypatch.setattr(host, "_answers", few)
    has_begun = threading.Event()
    tell = few._mark_started

    def told(recording: Any) -> None:
        tell(recording)
        has_begun.set()

    monkeypatch.setattr(few, "_mark_started", told)

    def submit(seconds: float) -> None:
        host.submit(speech(seconds), PLAIN, lambda _: over.release(), lambda: False)

    assert host.has_room
    submit(3.0)
    assert has_begun.wait(timeout=60)
    assert host.has_room  # the long one is in work, as it will be for some windows
    submit(0.5)
    assert not host.has_room
    with monkeypatch.context() as patched:
        may.release(99)
        assert over.acquire(timeout=60)
        assert over.acquire(timeout=60)
        patched.setattr("tritone.pipelines.whisper.pipeline.MOST_S", 70.0)
        while may.acquire(blocking=False):
            pass
        submit(71.0)  # whose features a thread makes
        assert not host.has_room
        may.release(999)
        assert over.acquire(timeout=60)
        assert host.has_room
    results: list[Any] = []
    host.submit(np.full(16000, np.nan, np.float32), PLAIN, results.append, lambda: False)
    assert isinstance(results[0], AudioError)
    assert host.has_room


def test_a_call_that_fails_in_company_is_made_again_for_each_alone(
    host: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = small(host, windows=4, rows=0)
    assert isinstance(few, Together)
    waveforms = [speech(seconds, 7) for seconds in (0.5, 0.7, 0.9)]
    expected = [host.transcribe([each], [PLAIN])[0] for each in waveforms]
    decoder, failed = few._network.decoder, list[int]()

    def short_of_memory(inputs: Any, outputs: Any) -> Any:
        if (rows := len(inputs["tokens"])) > 1:
            failed.append(rows)
            raise RuntimeError("no more memory")
        return decoder(inputs, outputs)

    monkeypatch.setattr(few._network, "decoder", short_of_memory)
    assert [*map(tokens, few.run([host.course(each, PLAIN) for each in waveforms]))] == [*map(tokens, expected)]
    assert max(failed) >= 2
    hear, lost = few._network.encode, len(features_of(host._features_of.args[0], waveforms[1]))

    def broken(windows: Any) -> Any:
        if any(len(each) == lost for each in windows):
            raise RuntimeError("no such window")
        return hear(windows)

    monkeypatch.setattr(few._network, "encode", broken)
    first, second, third = few.run([host.course(each, PLAIN) for each in waveforms])
    assert isinstance(second, UnexpectedError)
    assert [tokens(each) for each in (first, third)] == [tokens(expected[0]), tokens(expected[2])]


@pytest.mark.parametrize("seconds", [0.004, 0.51, 5.0, 7.3])
def test_features_that_stay_on_the_device_are_those_of_the_host(host: WhisperPipeline, seconds: float) -> None:
    graph, waveform = host._features_of.args[0], speech(seconds)
    expected = features_of(graph, waveform)
    held: Any = held_features(graph, host.frame_shift, waveform)
    assert len(held) == len(expected)
    np.testing.assert_array_equal(held.tensor().numpy(), expected)
    np.testing.assert_array_equal(held[7:40][3:].tensor().numpy(), expected[10:40])
    halves = (waveform * 32767).astype(np.int16)
    found: Any = held_features(graph, host.frame_shift, halves)
    np.testing.assert_allclose(found.tensor().numpy(), features_of(graph, halves), atol=1e-6)


def test_a_step_that_never_ends_and_a_beam_without_room_are_errors(
    engine: WhisperPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = small(engine, windows=2, rows=4)
    [refused] = few.run([engine.course(speech(0.5), replace(PLAIN, beam=5))])
    assert isinstance(refused, InputError)
    assert "5 texts were asked for together; there is room for 4" in str(refused)
    with monkeypatch.context() as patched:
        patched.setattr("tritone.pipelines.whisper.engine.STUCK_S", 0.05)
        patched.setattr(few._device, "step", lambda *_, **__: SimpleNamespace(is_there=False))
        [stuck] = few.run([engine.course(speech(0.5), PLAIN)])
    assert isinstance(stuck, OperatorError)
    assert "has not ended a step" in str(stuck)


def test_a_served_model_has_one_process_on_each_gpu(host: WhisperPipeline) -> None:
    def instances(**options: Any) -> int:
        count: int = model_config("m", "offline", ModelOptions(**options), host.bundle).instance_group[0].count
        return count

    assert (instances(device="gpu"), instances(device="gpu", instances=3), instances()) == (1, 3, 1)


def test_bundles_that_it_cannot_take_are_decoded_on_the_host(host: WhisperPipeline, tmp_path: Path) -> None:
    """As those of before, whose manifest does not say how many heads the encoder has."""
    old = host.bundle.manifest.with_part(host.special.model_copy(update={"encoder_heads": None}))
    bundle: Any = replace_manifest(host, old)
    with pytest.raises(BundleError, match="does not have encoder_heads; export it again"):
        WhisperPipeline(bundle, placement=PLACEMENT, on_device=True)
    assert tokens(WhisperPipeline(bundle, placement=PLACEMENT).transcribe([speech(0.5)], [PLAIN])[0])


def replace_manifest(pipeline: WhisperPipeline, manifest: Any) -> Any:
    import copy

    bundle = copy.copy(pipeline.bundle)
    object.__setattr__(bundle, "manifest", manifest)
    return bundle
