"""What a graph in another precision makes of real audio, against the float32 network.

    log-probabilities of both  ->  Drift

An error bound on numbers says little of a recogniser: log-probabilities of tokens that nobody considers may move by
whole units and change nothing. What is limited is how much probability moves. Of distributions over tokens, one a
frame, that is the total variation distance, ½ Σ |p - q| over the vocabulary, averaged over frames: 0 if nothing
changes, 1 if everything does. Of scores of hypotheses it is the change per token, which for small changes is the
relative change of a token's probability.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio import Waveform, read_audio
from tritone.audio.files import find_audio
from tritone.corpus.clips import read_clips
from tritone.corpus.dataset import read_utterances
from tritone.errors import ExportError

MAX_RECORDINGS = 50  # enough for a mean, and done in seconds
MAX_SECONDS = 30.0  # of one recording; the rest of it is left out

Array = npt.NDArray[np.float32]


class Movement(Protocol):
    """What all kinds of drift have: `moved`, which is limited, NaN if a graph gave something that is not finite."""

    @property
    def moved(self) -> float: ...


@dataclass(frozen=True)
class Drift:
    """How far a graph is from float32.

    `count`: frames, or hypotheses of a decoder. `mean`, `largest`: change of a log-probability, or of a
    hypothesis's score, natural-log units. `changed`: share of frames with another best token; None for decoders.
    `moved`: what is limited, see above; NaN if the graph gave something that is not finite.
    """

    count: int
    mean: float
    largest: float
    changed: float | None
    moved: float

    def __str__(self) -> str:
        if self.changed is None:
            return (
                f"scores of {self.count} hypotheses change by {self.mean:.3g}, at most {self.largest:.3g}; "
                f"{self.moved:.3g} a token"
            )
        return (
            f"log-probs of {self.count} frames change by {self.mean:.3g}, at most {self.largest:.3g}; another best "
            f"token in {self.changed:.2%}; total variation {self.moved:.3g}"
        )


def read_recordings(source: Path | None, sample_rate: int) -> list[Waveform]:
    """Read audio to measure drift with.

    Args:
        source: a folder of audio files, or a Kaldi wav.scp; None takes the clips of the demo.
        sample_rate: of the model, in Hz.

    Raises:
        InputError: there is no audio, or a file cannot be read.
    """
    if source is None:
        paths = [clip.path for clip in read_clips()]
    elif source.is_dir():
        paths = find_audio(source)
    else:
        paths = [each.audio for each in read_utterances(wavscp=source, need_text=False)]
    longest = round(MAX_SECONDS * sample_rate)
    return [read_audio(path, sample_rate)[:longest] for path in paths[:MAX_RECORDINGS]]


def distribution_drift(pairs: Iterable[tuple[Array, Array]]) -> Drift:
    """Compare distributions over tokens.

    Args:
        pairs: log-probabilities (frames, vocab), of the float32 network and of what is held against it.

    Raises:
        ExportError: there is no frame at all.
    """
    frames, changed, total, largest, moved = 0, 0, 0.0, 0.0, 0.0
    tokens = 1
    for expected, found in pairs:
        if not len(expected):
            continue
        # The built-in max would lose a NaN.
        change = np.abs(found - expected)
        frames, tokens = frames + len(expected), expected.shape[1]
        total += float(change.sum(dtype=np.float64))
        largest = float(np.maximum(largest, change.max()))
        changed += int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
        moved += 0.5 * float(np.abs(np.exp(found) - np.exp(expected)).sum(dtype=np.float64))
    if not frames:
        raise ExportError("the audio to check the exported graphs with is too short for a single frame")
    return Drift(
        frames,
        total / (frames * tokens),
        largest,
        changed / frames,
        moved / frames if math.isfinite(largest) else math.nan,
    )


def score_drift(changes: Sequence[Array], counts: Sequence[int]) -> Drift:
    """Compare scores of hypotheses.

    Args:
        changes: absolute changes of scores; several arrays.
        counts: of each array, how many tokens its hypothesis has.

    Raises:
        ExportError: there is no score at all.
    """
    if not changes:
        raise ExportError("the audio to check the exported graphs with is too short for a single frame")
    change = np.concatenate(changes).astype(np.float64)
    return Drift(len(change), float(change.mean()), float(change.max()), None, float(change.sum() / sum(counts)))
