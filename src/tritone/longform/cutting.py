"""A recording of any length to pieces that a model takes at once.

    samples, as they come  ->  Piece, Piece, ...  in order, each as soon as its end is known

With a stream of voice activity, pieces end at pauses, and what is no speech is in none of them. Without one, all audio
is in a piece, and they end where the level is that of a pause. Where neither finds a pause for too long, a piece ends
at the quietest place near its greatest length. Nobody knows whether a word is spoken there, so it and the next one
share some audio on either side of the cut, their context; `join` takes each word from one of them. Where cuts are made
does not depend on the blocks in which the samples come.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.waveform import Samples, Waveform, widened
from tritone.longform import LEAST_PIECE_S

STEP_S = 4.0  # audio that a voice activity model gets at a time
LEVEL_S = 0.01  # over which the level is measured
QUIET_S = 0.2  # for how long it should be low around a cut
LEVELS = 3000  # the last ones, 30 s, decide what is loud and what is quiet
UNDER_LOUD_DB = 20.0  # a pause is so far below the loudest twentieth of them
OVER_QUIET_DB = 10.0  # and no further above the quietest twentieth
LEAST_DB = -80.0  # full scale; digital silence is not quieter
LEVEL_PAUSE_S = 0.3  # and so long
LEAST_CUT_S = 1.0  # a pause that comes sooner after a cut is none
LEAST_PART = 1 / 3  # of a piece, before which it is not ended at a pause


class ActivityStream(Protocol):
    """A stream of voice activity, in this process (`Detector.stream`) or served (`Client.detect_stream`)."""

    def accept(self, samples: Waveform, /) -> SpeechActivity: ...
    def finish(self) -> SpeechActivity: ...
    def close(self) -> object: ...


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How recordings are cut, in seconds."""

    piece_s: float = 30.0
    """Longest piece, context included."""
    context_s: float = 1.0
    """Audio on either side of a cut within speech that both pieces get; 0 where the model returns no times of words."""
    search_s: float = 8.0
    """A cut within speech is made at the quietest place of so much audio."""
    max_pause_s: float = 0.5
    """With voice activity: a longer pause ends a piece, however short it is."""
    padding_s: float = 0.2
    """What speech is widened by at both ends."""

    def __post_init__(self) -> None:
        for name in ("context_s", "search_s", "max_pause_s", "padding_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more seconds, got {getattr(self, name):g}")
        if not max(LEAST_PIECE_S, 2 * self.context_s + self.search_s + LEVEL_S) <= self.piece_s < float("inf"):
            raise ValueError(
                f"piece_s must be at least {LEAST_PIECE_S:g} s, and more than two contexts and what is searched for a "
                f"cut ({2 * self.context_s + self.search_s:g} s), got {self.piece_s:g}"
            )

    def within(self, longest_s: float) -> "Cutting":
        """The same for a model that takes up to so many seconds at once; raises `ValueError` below `LEAST_PIECE_S`."""
        if longest_s >= self.piece_s:
            return self
        return replace(
            self,
            piece_s=longest_s,
            context_s=min(self.context_s, longest_s / 10),
            search_s=min(self.search_s, longest_s / 3),
        )


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a recording that a model gets at once.

    `samples` (samples,) at `sample_rate` Hz, the first of which is sample `start` of the recording. What is spoken from
    `keep_from` to `keep_to`, in samples of the recording, is this piece's; the rest is context.
    """

    index: int
    start: int
    keep_from: int
    keep_to: int
    samples: Samples
    sample_rate: int

    @property
    def start_s(self) -> float:
        return self.start / self.sample_rate

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    @property
    def keep_from_s(self) -> float:
        return self.keep_from / self.sample_rate

    @property
    def keep_to_s(self) -> float:
        return self.keep_to / self.sample_rate

    @property
    def has_context(self) -> bool:
        """Whether a neighbour has some of its audio, too."""
        return self.shares_start or self.shares_end

    @property
    def shares_start(self) -> bool:
        return self.keep_from > self.start

    @property
    def shares_end(self) -> bool:
        return self.keep_to < self.start + len(self.samples)


class Cutter:
    """Cuts one recording. Keeps no more of it than a piece and what is under way."""

    def __init__(
        self, sample_rate: int, cutting: Cutting | None = None, activity: ActivityStream | None = None
    ) -> None:
        """Begin a recording; `sample_rate` in Hz.

        Args:
            activity: of the same rate; None cuts without voice activity. Whoever made it closes it.
        """
        cutting = cutting or Cutting()
        self.sample_rate = sample_rate
        self._activity = activity
        self._step, self._piece, self._context, self._search, self._pause, self._padding = (
            round(each * sample_rate)
            for each in (
                STEP_S,
                cutting.piece_s,
                cutting.context_s,
                cutting.search_s,
                cutting.max_pause_s,
                cutting.padding_s,
            )
        )
        if activity is not None:
            self._piece -= self._padding  # speech alone is counted, and it is widened at its end
        self._buffer: Samples = np.zeros(0, np.float32)
        self._base = 0  # sample of the recording that the buffer starts with
        self._num_given = 0  # samples that the voice activity model was given
        self._known = 0  # and for which it has answered
        self._index = 0
        self._begin: int | None = None if activity else 0  # of the next piece, its context included; None: no speech
        self._keep = 0  # end of the last piece without its context
        self._speech_end: int | None = None  # of the last speech in the piece, where a pause is under way
        self._pauses: list[tuple[int, int]] = []  # in the piece
        self._levels = np.zeros(0)  # dB, of the last time
        self._quiet_since: int | None = None

    @property
    def num_samples(self) -> int:
        """Samples so far."""
        return self._base + len(self._buffer)

    @property
    def audio_s(self) -> float:
        return self.num_samples / self.sample_rate

    def push(self, samples: Samples) -> list[Piece]:
        """Take the next samples, (samples,), any number of them; returns the pieces that end with them."""
        if len(samples):
            self._buffer = samples if not len(self._buffer) else np.concatenate([self._buffer, samples])
        found: list[Piece] = []
        while self.num_samples - self._num_given >= self._step:
            if self._activity is None:
                self._measure(self._num_given + self._step, found)
            else:
                self._listen(self._num_given + self._step, found)
        self._forget()
        return found

    def finish(self) -> list[Piece]:
        """End the recording; returns the pieces that are left."""
        found: list[Piece] = []
        if self._activity is None:
            if self.num_samples > self._num_given:
                self._measure(self.num_samples, found)
            self._end_piece(self.num_samples, found)
        else:
            if self.num_samples > self._num_given:
                self._listen(self.num_samples, found)
            self._follow(self._activity.finish(), found)
            if self._begin is not None:
                self._end_speech(None, found)
        self._base, self._buffer = self.num_samples, self._buffer[:0]
        return found

    def _listen(self, upto: int, found: list[Piece]) -> None:
        assert self._activity is not None
        samples = widened(self._between(self._num_given, upto))
        self._num_given = upto
        self._follow(self._activity.accept(samples), found)

    def _follow(self, activity: SpeechActivity, found: list[Piece]) -> None:
        self._known = min(self._num_given, self._sample(activity.audio_s))
        for each in activity.segments:
            self._speech(self._sample(each.start_s), self._sample(each.end_s), found)
        if activity.speaking_since_s is not None:
            self._speech(self._sample(activity.speaking_since_s), None, found)
        elif self._speech_end is not None and self._known - self._speech_end > self._pause + self._padding:
            self._end_speech(None, found)

    def _measure(self, upto: int, found: list[Piece]) -> None:
        """Cut at pauses by their level."""
        assert self._begin is not None
        samples = widened(self._between(self._num_given, upto))
        unit = max(1, round(LEVEL_S * self.sample_rate))
        count = len(samples) // unit
        powers = np.square(samples[: count * unit].reshape(count, unit), dtype=np.float64).mean(axis=1)
        levels = 10 * np.log10(np.maximum(powers, 10 ** (LEAST_DB / 10)))
        self._levels = np.concatenate([self._levels, levels])[-LEVELS:]
        quiet, loud = np.percentile(self._levels, [5, 95]) if len(self._levels) else (0.0, 0.0)
        is_quiet = levels <= min(quiet + OVER_QUIET_DB, loud - UNDER_LOUD_DB)
        for index, each in enumerate(is_quiet):
            now = self._num_given + index * unit
            if each:
                self._quiet_since = now if self._quiet_since is None else self._quiet_since
                continue
            if self._quiet_since is not None and now - self._quiet_since >= round(LEVEL_PAUSE_S * self.sample_rate):
                self._cut_speech(now, found)
                cut = (self._quiet_since + now) // 2
                if cut - self._keep >= round(LEAST_CUT_S * self.sample_rate):
                    self._end_piece(cut, found)
                    self._begin = cut
            self._quiet_since = None
        self._num_given = upto
        self._cut_speech(upto, found)

    def _speech(self, start: int, end: int | None, found: list[Piece]) -> None:
        """Note speech that has ended, or goes on where `end` is None."""
        if self._begin is not None and self._speech_end is not None and start > self._speech_end:
            if start - self._speech_end > self._pause:
                self._end_speech(start, found)
            else:
                self._pauses.append((self._speech_end, start))
        if self._begin is None:
            self._begin = self._keep = max(self._keep, start - self._padding, self._base)
        self._speech_end = end
        upto = self._known if end is None else end
        while upto - self._begin > self._piece and self._pauses:
            least = self._begin + round(LEAST_PART * self._piece)
            fit = [each for each in self._pauses if least <= each[0] <= self._begin + self._piece]
            if not fit:
                break
            pause = max(fit, key=lambda each: each[1] - each[0])
            later = [each for each in self._pauses if each[0] >= pause[1]]
            self._end_piece(self._widened_end(pause[0], pause[1]), found)
            self._begin = self._keep = max(self._keep, pause[1] - self._padding)
            self._pauses = later
        self._cut_speech(upto, found)

    def _end_speech(self, next_start: int | None, found: list[Piece]) -> None:
        """End the piece under way in a pause, before the speech that comes next, or at the end of the recording."""
        end = self.num_samples if self._speech_end is None else self._widened_end(self._speech_end, next_start)
        self._end_piece(end, found)
        self._begin = self._speech_end = None
        self._pauses = []

    def _widened_end(self, end: int, next_start: int | None) -> int:
        # No further than to the middle of the pause, so that the padding of the next piece is left to it.
        room = self._padding if next_start is None else max(0, (next_start - end) // 2)
        return min(end + min(self._padding, room), self.num_samples)

    def _cut_speech(self, upto: int, found: list[Piece]) -> None:
        """Cut at the quietest places while the piece under way is too long; audio is there up to `upto`."""
        while self._begin is not None and upto - self._begin > self._piece:
            latest = self._begin + self._piece - self._context
            cut = self._quietest(max(latest - self._search, self._keep + 1), latest)
            self._end_piece(cut, found, context=self._context)
            self._begin = max(self._keep - self._context, 0)
            self._pauses = [each for each in self._pauses if each[0] > cut]

    def _end_piece(self, keep_to: int, found: list[Piece], context: int = 0) -> None:
        assert self._begin is not None
        samples = self._between(self._begin, keep_to + context)
        found.append(
            Piece(
                index=self._index,
                start=self._begin,
                keep_from=self._keep,
                keep_to=keep_to,
                samples=samples.copy(),  # the buffer is not kept for it
                sample_rate=self.sample_rate,
            )
        )
        self._index += 1
        self._keep = keep_to

    def _quietest(self, earliest: int, latest: int) -> int:
        """The middle of the quietest stretch whose middle is between these samples, the last of several."""
        unit = max(1, round(LEVEL_S * self.sample_rate))
        half = max(1, round(QUIET_S / LEVEL_S / 2))
        start = max(earliest - half * unit, self._base)
        samples = widened(self._between(start, min(latest + half * unit, self.num_samples)))
        count = len(samples) // unit
        if count <= 2 * half:
            return latest
        powers: npt.NDArray[np.float64] = np.square(samples[: count * unit].reshape(count, unit), dtype=np.float64).sum(
            axis=1
        )
        sums = np.concatenate([[0.0], np.cumsum(powers)])
        levels = sums[2 * half :] - sums[: -2 * half]
        best = len(levels) - 1 - int(np.argmin(levels[::-1]))
        return int(np.clip(start + (best + half) * unit, earliest, latest))

    def _between(self, start: int, end: int) -> Samples:
        return self._buffer[start - self._base : end - self._base]

    def _sample(self, seconds: float) -> int:
        return min(round(seconds * self.sample_rate), self.num_samples)

    def _forget(self) -> None:
        """Drop audio that no piece will have."""
        # Speech is reported a little late, and has padding.
        needed = self._known - self._step if self._begin is None else self._begin
        if self._activity is not None:
            needed = min(needed, self._num_given)
        drop = needed - self._base
        if drop > 0:
            self._buffer = self._buffer[drop:].copy()
            self._base = needed
