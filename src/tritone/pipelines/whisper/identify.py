"""Which language a recording is in, as a Whisper model finds it: a few windows, spread over the recording.

features, options  ->  asks, as of `course.py`: Encode, Detect  ->  Transcript without text, its `languages`

Windows count by the probability that there is speech in them. A detection tells the likeliest of some languages; the
others are asked for without it, until what is left is unlikely.
"""

from collections.abc import Generator
from typing import Any

import numpy as np

from tritone.pipelines.whisper.course import Ask, Course, Detect, Detected, Encode, Model
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.transcript import Transcript, shares

MAX_WINDOWS = 4  # of a recording, which two minutes have
MOST = 5  # languages of an answer
REST = 0.01  # probability of all others together, which are not asked for
LEAST_WEIGHT = 1e-3  # of a window of silence, which says little


def identifying(model: Model, features: Any, options: DecodingOptions, audio_s: float) -> Course:
    """Everything that is asked, one after the other; returns the transcript.

    Args:
        features: of the recording, (frames, bins).
        audio_s: its length, in seconds.
    """
    size, codes = model.special.window_frames, options.allowed_languages or tuple(model.special.languages)
    count = min(MAX_WINDOWS, -(-len(features) // size))
    found: list[tuple[str, float]] = []
    total = 0.0
    for first in np.linspace(0, max(0, len(features) - size), count, dtype=int).tolist():
        yield Encode(features[first : first + size])
        here, weight = yield from _window(codes)
        found += ((code, share * weight) for code, share in here)
        total += weight
    languages = shares(found, total)[:MOST]
    best, share = languages[0] if languages else ("", 1.0)
    return Transcript("", confidence=share, audio_s=audio_s, language=best, languages=languages)


def _window(codes: tuple[str, ...]) -> Generator[Ask, Any, tuple[list[tuple[str, float]], float]]:
    """The likeliest languages of the window with their probabilities, and what the window counts for."""
    found: list[tuple[str, float]] = []
    rest, left, weight = 1.0, codes, 1.0
    while left and len(found) < MOST and rest > REST:
        detected: Detected = yield Detect(left)
        found.append((detected.language, rest * detected.probability))
        rest *= 1 - detected.probability
        left = tuple(code for code in left if code != detected.language)
        weight = max(LEAST_WEIGHT, 1 - detected.no_speech_prob)
    return found, weight
