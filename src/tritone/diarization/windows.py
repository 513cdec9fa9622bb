"""Speech in a stream of audio, cut into windows that overlap.

    cutter.accept(samples, speech)  ->  windows of the segments that ended

Audio is kept only as long as a window may need it: since the start of the segment under way, which is cut when it
becomes long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.waveform import Waveform

LEAST_WINDOW_S = 0.3  # shorter speech says little about a voice, and models refuse it
LONGEST_PIECE_S = 20.0  # a segment that goes on is cut into pieces, so that memory is bounded


@dataclass(frozen=True)
class Window:
    """A part of a segment; `samples` are empty where it is too short to be embedded. Times from the audio's start.

    `piece`: the segment that it is of, or the part of a long one.
    """

    start_s: float
    end_s: float
    piece: SpeechSegment
    samples: Waveform = field(repr=False, compare=False)

    @property
    def centre_s(self) -> float:
        return (self.start_s + self.end_s) / 2


class WindowCutter:
    """Cuts the windows of one recording or stream. What comes out does not depend on how the audio is divided."""

    def __init__(self, sample_rate: int, *, window_s: float, shift_s: float) -> None:
        self._rate, self._window_s, self._shift_s = sample_rate, window_s, shift_s
        self._parts: list[Waveform] = []  # the audio that is kept
        self._first = 0  # index of its first sample
        self._received = 0
        self._taken_s = 0.0  # end of the last piece

    def accept(self, samples: Waveform, speech: SpeechActivity) -> list[Window]:
        """Take the next samples, and what a detector says of the speech up to here.

        Args:
            samples: (samples,) float32.
            speech: of this step, as of `Detector.stream`.
        """
        self._parts.append(samples)
        self._received += len(samples)
        # Segments of detectors are padded, and may begin in the one before or end beyond the audio.
        received_s = self._received / self._rate
        ended = [(max(each.start_s, self._taken_s), min(each.end_s, received_s)) for each in speech.segments]
        pieces: list[tuple[float, float]] = []
        for start_s, end_s in ended:
            start_s = max(start_s, pieces[-1][1] if pieces else 0.0)
            while end_s - start_s > LONGEST_PIECE_S:
                pieces.append((start_s, start_s + LONGEST_PIECE_S))
                start_s += LONGEST_PIECE_S
            if end_s > start_s:
                pieces.append((start_s, end_s))
        since = None if speech.is_final else speech.speaking_since_s
        if since is not None:
            since = max(since, pieces[-1][1] if pieces else self._taken_s)
            while speech.audio_s - since > 2 * LONGEST_PIECE_S:  # it goes on beyond the cut in any case
                pieces.append((since, since + LONGEST_PIECE_S))
                since += LONGEST_PIECE_S
        windows = [window for piece in pieces for window in self._windows(*piece)]
        if pieces:
            self._taken_s = pieces[-1][1]
        self._forget(since)
        return windows

    def under_way(self, since_s: float) -> list[Window]:
        """The windows of a segment that goes on, as if it ended now.

        Args:
            since_s: its start, by the detector.
        """
        now_s, start_s = self._received / self._rate, max(since_s, self._taken_s)
        return self._windows(start_s, now_s) if now_s > start_s else []

    def _windows(self, start_s: float, end_s: float) -> list[Window]:
        piece = SpeechSegment(start_s, end_s)
        if end_s - start_s < LEAST_WINDOW_S:
            return [Window(start_s, end_s, piece, np.zeros(0, np.float32))]
        audio = self._audio()
        found = []
        for each, end in spans_of(start_s, end_s, window_s=self._window_s, shift_s=self._shift_s):
            first, behind = (max(0, round(at * self._rate) - self._first) for at in (each, end))
            found.append(Window(each, end, piece, audio[first:behind].copy()))
        return found

    def _audio(self) -> Waveform:
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def _forget(self, since_s: float | None) -> None:
        """Drop what no window can need: up to the segment under way, or to one that may just begin."""
        keep_s = self._received / self._rate - LONGEST_PIECE_S if since_s is None else since_s - 1.0
        drop = round(keep_s * self._rate) - self._first
        if drop > LONGEST_PIECE_S * self._rate:  # seldom, since it copies
            self._parts = [self._audio()[drop:].copy()]
            self._first += drop


def spans_of(start_s: float, end_s: float, *, window_s: float, shift_s: float) -> list[tuple[float, float]]:
    """Where the windows of a piece of speech begin and end; the last one ends with it."""
    last_s = max(start_s, end_s - window_s)
    count = int(np.ceil((last_s - start_s) / shift_s - 1e-6)) + 1
    starts = (min(start_s + number * shift_s, last_s) for number in range(count))
    return [(each, min(each + window_s, end_s)) for each in starts]


def turns_of(windows: Sequence[Window], labels: Sequence[str]) -> list[tuple[float, float, str]]:
    """Who speaks when: (start_s, end_s, label), in order. Any moment belongs to the window with the nearest centre.

    Turns of one speaker without a pause between them are one.

    Args:
        windows: of one recording, in order.
        labels: of each window.
    """
    found: list[tuple[float, float, str]] = []

    def add(start_s: float, end_s: float, label: str) -> None:
        if found and found[-1][2] == label and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], end_s, label)
        else:
            found.append((start_s, end_s, label))

    for piece, group in groupby(zip(windows, labels, strict=True), key=lambda each: each[0].piece):
        members = list(group)
        borders = [(before.centre_s + after.centre_s) / 2 for (before, _), (after, _) in pairwise(members)]
        edges = [piece.start_s, *borders, piece.end_s]
        for (_, label), (start_s, end_s) in zip(members, pairwise(edges), strict=True):
            add(start_s, end_s, label)
    return found
