"""Speakers of a stream, distinguished as it goes on.

    speakers = OnlineSpeakers(merge_cosine=0.5)
    speakers.add(embedding)  ->  "speaker1"

A window belongs to the speaker with the most similar voice so far, or begins a new one. Earlier labels never change, so
mistakes at the beginning stay: whole recordings are better clustered as a whole.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from itertools import count

import numpy as np
import numpy.typing as npt

LABEL = "speaker{}"  # from 1, by first appearance
STREAM_SHARE = 0.7  # of `merge_cosine`, which is of two means: a window is less like a mean
ENROLLED_WEIGHT = 10.0  # of an enrolled voice: so many windows' worth, before the stream changes it


class OnlineSpeakers:
    """The speakers of one stream; memory grows with their number alone, which is bounded."""

    def __init__(
        self,
        *,
        merge_cosine: float,
        max_speakers: int = 20,
        enrolled: Mapping[str, npt.NDArray[np.float32]] | None = None,
        enrolled_cosine: float | None = None,
    ) -> None:
        """Begin without speakers.

        Args:
            merge_cosine: as of `SpeakerOptions`; a window is a speaker's from 0.7 times that cosine with the mean.
            max_speakers: of those that are found; when there are as many, windows belong to the most similar.
            enrolled: voices that are known, (dim,) each, by name; their windows are labelled so.
            enrolled_cosine: cosine from which a window is of an enrolled voice; as of others if not given.
        """
        if max_speakers < 1:
            raise ValueError(f"max_speakers must be at least 1, got {max_speakers}")
        self._window_cosine, self._max_speakers = STREAM_SHARE * merge_cosine, max_speakers
        self._enrolled_cosine = self._window_cosine if enrolled_cosine is None else enrolled_cosine
        self._labels: list[str] = list(enrolled or ())
        self._known = len(self._labels)
        self._sums = [ENROLLED_WEIGHT * _unit(each) for each in (enrolled or {}).values()]
        self._met: dict[str, None] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """The speakers so far, by first appearance; enrolled voices that do not occur are not among them."""
        return tuple(self._met)

    def copied(self) -> "OnlineSpeakers":
        """The same speakers, to try what windows would be labelled as: what is added there is not added here."""
        other = copy(self)
        other._labels, other._sums, other._met = [*self._labels], [*self._sums], {**self._met}
        return other

    def add(self, embedding: npt.ArrayLike, *, whole: bool = True) -> str:
        """Label the next window.

        Args:
            embedding: (dim,), of any length but zero.
            whole: False for a window too short to make a new speaker, if there is one, or to change the mean of one.
        """
        voice = _unit(embedding)
        cosines = np.array([voice @ each / max(float(np.linalg.norm(each)), 1e-12) for each in self._sums])
        index = self._choose(cosines, whole)
        if index == len(self._sums):
            self._labels.append(next(unused_labels(self._labels)))
            self._sums.append(voice)
        elif whole:
            self._sums[index] = self._sums[index] + voice
        self._met[self._labels[index]] = None
        return self._labels[index]

    def label(self, vectors: Sequence[npt.ArrayLike | None], whole: Sequence[bool], last: str) -> list[str]:
        """Label windows in turn, as of `add`; those without an embedding have the label before, at first `last`."""
        labels = []
        for vector, long_enough in zip(vectors, whole, strict=True):
            if vector is not None:
                last = self.add(vector, whole=long_enough)
            labels.append(last)
        return labels

    def _choose(self, cosines: npt.NDArray[np.float64], whole: bool) -> int:
        """The index of the speaker, or that of a new one."""
        bars = np.full(len(cosines), self._window_cosine)
        bars[: self._known] = self._enrolled_cosine
        fits = cosines >= bars
        if fits.any():
            return int(np.argmax(np.where(fits, cosines, -np.inf)))
        others = cosines[self._known :]
        if len(others) and (not whole or len(others) >= self._max_speakers):
            return self._known + int(np.argmax(others))
        return len(cosines)


def unused_labels(names: Container[str]) -> Iterator[str]:
    """speaker1, speaker2 and so on, without those that somebody is called."""
    return (label for label in map(LABEL.format, count(1)) if label not in names)


def _unit(vector: npt.ArrayLike) -> npt.NDArray[np.float64]:
    found = np.asarray(vector, dtype=np.float64)
    length = float(np.linalg.norm(found))
    if found.ndim != 1 or not np.isfinite(length) or length == 0:
        raise ValueError(f"an embedding is (dim,), finite and not zero, got {found.shape} of length {length:g}")
    return found / length
