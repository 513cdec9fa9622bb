"""Word times by forced alignment, and the utterances that are joined of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipe trains with torch: pip install '.[export]'")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from training import align, augment, corpus, dataset, units, words  # noqa: E402

RATE = corpus.SAMPLE_RATE


def log_probs_of(path: list[int], vocab: int = 5) -> np.ndarray:
    """Frames that are nearly sure of `path`."""
    probs = np.full((len(path), vocab), 0.1 / (vocab - 1))
    probs[np.arange(len(path)), path] = 0.9
    return np.log(probs)


def test_viterbi_finds_the_frames_of_each_token_and_a_blank_between_equal_ones() -> None:
    found = align.ctc_viterbi(log_probs_of([0, 3, 3, 0, 0, 3, 4, 0]), [3, 3, 4])
    assert found.first.tolist() == [1, 5, 6]
    assert found.last.tolist() == [2, 5, 6]
    assert found.deficit == pytest.approx(0.0, abs=1e-9)


def test_viterbi_agrees_with_trying_every_path() -> None:
    rng = np.random.default_rng(0)
    for tokens in ([1], [1, 1], [1, 2], [2, 1, 2]):
        log_probs = np.log(rng.dirichlet(np.ones(3), size=5))
        best = -np.inf
        for number in range(3**5):
            path = [number // 3**place % 3 for place in range(5)]
            merged = [label for label, before in zip(path, [0, *path], strict=False) if label and label != before]
            if merged == tokens:
                best = max(best, log_probs[np.arange(5), path].sum())
        deficit = align.ctc_viterbi(log_probs, tokens).deficit
        assert deficit == pytest.approx(log_probs.max(axis=1).sum() - best, abs=1e-9)


def test_viterbi_tells_how_much_less_likely_another_text_is() -> None:
    found = align.ctc_viterbi(log_probs_of([0, 3, 0]), [4])
    assert found.deficit == pytest.approx(np.log(0.9) - np.log(0.025))  # one frame says 4 instead of 3


def test_viterbi_refuses_fewer_frames_than_tokens_need() -> None:
    with pytest.raises(ValueError, match="4 tokens need at least one and 5 frames, got 4"):
        align.ctc_viterbi(log_probs_of([1, 2, 2, 3]), [1, 2, 2, 3])


def test_words_span_from_the_first_to_the_last_character() -> None:
    alignment = align.Alignment(np.array([2, 4, 9, 11, 12, 20]), np.array([3, 5, 10, 11, 15, 21]), 0.0)
    assert align.word_frames(alignment, "go six") == [(2, 5), (11, 21)]


def test_words_are_cut_in_the_pause_between_them_and_keep_a_little_silence() -> None:
    rng = np.random.default_rng(0)
    waveform = 3.0 * rng.standard_normal(2 * RATE)
    for begin, end in [(0.5, 0.8), (0.9, 1.3)]:
        span = slice(int(begin * RATE), int(end * RATE))
        waveform[span] += 3000.0 * np.sin(2 * np.pi * 440 * np.arange(span.stop - span.start) / RATE)
    # Encoder frames are 40 ms. Without CTC's delay, 15 and 17 lie in the first tone, 24 and 28 in the second.
    delay = align.LATENCY // 4
    first, second = align.cut_words(waveform.astype(np.int16), [(15 + delay, 17 + delay), (24 + delay, 28 + delay)])
    margin = align.MARGIN * align.ENERGY_FRAME / RATE
    assert first[0] / RATE == pytest.approx(0.5 - margin, abs=0.03)
    assert second[1] / RATE == pytest.approx(1.3 + margin, abs=0.03)
    assert 0.8 <= first[1] / RATE <= second[0] / RATE <= 0.9


def test_words_without_a_pause_are_cut_in_the_middle_rather_than_at_a_dip_within_one() -> None:
    rng = np.random.default_rng(0)
    waveform = (1000.0 * rng.standard_normal(RATE)).astype(np.int16)
    waveform[int(0.30 * RATE) : int(0.34 * RATE)] //= 3  # 10 dB, just behind the first word's last token
    delay = align.LATENCY // 4
    spans = [(4 + delay, 6 + delay), (14 + delay, 16 + delay)]  # tokens at 0.28 s and 0.60 s
    first, second = align.cut_words(waveform, spans)
    assert first[1] == second[0]
    assert first[1] / RATE == pytest.approx(0.44, abs=0.06)


def test_only_words_that_are_recognised_are_kept(loaded: corpus.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf_to_b(model: object, features: object, waveforms: list[np.ndarray], *_: object) -> list[str]:
        # Every word is half a second of a level of its own; the one called "b" is heard as "v".
        heard = []
        for waveform in waveforms:
            inner = waveform[align.EDGE : -align.EDGE].reshape(-1, RATE // 2)
            heard.append(" ".join(spoken[piece[0]] for piece in inner))
        return heard

    spoken: dict[int, str] = {}
    times: align.WordTimes = {}
    for index, recording in enumerate(loaded.recordings):
        waveform, rows = loaded.waveform(index), []
        for place, word in enumerate(recording.text.split()):
            begin, end = place * RATE // 2, (place + 1) * RATE // 2
            waveform[begin:end] = 100 * index + place + 1
            spoken[100 * index + place + 1] = "v" if word == "b" else word
            rows.append((word, begin, end))
        times[recording.id] = rows
    monkeypatch.setattr(align, "transcribe", deaf_to_b)
    kept = align.keep_recognised(None, loaded, times, np.random.default_rng(0))  # type: ignore[arg-type]
    assert kept == {name: [row for row in rows if row[0] != "b"] for name, rows in times.items()}


def sounds(texts: dict[str, str]) -> corpus.Corpus:
    """AN4-like recordings, half a second of noise a word; the speaker is the first letter of the id."""
    rng = np.random.default_rng(1)
    rows, waveforms = [], []
    for name, text in texts.items():
        waveforms.append((1000 * rng.standard_normal(RATE // 2 * len(text.split()))).astype(np.int16))
        rows.append(
            corpus.Recording(
                id=name,
                text=text,
                speaker=name[0],
                corpus="an4",
                split="train",
                sample_rate=RATE,
                num_samples=len(waveforms[-1]),
            )
        )
    return corpus.Corpus(rows, waveforms)


@pytest.fixture
def loaded() -> corpus.Corpus:
    return sounds({"f1": "a b c one two three", "f2": "a a a a a a q", "m1": "enter four five d e", "m2": "yes"})


@pytest.fixture
def times(loaded: corpus.Corpus, tmp_path: Path) -> Path:
    step = RATE // 2
    table = {
        recording.id: [(word, i * step, (i + 1) * step) for i, word in enumerate(recording.text.split())]
        for recording in loaded.recordings
    }
    path = tmp_path / "words.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    return path


def planner(
    loaded: corpus.Corpus,
    times: Path,
    settings: dataset.MixtureConfig = dataset.MixtureConfig(),  # noqa: B008 (frozen)
) -> dataset.Planner:
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=2), seed=0)
    bank = words.WordBank.load(times, loaded)
    return dataset.Planner(loaded, settings, augmenter, units.Units(), bank)


def test_joined_words_say_their_text_and_mostly_have_one_speaker(loaded: corpus.Corpus, times: Path) -> None:
    bank, rng = words.WordBank.load(times, loaded), np.random.default_rng(2)
    sole = 0
    for _ in range(400):
        chosen, one_speaker = bank.draw(rng)
        assert words.MIN_WORDS <= len(chosen) <= words.MAX_WORDS
        for word in chosen:
            assert loaded.recordings[word.recording].text.split()[word.begin // (RATE // 2)] == word.text
        speakers = {loaded.recordings[word.recording].speaker for word in chosen}
        sole += len(speakers) == 1
        assert len(speakers) == 1 or not one_speaker
    assert sole >= 0.85 * 400


def test_rare_words_are_drawn_more_often_than_their_count_says(loaded: corpus.Corpus, times: Path) -> None:
    bank, rng = words.WordBank.load(times, loaded), np.random.default_rng(3)
    said = [word.text for _ in range(1500) for word in bank.draw(rng)[0] if word.text in ("a", "q")]
    # Seven recordings of "a" to one of "q".
    assert 1 / 7 < said.count("q") / said.count("a") < 1


def test_the_planner_joins_words_that_fit_their_text(loaded: corpus.Corpus, times: Path) -> None:
    maker = planner(loaded, times, dataset.MixtureConfig(shares={"an4_words": 1.0}))
    rng = np.random.default_rng(4)
    plans = [maker.draw(rng) for _ in range(200)]
    for plan in plans:
        starts = [loaded.recordings[index].text.split()[begin // (RATE // 2)] for index, begin, _ in plan.pieces]
        assert plan.text == " ".join(starts)
        assert dataset.encoder_frames(plan.num_samples) > units.Units().frames_needed(plan.text)
    assert len(maker.render(plans[0])) == plans[0].num_samples
    assert 0.03 < np.mean([plan.matched for plan in plans]) < 0.25


def test_words_of_several_speakers_are_brought_to_one_level() -> None:
    loaded = sounds({"f1": "a", "m1": "b"})
    loaded.samples[loaded.offsets[1] :] //= 50
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=2), seed=0)
    maker = dataset.Planner(loaded, dataset.MixtureConfig(), augmenter, units.Units())
    half = RATE // 2
    plan = dataset.Plan(
        pieces=[(0, 0, half), (1, 0, half)],
        gaps=[0, 0],
        lead=0,
        tail=0,
        speed=1.0,
        text="a b",
        narrow=False,
        seed=1,
        matched=True,
    )
    joined = maker._join(plan, np.random.default_rng(0))
    ratio = 20 * np.log10(np.std(joined[:half]) / np.std(joined[half:]))
    assert abs(ratio) < 6.5  # each piece is drawn up to 3 dB louder or softer; unmatched, they are 34 dB apart


def test_word_times_add_their_share_and_without_them_nothing_changes(loaded: corpus.Corpus, times: Path) -> None:
    assert "an4_words" in planner(loaded, times).kinds
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=2), seed=0)
    without = dataset.Planner(loaded, dataset.MixtureConfig(), augmenter, units.Units())
    assert without.kinds == ["an4", "silence"]


def test_a_share_of_words_without_word_times_is_refused(loaded: corpus.Corpus) -> None:
    augmenter = augment.Augmenter(loaded, augment.AugmentConfig(room_count=2), seed=0)
    settings = dataset.MixtureConfig(shares={"an4": 0.5, "an4_words": 0.5})
    with pytest.raises(ValueError, match="--words"):
        dataset.Planner(loaded, settings, augmenter, units.Units())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x9": [["a", 0, 100]]}, "x9 is not in the packs"),
        ({"m2": [["yes", 0, 8001]]}, "m2 has 8000 samples"),
        ({}, "holds no words"),
    ],
)
def test_word_times_of_another_pack_are_refused(
    loaded: corpus.Corpus, tmp_path: Path, table: dict, message: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        words.WordBank.load(path, loaded)
