"""Greedy CTC decoding of batches and of streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.search.ctc.greedy import CtcGreedy, ctc_greedy
from tritone.search.hypothesis import TokenRow

BLANK, A, B = 0, 1, 2


def path_log_probs(path: list[int], peaks: list[float] | None = None, vocab: int = 3) -> np.ndarray:
    """(frames, vocab) whose best labels are `path`, with probability `peaks` (0.9 unless told)."""
    peaks = peaks or [0.9] * len(path)
    probs = np.empty((len(path), vocab), np.float32)
    for row, label, peak in zip(probs, path, peaks, strict=True):
        row[:] = (1 - peak) / (vocab - 1)
        row[label] = peak
    return np.log(probs)


def decode(path: list[int], peaks: list[float] | None = None) -> TokenRow:
    return ctc_greedy(path_log_probs(path, peaks)[None], np.array([len(path)]), BLANK)[0]


def test_repeats_merge_but_not_across_a_blank() -> None:
    tokens = decode([A, A, BLANK, A, B, B])
    assert [(token.id, token.start_frame, token.end_frame) for token in tokens] == [(A, 0, 2), (A, 3, 4), (B, 4, 6)]


def test_confidence_is_the_probability_at_the_best_frame() -> None:
    (token,) = decode([A, A, A], [0.5, 0.8, 0.6])
    assert token.confidence == pytest.approx(0.8, rel=1e-6)


def test_a_log_probability_rounded_above_zero_gives_confidence_one() -> None:
    (token,) = ctc_greedy(np.array([[[-50.0, 1e-6, -50.0]]], np.float32), np.array([1]), BLANK)[0]
    assert token.confidence == 1.0


def test_silence_and_no_frames_give_no_tokens() -> None:
    assert decode([BLANK] * 4) == []
    assert ctc_greedy(np.zeros((2, 0, 3), np.float32), np.array([0, 0]), BLANK) == [[], []]
    assert ctc_greedy(np.zeros((0, 5, 3), np.float32), np.zeros(0, np.int64), BLANK) == []


def test_rows_of_a_batch_do_not_touch_and_padding_is_ignored() -> None:
    log_probs = np.full((3, 4, 3), np.nan, np.float32)
    log_probs[0] = path_log_probs([A, A, B, B])
    log_probs[1, :2] = path_log_probs([B, B])
    batch = ctc_greedy(log_probs, np.array([4, 2, 0], np.int32), BLANK)
    assert batch == [decode([A, A, B, B]), decode([B, B]), []]


def test_the_blank_need_not_be_zero() -> None:
    tokens = ctc_greedy(path_log_probs([2, 0, 0, 2, 1])[None], np.array([5]), blank_id=2)[0]
    assert [token.id for token in tokens] == [0, 1]


def naive(path: list[int]) -> list[tuple[int, int, int]]:
    found: list[list[int]] = []
    for frame, label in enumerate(path):
        if frame and label == path[frame - 1] and label != BLANK:
            found[-1][2] = frame + 1
        elif label != BLANK:
            found.append([label, frame, frame + 1])
    return [(id, start, end) for id, start, end in found]


PATHS = st.lists(st.integers(0, 3), max_size=30)


@given(st.lists(PATHS, min_size=1, max_size=5))
def test_a_batch_decodes_as_the_plain_definition_says(paths: list[list[int]]) -> None:
    frames = max(len(path) for path in paths)
    padded = np.stack([path_log_probs([*path, *[3] * (frames - len(path))], vocab=4) for path in paths])
    batch = ctc_greedy(padded, np.array([len(path) for path in paths]), BLANK)
    assert [[(t.id, t.start_frame, t.end_frame) for t in tokens] for tokens in batch] == [naive(p) for p in paths]


@given(st.data(), PATHS)
def test_any_cutting_of_a_stream_gives_the_tokens_of_the_whole(data: st.DataObject, path: list[int]) -> None:
    peaks = data.draw(st.lists(st.sampled_from([0.6, 0.7, 0.9]), min_size=len(path), max_size=len(path)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(path)), max_size=6)))
    stream, joined = CtcGreedy(), []
    for start, end in zip([0, *cuts], [*cuts, len(path)], strict=True):
        chunk = path_log_probs(path[start:end], peaks[start:end], vocab=4)
        tokens, replaces_last = stream.join(ctc_greedy(chunk[None], np.array([end - start]), BLANK)[0], end - start)
        if replaces_last:
            joined.pop()
        joined += tokens
    whole = ctc_greedy(path_log_probs(path, peaks, vocab=4)[None], np.array([len(path)]), BLANK)[0]
    assert joined == whole
    assert stream.num_frames == len(path)
