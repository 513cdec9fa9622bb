"""Cutting the text of a window into segments, and where the next window begins.

    tokens of a window with times among them  ->  Pieces (start, end, tokens), frames to move on by

A pair of times ends one segment and begins the next. What comes after the last pair is cut off by the end of the
window, so the next window begins there.
Source: openai/whisper whisper/transcribe.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tritone.kinds.whisper.part import WhisperPart

FRAMES_PER_STEP = 2  # of features, from one time to the next that a token can have


@dataclass(frozen=True)
class Piece:
    """A segment of a window: its tokens, with its times, and where it is in the window, in seconds."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]


def cut(tokens: Sequence[int], num_frames: int, special: WhisperPart) -> tuple[list[Piece], int]:
    """Cut a window.

    Args:
        tokens: of its text, without the end.
        num_frames: features of the window that are of the recording.

    Returns:
        Its segments, and how many frames later the next window begins, at least one.
    """
    begin, step_s = special.timestamp_begin, special.time_precision
    times = [token >= begin for token in tokens]
    ends_in_time = times[-2:] == [False, True]
    ends = [place for place in range(1, len(tokens)) if times[place - 1] and times[place]]
    if not ends:
        last = next((token - begin for token in reversed(tokens) if token >= begin), 0)
        duration = last * step_s if last else num_frames * step_s / FRAMES_PER_STEP
        return [Piece(0.0, duration, tuple(tokens))], num_frames
    if ends_in_time:
        ends.append(len(tokens))
    pieces = [
        Piece((part[0] - begin) * step_s, (part[-1] - begin) * step_s, tuple(part))
        for part in (tokens[start:end] for start, end in zip([0, *ends], ends, strict=False))
    ]
    if ends_in_time:  # nothing is said after the last time
        return pieces, num_frames
    return pieces, max(1, (tokens[ends[-1] - 1] - begin) * FRAMES_PER_STEP)
