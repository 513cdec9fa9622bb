"""Who speaks when by a segmentation network: speech of several speakers at once is given to each of them.

    windows of 10 s  ->  frames of local speakers, a voice of each  ->  speakers of the recording  ->  frames  ->  turns

The network tells the speakers of one window apart; their voices say who they are in the recording. Local speakers of a
window are different people. At each frame, as many speakers talk as the windows that hold it have on average, and those
whom most of these windows have. Source: pyannote.audio 4.0, `SpeakerDiarization` (pipelines/speaker_diarization.py),
`Inference.aggregate` (core/inference.py), `constrained_argmax` (pipelines/clustering.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Waveform
from tritone.diarization.assignment import best_pairs
from tritone.diarization.clustering import NO_PAIRS, Doubles, Labels, Pairs, in_order, pairs_among
from tritone.diarization.online import STREAM_SHARE
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.voices import Floats, centres_of
from tritone.diarization.windows import LEAST_WINDOW_S

Activity = npt.NDArray[np.bool_]

SHIFT_S = 1.0  # from one window to the next
CLEAN_SHARE = 0.1  # of a window: a local speaker who says less alone is looked at in the second round
SHORT_WINDOWS = 3  # in which somebody is found in the second round makes a speaker
OVERLAP_S = 0.2  # of two local speakers who talk at once, from which they are different people in the clustering too
NOBODY = -1


class Segmenter(Protocol):
    """A segmentation network, with its sizes in samples; `tritone.load` of a bundle that has one."""

    window_samples: int
    frame_samples: int
    field_samples: int

    def segment(self, windows: Sequence[Waveform], /) -> Sequence[npt.NDArray[Any]]:
        """Who talks in each of the windows (samples,): (frames, local speakers) of 0 and 1."""


@dataclass(frozen=True)
class LocalSpeaker:
    """A speaker of one window: its column there, and the samples of the voice.

    `alone`: nobody else talks in them; `whole`: so much of the window is said alone that it can make a speaker.
    """

    column: int
    samples: Waveform = field(repr=False)
    alone: bool
    whole: bool


class SlidingWindows:
    """Cuts the windows of one recording as its audio comes; memory is that of a window."""

    def __init__(self, segmenter: Segmenter, sample_rate: int) -> None:
        self._length = segmenter.window_samples
        self._shift = min(round(SHIFT_S * sample_rate), self._length)
        self._rest = np.zeros(0, np.float32)
        self._any = False

    def accept(self, samples: Waveform) -> list[Waveform]:
        """Take the next samples (samples,) and return the windows that are full."""
        self._rest = np.concatenate([self._rest, samples])
        found = []
        while len(self._rest) >= self._length:
            found.append(self._rest[: self._length].copy())
            self._rest = self._rest[self._shift :]
            self._any = True
        return found

    def finish(self) -> list[Waveform]:
        """The last window, with silence behind it; none where the one before ends with the audio."""
        left = len(self._rest) - (self._length - self._shift if self._any else 0)
        return [np.pad(self._rest, (0, self._length - len(self._rest)))] if left > 0 else []


def local_speakers(
    window: Waveform, activity: Activity, segmenter: Segmenter, sample_rate: int
) -> Iterator[LocalSpeaker]:
    """The speakers of a window who talk in it, with what they say alone, or all they say where that is too short.

    Args:
        window: (samples,).
        activity: (frames, local speakers).
    """
    # A frame stands for the samples in the middle of what it sees.
    first = (segmenter.field_samples - segmenter.frame_samples) // 2
    frame_of = (np.arange(len(window)) - first) // segmenter.frame_samples
    frame_of = np.clip(frame_of, 0, len(activity) - 1)
    alone = activity.sum(axis=1) == 1
    least = LEAST_WINDOW_S * sample_rate
    for column in range(activity.shape[1]):
        if not activity[:, column].any():
            continue
        clean = activity[:, column] & alone
        samples = window[clean[frame_of]]
        if not (is_alone := len(samples) >= least):
            samples = window[activity[:, column][frame_of]]
        whole = is_alone and bool(clean.mean() >= CLEAN_SHARE)
        yield LocalSpeaker(column, samples if len(samples) >= least else samples[:0], is_alone, whole)


def assign(similarities: Sequence[Doubles], speakers: int) -> Labels:
    """The speakers of the local speakers of each window, (windows, local speakers): different ones within a window.

    Args:
        similarities: of each window, (local speakers, speakers); rows of NaN are nobody's.
        speakers: how many there are.

    Returns:
        numbers of speakers, and `NOBODY`, also of those for whom no speaker is left.
    """
    local = max((len(each) for each in similarities), default=0)
    found = np.full((len(similarities), local), NOBODY)
    for row, each in zip(found, similarities, strict=True):
        present = np.flatnonzero(~np.isnan(each).any(axis=1))
        if len(present) and speakers:
            for index, speaker in best_pairs(each[present]):
                row[present[index]] = speaker
    return found


def talk_at_once(activity: Sequence[Activity], places: Sequence[tuple[int, int]], least: int) -> Pairs:
    """Which local speakers talk at once, and so are different people: (pairs, 2) of indices of places.

    Args:
        activity: of each window, (frames, local speakers).
        places: window and column of each local speaker, by window.
        least: frames of both, from which it is no mere boundary of two turns.
    """
    found = []
    for _, members in groupby(enumerate(places), key=lambda each: each[1][0]):
        for (one, (window, column)), (other, (_, beside)) in combinations(members, 2):
            if (activity[window][:, column] & activity[window][:, beside]).sum() >= least:
                found.append((one, other))
    return np.array(found, np.int64).reshape(-1, 2)


def label_local(
    vectors: Floats,
    local: Sequence[LocalSpeaker],
    places: Sequence[tuple[int, int]],
    shape: tuple[int, int],
    options: SpeakerOptions,
    apart: Pairs = NO_PAIRS,
) -> tuple[Labels, int]:
    """Tell the speakers of a recording apart.

    Args:
        vectors: (voices, dim), embeddings of local speakers; zeros where there is none.
        local: the local speakers.
        places: window and column of each.
        shape: windows and local speakers of a window.
        apart: those who are different people, see `talk_at_once`.

    Returns:
        (windows, local speakers), numbered by their first appearance, `NOBODY` where nobody talks; and how many.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    audible = lengths > 0
    similarities = np.full((*shape, 1), np.nan)
    if not audible.any():  # too short for a voice, whoever it is
        count = 1
        for place in places:
            similarities[place] = 0.0
    else:
        units = vectors / np.where(audible, lengths, 1.0)[:, None]
        whole, alone = (audible & np.array([getattr(each, name) for each in local]) for name in ("whole", "alone"))
        makers = next(each for each in (whole, alone, audible) if each.any())
        centres = _centres(units, makers, alone & ~makers, options, apart)
        count = len(centres)
        centres = _units(centres)
        similarities = np.full((*shape, count), np.nan)
        for place, unit in zip(places, units, strict=True):
            similarities[place] = unit @ centres.T
    labels = assign(list(similarities), count)
    talking = labels != NOBODY
    labels[talking] = in_order(labels[talking])
    return labels, int(labels.max(initial=NOBODY)) + 1


