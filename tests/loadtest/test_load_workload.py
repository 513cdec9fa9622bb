"""What audio a load test sends."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from tritone.corpus.dataset import Utterance
from tritone.errors import AudioError, InputError
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import (
    LONGEST_S,
    SHORTEST_S,
    Workload,
    files_workload,
    parse_lengths,
    speech_workload,
)

RATE = 8000
COUNTING = Tape(np.arange(1000, dtype=np.float32), RATE)  # every sample tells its place


def seconds(workload: Workload) -> np.ndarray:
    return np.array([len(waveform) / workload.sample_rate for waveform in workload.waveforms])


def test_a_number_is_that_many_seconds_of_different_speech():
    workload = speech_workload("2.5", Tape.shipped(16000))
    assert workload.seconds == "2.5"
    assert set(seconds(workload)) == {2.5}
    assert len({waveform.tobytes() for waveform in workload.waveforms}) == len(workload.waveforms) > 8
    assert min(float(np.abs(waveform).max()) for waveform in workload.waveforms) > 0.05, "silence is no load"
    assert workload.waveforms[0].dtype == np.float32


def test_a_tape_goes_on_from_its_beginning():
    cut = COUNTING.cut(2500, np.random.default_rng(0))
    assert cut.shape == (2500,)
    assert (np.diff(cut) % 1000 == 1).all()


def test_a_tape_of_files_has_their_speech_in_order(tmp_path: Path):
    for name, value in (("a", 0.25), ("b", 0.5)):
        soundfile.write(tmp_path / f"{name}.wav", np.full(RATE, value), RATE)
    cut = Tape.of([tmp_path / "a.wav", tmp_path / "b.wav"], RATE).cut(2 * RATE, np.random.default_rng(0))
    assert sorted(np.round(cut, 3).tolist()) == [0.25] * RATE + [0.5] * RATE


def test_a_tape_needs_files_that_are_audio(tmp_path: Path):
    with pytest.raises(InputError, match="no audio files"):
        Tape.of([], RATE)
    (tmp_path / "a.wav").write_text("no audio", encoding="utf-8")
    with pytest.raises(AudioError, match=r"a\.wav"):
        Tape.of([tmp_path / "a.wav"], RATE)


@pytest.mark.parametrize(
    ("spec", "label", "median", "deviation"),
    [
        ("uniform:2,10", "uniform(2, 10)", 6.0, 8 / np.sqrt(12)),
        ("normal:6,1", "normal(6, 1)", 6.0, 1.0),
        # the deviation of a lognormal variable is median * sqrt(exp(s²) (exp(s²) - 1))
        ("lognormal:5,0.5", "lognormal(5, 0.5)", 5.0, 5 * np.sqrt(np.exp(0.25) * (np.exp(0.25) - 1))),
    ],
)
def test_lengths_follow_their_distribution(spec: str, label: str, median: float, deviation: float):
    found, draw = parse_lengths(spec)
    lengths = draw(20_000, np.random.default_rng(0))
    assert found == label
    assert float(np.median(lengths)) == pytest.approx(median, rel=0.03)
    assert float(lengths.std()) == pytest.approx(deviation, rel=0.05)


def test_lengths_of_a_file_come_as_often_as_they_stand_there(tmp_path: Path):
    (tmp_path / "lengths.txt").write_text("1.5\n1.5\n4\n", encoding="utf-8")
    label, draw = parse_lengths(f"file:{tmp_path}/lengths.txt")
    lengths = draw(3000, np.random.default_rng(0))
    assert label == "file(lengths.txt)"
    assert set(lengths) == {1.5, 4.0}
    assert float(np.mean(lengths == 1.5)) == pytest.approx(2 / 3, abs=0.03)


def test_drawn_lengths_stay_within_what_a_model_can_take():
    lengths = seconds(speech_workload("normal:0.2,5", COUNTING))
    assert lengths.min() == pytest.approx(SHORTEST_S)
    assert seconds(speech_workload("lognormal:100,3", COUNTING, max_utterances=20)).max() <= LONGEST_S


def test_the_same_seed_gives_the_same_pool():
    pools = [speech_workload("uniform:0.1,0.5", COUNTING, seed=seed).waveforms for seed in (1, 1, 2)]
    assert all(np.array_equal(a, b) for a, b in zip(pools[0], pools[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(pools[0], pools[2], strict=True))


def test_a_pool_holds_at_most_an_hour_and_at_least_one_utterance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tritone.loadtest.workload.workload.MAX_POOL_S", 10.0)
    assert seconds(speech_workload("3", COUNTING)).tolist() == [3.0] * 3
    assert seconds(speech_workload("30", COUNTING)).tolist() == [30.0]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("", "no number"),
        ("five", "no number"),
        ("0", "above 0"),
        ("-1", "above 0"),
        ("1e9", "at most 120"),
        ("nan", "not finite"),
        ("gamma:1,2", "unknown distribution 'gamma'.*lognormal:MEDIAN,SIGMA"),
        ("uniform:1", "two numbers"),
        ("uniform:3,2", "LOW <= HIGH"),
        ("lognormal:0,1", "above 0"),
        ("normal:1,-1", "not below"),
        ("file:/nowhere/at/all", "cannot read lengths"),
    ],
)
def test_a_spec_that_means_nothing_is_told_with_what_would(spec: str, complaint: str):
    with pytest.raises(InputError, match=complaint):
        parse_lengths(spec)


@given(st.text())
def test_any_spec_is_read_or_refused_as_input(spec: str):
    try:
        label, draw = parse_lengths(spec)
    except InputError:
        return
    assert label
    assert len(draw(3, np.random.default_rng(0))) == 3


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    found = []
    for index in range(6):
        soundfile.write(tmp_path / f"{index}.wav", np.full(800 * (index + 1), 0.1), RATE)
        found.append(Utterance(f"u{index}", tmp_path / f"{index}.wav", f"text {index}" if index else None, None))
    return found


def test_files_keep_their_references_and_are_resampled(utterances: list[Utterance]):
    workload = files_workload(utterances, 16000)
    assert workload.seconds == "files"
    assert list(workload.ids) == [f"u{index}" for index in range(6)]
    assert list(workload.references) == [None, *(f"text {index}" for index in range(1, 6))]
    assert workload.has_references
    assert seconds(workload) == pytest.approx([0.1 * (index + 1) for index in range(6)])
    assert not workload.notes


def test_of_too_many_files_a_random_choice_is_sent_and_told(utterances: list[Utterance]):
    workload = files_workload(utterances, RATE, max_utterances=2)
    assert len(workload.waveforms) == 2
    assert [len(waveform) for waveform in workload.waveforms] == [800 * (int(name[1:]) + 1) for name in workload.ids]
    assert workload.notes == ["2 of the 6 files were sent, chosen at random"]
    assert files_workload(utterances, RATE, max_utterances=2).ids == workload.ids


def test_no_files_and_files_that_are_missing_are_told(utterances: list[Utterance]):
    with pytest.raises(InputError, match="no utterances"):
        files_workload([], RATE)
    utterances[3].audio.unlink()
    with pytest.raises(AudioError, match=r"3\.wav"):
        files_workload(utterances, RATE)


def test_a_workload_must_fit_together():
    with pytest.raises(ValueError, match="at least one"):
        Workload(seconds="1", sample_rate=RATE, waveforms=[])
    with pytest.raises(ValueError, match="1 waveforms, but 2 references"):
        Workload(seconds="1", sample_rate=RATE, waveforms=[np.zeros(5, np.float32)], references=["a", "b"])
