"""Live streams of Whisper: when a window is looked at, which words are final, where segments end.

The model is a script: words with times, of which a look gets those that it can hear, the last one cut off.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritone.errors import AudioError, InputError, ServerBusyError, StreamError
from tritone.pipelines.streams import Step
from tritone.pipelines.whisper.gate import LevelGate
from tritone.pipelines.whisper.hypothesis import Hypothesis, Look
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.settling import LiveWord, agreement, alignatt
from tritone.pipelines.whisper.stream import LiveStream
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.transcript import Transcript

RATE = 16000
Script = Sequence[tuple[float, float, str]]
SPECIAL = SimpleNamespace(window_frames=3000, languages={}, text_context=448)
MODEL: Any = SimpleNamespace(special=SPECIAL, sample_rate=RATE, frame_shift=160)


def spoken(script: Script, length_s: float) -> np.ndarray:
    """Audio that is loud where words are, in quiet noise."""
    samples = np.random.default_rng(0).normal(0, 1e-4, round(length_s * RATE)).astype(np.float32)
    for start_s, end_s, _ in script:
        part = samples[round(start_s * RATE) : round(end_s * RATE)]
        part += 0.1 * np.sin(np.arange(len(part)), dtype=np.float32)
    return samples


def talk(length_s: float, *, sentence: int = 8, pause_every_s: float = 1e9) -> Script:
    """Words of 0.4 s without gaps, in sentences of so many words, with a pause of 1.5 s now and then."""
    words, at, last_pause = [], 0.4, 0.0
    while at + 0.4 < length_s:
        end = "." if len(words) % sentence == sentence - 1 else ""
        words.append((at, at + 0.4, f" w{len(words)}{end}"))
        at += 0.4
        if at - last_pause > pause_every_s:
            at = last_pause = at + 1.5
    return words


class Scripted:
    """In place of a model's pipeline: answers looks by the script, and remembers them."""

    def __init__(self, script: Script, *, mishears: bool = True) -> None:
        self.script, self.mishears = script, mishears
        self.looks: list[Look] = []
        self.options = DecodingOptions()
        self.bundle: Any = None
        self.sample_rate, self.work = RATE, None

    def live(self, options: DecodingOptions | None = None) -> LiveStream:
        return LiveStream(MODEL, lambda audio: np.zeros((len(audio) // 160, 1)), options or self.options, [])

    def check_options(self, options: DecodingOptions) -> DecodingOptions:
        return options

    def warm_up(self) -> None: ...

    def answer(self, courses: Iterable[Any]) -> list[Hypothesis]:
        return [self.heard(each.gi_frame.f_locals["self"]) for each in courses]

    def heard(self, look: Look) -> Hypothesis:
        self.looks.append(look)
        assert len(look.features) <= SPECIAL.window_frames
        since_s = look.final[-1].end_s if look.final else look.begin_s
        words = []
        for start_s, end_s, text in self.script:
            middle_s = (start_s + end_s) / 2
            if since_s < middle_s < look.end_s:
                cut = self.mishears and end_s > look.end_s
                said = f"{text[:2]}?" if cut else text
                words.append(LiveWord(said, (1,), start_s, min(end_s, look.quiet_s), 0.9))
        return Hypothesis(tuple(words), "en")


def play(streams: WhisperStreams, audio: np.ndarray, chunk_s: float, **options: Any) -> Iterator[Transcript]:
    slot = streams.open(DecodingOptions(**options))
    size = round(chunk_s * RATE)
    for start in range(0, max(1, len(audio)), size):
        final = start + size >= len(audio)
        yield from streams.advance([Step(slot, audio[start : start + size], final)])


def text_of(script: Script) -> str:
    return "".join(text for _, _, text in script).strip()


@pytest.mark.parametrize("policy", ["alignatt", "agreement"])
@pytest.mark.parametrize("chunk_s", [0.1, 0.73, 3.0])
def test_a_stream_writes_what_was_said_and_never_changes_what_is_final(policy: str, chunk_s: float) -> None:
    script = talk(40.0, pause_every_s=13.0)
    answers = list(play(WhisperStreams(Scripted(script)), spoken(script, 41.0), chunk_s, policy=policy))  # type: ignore[arg-type]
    assert answers[-1].whole_text == text_of(script)
    assert answers[-1].is_final
    assert not any(each.is_final for each in answers[:-1])
    final = [each.whole_text[: len(each.whole_text) - len(each.text) + each.settled] for each in answers[:-1]]
    for text, after in zip(final, answers[1:], strict=True):
        assert after.whole_text.startswith(text.rstrip())
    assert sum(bool(each.settled) for each in answers) > len(answers) / 3


def test_how_audio_is_cut_changes_no_word_and_no_time() -> None:
    script = talk(30.0, pause_every_s=9.0)
    audio = spoken(script, 31.0)
    found = []
    for chunk_s in (0.02, 0.35, 4.9):
        answers = list(play(WhisperStreams(Scripted(script)), audio, chunk_s))  # type: ignore[arg-type]
        found.append(([part for each in answers for part in each.ended], answers[-1].words))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("partial_s", "most_s"), [(1.0, 2.25), (2.0, 3.25)])
def test_a_word_is_final_soon_after_its_end(partial_s: float, most_s: float) -> None:
    script = talk(20.0)
    streams = WhisperStreams(Scripted(script))  # type: ignore[arg-type]
    for heard, answer in enumerate(play(streams, spoken(script, 21.0), 0.1, partial_s=partial_s), 1):
        final = answer.whole_text if answer.is_final else answer.whole_text[: answer.settled + len(answer.history) + 1]
        missing = [end_s for _, end_s, text in script if text.strip() not in final.split()]
        assert not missing or heard / 10 - missing[0] < most_s


def test_silence_is_never_looked_at() -> None:
    model = Scripted([])
    (*_, last) = play(WhisperStreams(model), np.zeros(20 * RATE, np.float32), 0.5)  # type: ignore[arg-type]
    assert (last.text, last.ended, model.looks) == ("", (), [])
    noise = np.random.default_rng(1).normal(0, 3e-3, 20 * RATE).astype(np.float32)
    list(play(WhisperStreams(model), noise, 0.5))  # type: ignore[arg-type]
    assert model.looks == []


def test_a_pause_ends_a_segment_and_words_keep_their_times() -> None:
    script = [(1.0, 1.5, " one"), (1.5, 2.0, " two"), (6.0, 6.5, " three")]
    model = Scripted(script)
    answers = list(play(WhisperStreams(model), spoken(script, 8.0), 0.1))  # type: ignore[arg-type]
    ended = [(index, part) for index, each in enumerate(answers, 1) for part in each.ended]
    assert [part.text for _, part in ended] == ["one two", "three"]
    assert [index / 10 for index, _ in ended] == [pytest.approx(3.0), pytest.approx(7.5)]
    assert [(word.text, word.start_s) for word in ended[1][1].words] == [("three", 6.0)]
    assert (answers[-1].text, answers[-1].segment, answers[-1].history) == ("", 2, "one two three")
    assert len(model.looks) <= 6  # nothing is looked at in the pause
    assert model.looks[-1].begin_s > 5.0


def test_without_pauses_segments_end_with_sentences() -> None:
    script = talk(60.0)
    answers = list(play(WhisperStreams(Scripted(script)), spoken(script, 60.0), 0.5))  # type: ignore[arg-type]
    ended = [part for each in answers for part in each.ended]
    assert len(ended) >= 3
    assert all(part.text.endswith(".") for part in ended)


def test_speech_without_sentences_is_cut_before_the_window_is_full() -> None:
    script = talk(70.0, sentence=10**6)
    model = Scripted(script)
    (*_, last) = play(WhisperStreams(model), spoken(script, 70.0), 0.5)  # type: ignore[arg-type]
    assert last.whole_text == text_of(script)
    assert max(look.end_s - look.begin_s for look in model.looks) <= 30.0


def test_a_model_that_says_nothing_of_speech_holds_no_audio() -> None:
    stream = Scripted([]).live()
    audio = spoken([(0.0, 90.0, "")], 90.0)
    for start in range(0, len(audio), RATE):
        stream.push(audio[start : start + RATE], final=False)
        while stream.look() is not None:
            stream.take(Hypothesis((), "en"))
    assert sum(map(len, stream._parts)) <= 30 * RATE


def held(stream: LiveStream) -> int:
    return sum(map(len, stream._parts)) + len(stream._passes) + len(stream._before) + len(stream._final)


@pytest.mark.slow
def test_memory_of_three_hours_is_that_of_a_window() -> None:
    script = talk(55.0, pause_every_s=19.0)
    model = Scripted([])
    audio, stream, most = spoken(script, 60.0), model.live(), []
    for minute in range(180):
        model.script = [(start + 60.0 * minute, end + 60.0 * minute, text) for start, end, text in script]
        largest = 0
        for start in range(0, len(audio), RATE // 2):
            stream.push(audio[start : start + RATE // 2], final=False)
            while (look := stream.look()) is not None:
                stream.take(model.heard(look))
            stream.answer(details=True)
            largest = max(largest, held(stream))
        most.append(largest)
        model.looks.clear()
    assert max(most[2:]) == max(most[:30]) < 31 * RATE


def test_text_that_repeats_itself_waits_for_more_audio() -> None:
    stream = Scripted([]).live()
    stream.push(spoken([(0.2, 3.0, "")], 3.0), final=False)
    assert stream.look() is not None
    loop = tuple(LiveWord(" la", (1,), 0.1 * n, 0.1 * n + 0.1, 0.9) for n in range(9))
    stream.take(Hypothesis(loop, "en", is_sound=False))
    assert stream.answer(details=True).text == ""


def test_hostile_audio_is_refused_and_changes_nothing() -> None:
    script = talk(5.0)
    streams = WhisperStreams(Scripted(script), capacity=1)  # type: ignore[arg-type]
    slot, audio = streams.open(), spoken(script, 6.0)
    streams.advance([Step(slot, audio[:RATE])])
    for bad in (np.nan, np.inf, 1e9):
        with pytest.raises(AudioError):
            streams.advance([Step(slot, np.full(100, bad, np.float32))])
    (same,) = streams.advance([Step(slot, np.zeros(0, np.float32))])
    assert same.audio_s == 1.0
    with pytest.raises(ServerBusyError):
        streams.open()
    (last,) = streams.advance([Step(slot, audio[RATE:], final=True)])
    assert last.whole_text == text_of(script)
    with pytest.raises(StreamError):
        streams.advance([Step(slot, audio)])
    (empty,) = streams.advance([Step(streams.open(), np.zeros(0, np.float32), final=True)])
    assert (empty.text, empty.is_final) == ("", True)


def test_a_chunk_of_minutes_takes_few_looks() -> None:
    script = talk(299.0)
    model = Scripted(script)
    (last,) = play(WhisperStreams(model), spoken(script, 300.0), 300.0)  # type: ignore[arg-type]
    assert last.whole_text == text_of(script)
    assert len(model.looks) < 100


def test_16_bit_audio_is_the_same_audio() -> None:
    script = talk(6.0)
    audio = np.round(spoken(script, 7.0) * 32768).astype(np.int16)
    found = [
        [each.text for each in play(WhisperStreams(Scripted(script)), part, 0.5)]  # type: ignore[arg-type]
        for part in (audio, (audio / np.float32(32768)).astype(np.float32))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("field", [{"policy": "guess"}, {"partial_s": 0.01}, {"pause_s": float("nan")}])
def test_options_of_streams_are_checked(field: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        DecodingOptions().changed(field)


def word(text: str, end_s: float) -> LiveWord:
    return LiveWord(text, (1,), end_s - 0.3, end_s, 0.9)


def test_alignatt_takes_words_well_before_the_end_of_the_audio() -> None:
    words = [word(" one", 1.0), word(" two", 2.0), word(" three", 2.9)]
    assert [alignatt(words, [], heard_s) for heard_s in (2.1, 2.3, 3.3, 4.2)] == [0, 1, 2, 3]


def test_agreement_takes_what_two_texts_begin_with_whatever_their_marks() -> None:
    now = [word(" One,", 1.0), word(" two", 2.0), word(" three", 3.0)]
    assert agreement(now, [word(" one.", 1.0), word(" Two", 2.0), word(" tree", 3.0)], 3.0) == 2
    assert agreement(now, [], 3.0) == 0


def test_the_gate_follows_the_noise_and_lets_through_what_is_loud() -> None:
    gate = LevelGate(RATE)
    random = np.random.default_rng(2)
    hiss = random.normal(0, 10 ** (-50 / 20), RATE * 8).astype(np.float32)
    assert sum(gate.take(hiss)) == 0
    assert all(gate.take(hiss[: RATE // 2] * 10))
    assert not any(gate.take(hiss[:RATE]))
    assert not any(LevelGate(RATE).take(np.zeros(RATE, np.float32)))
