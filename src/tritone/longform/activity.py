"""Voice activity of a recording of any length by a model that takes short ones: block by block.

    detect, of up to some seconds  ->  a stream of voice activity

Blocks overlap, because a model needs some context first, and does not know at the end what comes next: the
first and the last second of a block are its neighbours'.
"""

from collections.abc import Callable

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.waveform import Waveform

BLOCK_S = 30.0
MARGIN_S = 1.0  # of a block that is its neighbour's, at either end; more than the silence that ends speech

Detect = Callable[[Waveform], SpeechActivity]


class BlockActivity:
    """A stream of voice activity (`ActivityStream`) made of calls for whole recordings."""

    def __init__(self, detect: Detect, sample_rate: int, longest_s: float = BLOCK_S) -> None:
        """Begin a recording; `detect` takes up to `longest_s` seconds at `sample_rate` Hz.

        Raises:
            ValueError: that is too short for the margins.
        """
        block_s = min(longest_s, BLOCK_S)
        if block_s < 4 * MARGIN_S:
            raise ValueError(
                f"a voice activity model that takes {longest_s:g} s at once sees too little for long recordings, "
                f"{4 * MARGIN_S:g} s are needed"
            )
        self._detect = detect
        self._rate = sample_rate
        self._block, self._margin = round(block_s * sample_rate), round(MARGIN_S * sample_rate)
        self._buffer: Waveform = np.zeros(0, np.float32)
        self._base = 0  # sample of the recording that the buffer starts with
        self._known = 0  # samples for which there is an answer
        self._since: int | None = None  # start of speech that goes on there

    def accept(self, samples: Waveform) -> SpeechActivity:
        """Take the next samples; returns the speech that is known to have ended since the last answer."""
        self._buffer = np.concatenate([self._buffer, samples])
        found: list[tuple[int, int]] = []
        while len(self._buffer) >= self._block:
            self._note_speech(self._buffer[: self._block], self._base + self._block - self._margin, found)
            drop = self._known - self._margin - self._base
            self._buffer, self._base = self._buffer[drop:].copy(), self._base + drop
        return self._answer(found, is_final=False)

    def finish(self) -> SpeechActivity:
        """End the recording; returns the speech that is left."""
        found: list[tuple[int, int]] = []
        end = self._base + len(self._buffer)
        if end > self._known:
            self._note_speech(self._buffer, end, found)
        if self._since is not None:
            found.append((self._since, end))
            self._since = None
        return self._answer(found, is_final=True)

    def close(self) -> None:
        """There is nothing to free."""

    def _note_speech(self, block: Waveform, upto: int, found: list[tuple[int, int]]) -> None:
        """Note the speech of a block, from what is known to `upto`."""
        open_, self._since = self._since, None
        for each in self._detect(block).segments:
            start, end = (self._base + round(t * self._rate) for t in (each.start_s, each.end_s))
            if end <= self._known or start >= upto:
                continue
            if open_ is not None:  # is this the speech that went on?
                if start > self._known:
                    found.append((open_, self._known))
                else:
                    start = open_
                open_ = None
            if end < upto:
                found.append((start, end))
            else:
                self._since = start
        if open_ is not None:
            found.append((open_, self._known))
        self._known = upto

    def _answer(self, found: list[tuple[int, int]], *, is_final: bool) -> SpeechActivity:
        return SpeechActivity(
            segments=tuple(SpeechSegment(start / self._rate, end / self._rate) for start, end in found),
            audio_s=self._known / self._rate,
            frame_s=0.0,
            speaking_since_s=None if self._since is None else self._since / self._rate,
            is_final=is_final,
        )