def _centres(units: Doubles, makers: Activity, short: Activity, options: SpeakerOptions, apart: Pairs) -> Doubles:
    """The sums of the voices of each speaker, (speakers, dim).

    Those who never say much alone are found in a second round, among what is said alone for a moment and is like nobody
    of the first.
    """
    least, most = options.bounds

    def found(these: Activity, chosen: SpeakerOptions) -> Doubles:
        kept = np.flatnonzero(these)
        return centres_of(units[kept], chosen, pairs_among(apart, kept, len(units)))

    free = replace(options, num_speakers=None, min_speakers=1, max_speakers=most)
    centres = found(makers, free)
    strange = short & ((units @ _units(centres).T).max(axis=1) < STREAM_SHARE * options.merge_cosine)
    if len(centres) < most and strange.sum() >= SHORT_WINDOWS:
        more = found(strange, replace(free, max_speakers=most - len(centres)))
        of_each = np.bincount(np.argmax(units[strange] @ _units(more).T, axis=1), minlength=len(more))
        centres = np.concatenate([centres, more[of_each >= SHORT_WINDOWS]])
    return centres if len(centres) >= least else found(makers | strange, options)


def _units(vectors: Doubles) -> Doubles:
    result: Doubles = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return result


def speaker_frames(
    activity: Sequence[Activity], labels: Labels, speakers: int, *, shift: float, most: int | None = None
) -> Activity:
    """Who talks in the frames of a recording, (frames, speakers).

    Args:
        activity: of each window, (frames, local speakers).
        labels: (windows, local speakers), see `label_local`.
        shift: from one window to the next, in frames.
        most: speakers who talk at once.
    """
    if not activity:
        return np.zeros((0, speakers), bool)
    length = len(activity[0])
    starts = [round(index * shift) for index in range(len(activity))]
    total = starts[-1] + length
    windows, talking = np.zeros(total), np.zeros(total)
    votes = np.zeros((total, speakers), np.float32)
    for start, each, row in zip(starts, activity, labels, strict=True):
        part = slice(start, start + length)
        windows[part] += 1
        talking[part] += each.sum(axis=1)
        for speaker in np.unique(row[row != NOBODY]):
            votes[part, speaker] += each[:, row == speaker].any(axis=1)
    counts = np.rint(talking / np.maximum(windows, 1)).astype(np.int64)
    if most is not None:
        counts = np.minimum(counts, most)
    ranks = np.argsort(np.argsort(-votes, axis=1, kind="stable"), axis=1, kind="stable")
    found: Activity = (ranks < counts[:, None]) & (votes > 0)
    return found
