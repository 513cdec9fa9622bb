"""Transcripts in the shapes of OpenAI's answers: `json`, `verbose_json`, `diarized_json`, log-probabilities, usage.

Every function takes a transcript of the whole recording and returns what becomes JSON. Times are seconds.
"""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tritone.formats.phrases import Phrase, phrases_of
from tritone.transcript import Segment, Span, Transcript, rounded

LOWEST_CONFIDENCE = 1e-10  # of a token, whose logarithm must be a number in JSON


def usage(audio_s: float) -> dict[str, Any]:
    """What a request is billed by: the length of its audio."""
    return {"type": "duration", "seconds": round(audio_s, 3)}


def log_probs(tokens: Iterable[Span]) -> list[dict[str, Any]]:
    """The natural logarithms of the tokens' confidences, each with the token's text and UTF-8 bytes."""
    return [
        {
            "token": token.text,
            "bytes": list(token.text.encode()),
            "logprob": round(math.log(max(token.confidence, LOWEST_CONFIDENCE)), 6),
        }
        for token in tokens
        if token.confidence is not None
    ]


def plain(transcript: Transcript, *, logprobs: bool) -> dict[str, Any]:
    """The answer of `response_format=json`."""
    answer: dict[str, Any] = {"text": transcript.text, "usage": usage(transcript.audio_s)}
    if logprobs:
        answer["logprobs"] = log_probs(transcript.tokens)
    return answer


def verbose(transcript: Transcript, *, language: str, words: bool, segments: bool) -> dict[str, Any]:
    """The answer of `response_format=verbose_json`; `language` is what the request named, if the model reports none."""
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": transcript.language or language,
        "duration": round(transcript.audio_s, 3),
        "text": transcript.text,
        "usage": usage(transcript.audio_s),
    }
    if transcript.languages:
        answer["languages"] = {code: round(share, 4) for code, share in transcript.languages}
    if words:
        answer["words"] = [
            {"word": word.text, "start": round(word.start_s, 3), "end": round(word.end_s, 3)}
            for word in transcript.words
        ]
    if segments:
        answer["segments"] = [_segment(index, each) for index, each in enumerate(segments_of(transcript))]
    return answer


def segments_of(transcript: Transcript) -> list[Segment]:
    """The segments of a recording; its phrases where the model writes none."""
    parts = transcript.segments or [
        Segment(each.text, each.start_s, each.end_s, speaker=each.speaker) for each in phrases_of(transcript)
    ]
    return [_measured(each, transcript.tokens) for each in parts]


def _measured(segment: Segment, tokens: Sequence[Span]) -> Segment:
    """A segment with the figures that can be computed from its text and tokens, where the model gave none."""
    text, mean = segment.text.encode(), segment.avg_log_prob
    if mean is None:
        inside = [each for each in tokens if segment.start_s <= each.start_s < segment.end_s]
        logs = [each["logprob"] for each in log_probs(inside)]
        mean = sum(logs) / len(logs) if logs else None
    ratio = segment.compression_ratio or (len(text) / len(zlib.compress(text)) if text else 0.0)
    return replace(segment, avg_log_prob=mean, compression_ratio=ratio)


def _segment(index: int, segment: Segment) -> dict[str, Any]:
    known = {"avg_logprob": rounded(segment.avg_log_prob), "no_speech_prob": rounded(segment.no_speech_prob)}
    return {
        "id": index,
        "seek": 0,
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "compression_ratio": round(segment.compression_ratio, 4),
        **{name: value for name, value in known.items() if value is not None},
        **({"language": segment.language} if segment.language else {}),
    }


def diarized_segments(transcript: Transcript, first: int = 0) -> list[dict[str, Any]]:
    """The phrases of a transcript with their speakers, as segments of `diarized_json` and as events of a stream.

    Args:
        first: the index of the first.
    """
    return [_diarized(index, each) for index, each in enumerate(phrases_of(transcript), first)]


def _diarized(index: int, phrase: Phrase) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{index}",
        "start": round(phrase.start_s, 3),
        "end": round(phrase.end_s, 3),
        "text": phrase.text,
        "speaker": phrase.speaker,
    }


def diarized(transcript: Transcript) -> dict[str, Any]:
    """The answer of `response_format=diarized_json`: a segment for each phrase of a speaker."""
    return {
        "task": "transcribe",
        "duration": round(transcript.audio_s, 3),
        "text": transcript.text,
        "segments": diarized_segments(transcript),
        "usage": usage(transcript.audio_s),
    }
