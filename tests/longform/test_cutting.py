"""Cutting recordings: nothing is lost, nothing comes twice, whatever the length and the blocks."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.longform import Cutter, Cutting, Piece

RATE = 100  # Hz; recordings of minutes are then short
STEP = 4 * RATE  # what a stream of voice activity gets at a time
SMALL = Cutting(piece_s=6.0, context_s=0.5, search_s=2.0, max_pause_s=1.5, padding_s=0.2)


class Planned:
    """A stream of voice activity that hears speech where a plan says, in samples, 0.1 s late."""

    def __init__(self, plan: Sequence[tuple[int, int]]) -> None:
        self._plan = plan
        self._heard = 0
        self.closed = False

    def accept(self, samples: np.ndarray) -> SpeechActivity:
        return self._hear(self._heard, self._heard + len(samples), final=False)

    def finish(self) -> SpeechActivity:
        return self._hear(self._heard, self._heard, final=True)

    def close(self) -> None:
        self.closed = True

    def _hear(self, before: int, now: int, *, final: bool) -> SpeechActivity:
        delay = 0 if final else RATE // 10
        told = before - RATE // 10
        ended = [each for each in self._plan if told < each[1] <= now - delay]
        since = [start for start, end in self._plan if start < now and end > now - delay]
        self._heard = now
        return SpeechActivity(
            segments=tuple(SpeechSegment(start / RATE, min(end, now) / RATE) for start, end in ended),
            audio_s=now / RATE,
            frame_s=0.01,
            speaking_since_s=since[0] / RATE if since and not final else None,
            is_final=final,
        )


def cut(
    recording: np.ndarray, blocks: Sequence[int], activity: Planned | None = None, cutting: Cutting = SMALL
) -> list[Piece]:
    """The pieces of a recording that comes in blocks of these sizes, again and again."""
    cutter, found, start, turn = Cutter(RATE, cutting, activity), [], 0, 0
    while start < len(recording):
        size = blocks[turn % len(blocks)]
        found += cutter.push(recording[start : start + size])
        start, turn = start + size, turn + 1
    found += cutter.finish()
    assert cutter.num_samples == len(recording)
    return found


def noise(num_samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, num_samples).astype(np.float32)


def as_numbers(pieces: Sequence[Piece]) -> list[tuple[int, int, int, int]]:
    return [(each.start, each.keep_from, each.keep_to, len(each.samples)) for each in pieces]


def check_pieces(pieces: Sequence[Piece], recording: np.ndarray, cutting: Cutting) -> None:
    for index, piece in enumerate(pieces):
        assert piece.index == index
        assert 0 < len(piece.samples) <= round(cutting.piece_s * RATE)
        assert np.array_equal(piece.samples, recording[piece.start : piece.start + len(piece.samples)])
        assert piece.start <= piece.keep_from <= piece.keep_to <= piece.start + len(piece.samples)
        if index:
            assert piece.keep_from >= pieces[index - 1].keep_to
            assert piece.shares_start == pieces[index - 1].shares_end


sizes = st.lists(st.integers(1, 2 * STEP), min_size=1, max_size=4)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 60 * RATE), sizes, st.sampled_from([SMALL, Cutting(piece_s=6, context_s=0, search_s=0.0)]))
def test_without_voice_activity_every_sample_is_kept_by_exactly_one_piece(
    length: int, blocks: list[int], cutting: Cutting
) -> None:
    recording = noise(length)
    pieces = cut(recording, blocks, cutting=cutting)
    check_pieces(pieces, recording, cutting)
    kept = [recording[each.keep_from : each.keep_to] for each in pieces]
    assert np.array_equal(np.concatenate(kept), recording)
    assert as_numbers(pieces) == as_numbers(cut(recording, [length], cutting=cutting))


@st.composite
def plans(draw: Callable[..., int]) -> tuple[int, list[tuple[int, int]]]:
    """A recording's length, and speech in it that has no pause shorter than what a detector notices."""
    now, found = 0, []
    for _ in range(draw(st.integers(0, 12))):
        start = now + draw(st.integers(RATE // 4, 5 * RATE))
        now = start + draw(st.integers(RATE // 4, 15 * RATE))
        found.append((start, now))
    return now + draw(st.integers(1, 5 * RATE)), found


@settings(max_examples=examples(60), deadline=None)
@given(plans(), sizes)
def test_with_voice_activity_every_sample_of_speech_is_kept_by_exactly_one_piece(
    planned: tuple[int, list[tuple[int, int]]], blocks: list[int]
) -> None:
    length, plan = planned
    recording = noise(length)
    pieces = cut(recording, blocks, Planned(plan))
    check_pieces(pieces, recording, SMALL)
    times = np.zeros(length, int)
    for each in pieces:
        times[each.keep_from : each.keep_to] += 1
    assert times.max(initial=0) <= 1
    for start, end in plan:
        assert times[start:end].all()
    far = np.ones(length, bool)
    for start, end in plan:
        far[max(0, start - 2 * RATE) : end + 2 * RATE] = False
    assert not times[far].any()  # long pauses are in no piece
    assert as_numbers(pieces) == as_numbers(cut(recording, [length], Planned(plan)))


def test_a_recording_without_speech_has_no_pieces() -> None:
    assert cut(noise(20 * RATE), [70], Planned([])) == []


def test_pieces_end_in_the_longest_pause_when_they_grow_too_long() -> None:
    speech = [(0, 250), (280, 400), (460, 550), (570, 700)]  # pauses of 0.3, 0.6 and 0.2 s
    pieces = cut(noise(720), [50], Planned(speech))
    assert [(each.keep_from, each.keep_to) for each in pieces] == [(0, 420), (440, 720)]
    assert not any(each.has_context for each in pieces)


def test_a_cut_within_speech_is_at_the_quietest_place_and_both_pieces_hear_around_it() -> None:
    recording = noise(9 * RATE)
    recording[430:450] = 0
    first, second = cut(recording, [33], Planned([(0, 9 * RATE)]))
    assert (first.keep_to, second.keep_from) == (440, 440)
    assert (first.start + len(first.samples), second.start) == (490, 390)
    assert (first.shares_end, second.shares_start) == (True, True)


def test_a_cutter_keeps_no_more_than_a_piece_of_an_endless_recording() -> None:
    cutter, held = Cutter(RATE, SMALL), 0
    block = noise(STEP)
    for _ in range(100):
        cutter.push(block)
        held = max(held, len(cutter._buffer))
    silent = Cutter(RATE, SMALL, Planned([]))
    for _ in range(100):
        silent.push(block)
        held = max(held, len(silent._buffer))
    assert held <= 6 * RATE + STEP


def test_samples_of_16_bits_stay_what_they_are() -> None:
    recording = (noise(20 * RATE) * 1000).astype(np.int16)
    pieces = cut(recording, [64])
    assert {each.samples.dtype for each in pieces} == {np.dtype(np.int16)}
    check_pieces(pieces, recording, SMALL)


@pytest.mark.parametrize(
    "wrong", [{"piece_s": 1.0}, {"piece_s": float("inf")}, {"padding_s": -1.0}, {"search_s": 30.0}]
)
def test_a_cutting_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "search_s" not in wrong else "piece_s"):
        Cutting(**wrong)


def test_a_model_that_takes_less_gets_shorter_pieces() -> None:
    assert Cutting().within(300.0) == Cutting()
    assert Cutting().within(10.0).piece_s == 10.0
    assert Cutting().within(2.0).context_s == 0.2
    with pytest.raises(ValueError, match="piece_s must be at least 2 s"):
        Cutting().within(1.0)
