"""Words and segments of a transcript get the speakers of a diarization."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tritone.activity import SpeechSegment
from tritone.errors import InputError
from tritone.formats.rttm import Turn
from tritone.transcript import Segment, Span, Transcript

Timed = TypeVar("Timed", Span, Segment)

PADDING_S = 0.1  # before and after a word: times of models are those of peaks within it
SHORT_PAUSE_S = 0.3  # between widened words, which is part of speech
NEAR_S = 1.0  # a word that no turn covers is of the nearest one, up to this far away


def speech_of(transcript: Transcript) -> list[SpeechSegment]:
    """Where a transcript has words, or segments where it has no words: in order, short pauses as part of speech."""
    parts: Sequence[Span | Segment] = transcript.words or transcript.segments
    found: list[SpeechSegment] = []
    for each in sorted(parts, key=lambda part: part.start_s):
        start_s, end_s = max(0.0, each.start_s - PADDING_S), max(each.start_s, each.end_s) + PADDING_S
        if found and start_s - found[-1].end_s <= SHORT_PAUSE_S:
            found[-1] = SpeechSegment(found[-1].start_s, max(found[-1].end_s, end_s))
        else:
            found.append(SpeechSegment(start_s, end_s))
    return found


def with_speakers(transcript: Transcript, turns: Sequence[Turn]) -> Transcript:
    """A transcript whose words and segments have speakers; everything else is as it was.

    Each has the speaker who talks longest in it. Where nobody does, it has that of the nearest turn within a second,
    and "" beyond. Segments that a stream has ended are treated in the same way.

    Args:
        turns: of the same recording, with times as in the transcript.

    Raises:
        InputError: there is text, and no words that could have speakers.
    """
    if transcript.text.strip() and not transcript.words:
        raise InputError(
            "the transcript has no times of words, which speakers need; ask the model for them (Whisper: word_times)"
        )
    ordered = sorted((each for each in turns if each.speaker), key=lambda each: each.start_s)
    # The latest end of any turn up to each, so that a search may stop there.
    ends: list[float] = []
    for each in ordered:
        ends.append(max(each.end_s, ends[-1] if ends else each.end_s))

    def label(part: Timed) -> Timed:
        return replace(part, speaker=_speaker(part.start_s, part.end_s, ordered, ends))

    return replace(
        transcript,
        words=tuple(map(label, transcript.words)),
        segments=tuple(map(label, transcript.segments)),
        ended=tuple(with_speakers(each, ordered) for each in transcript.ended),
    )


def _speaker(start_s: float, end_s: float, turns: Sequence[Turn], ends: Sequence[float]) -> str:
    seconds_of: dict[str, float] = {}
    near_s, near = NEAR_S, ""
    for each in turns[bisect_left(ends, start_s - NEAR_S) :]:
        if each.start_s > end_s + NEAR_S:
            break
        shared = min(end_s, each.end_s) - max(start_s, each.start_s)
        if shared > 0:
            seconds_of[each.speaker] = seconds_of.get(each.speaker, 0.0) + shared
        elif -shared < near_s or (not near and -shared == near_s):
            near_s, near = -shared, each.speaker
    return max(seconds_of, key=lambda speaker: seconds_of[speaker]) if seconds_of else near
