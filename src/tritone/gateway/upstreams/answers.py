"""Answers of OpenAI's transcription API, which may be anything, to transcripts.

    bytes of `json` or `verbose_json`  ->  Transcript, or `ServerAnswerError`

vLLM writes the duration as text, OpenAI the language by its name; neither is needed. Times beyond the end of the audio,
which Whisper writes, are its end.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from tritone.errors import ServerAnswerError
from tritone.gateway.upstreams.options import Times
from tritone.transcript import Segment, Span, Transcript, at_words

MAX_MESSAGE = 300  # characters of an upstream's error that are passed on
MAX_ERROR_BYTES = 64 << 10  # of an answer that says what is wrong; what is longer has another purpose
MAX_CHARS = 1 << 20  # of a text: ten hours of speech
MAX_LISTED = 50_000  # words, or segments: four hours of them
MAX_CODE = 64
CODE = re.compile(r"[a-z]+(?:[_.-][a-z0-9]+){0,9}")  # a word for programs, such as model_not_found
MAX_LANGUAGE = 32
MEASURES = {
    "avg_log_prob": "avg_logprob",
    "no_speech_prob": "no_speech_prob",
    "compression_ratio": "compression_ratio",
    "temperature": "temperature",
}


def read_object(text: str | bytes) -> dict[str, Any]:
    """The object of a JSON text, whose strings can be sent on; raises `ServerAnswerError`."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # half of a surrogate pair cannot be sent
    except (ValueError, RecursionError) as error:
        raise ServerAnswerError(f"it answered what is no JSON ({len(text)} bytes)") from error
    if not isinstance(found, dict):
        raise ServerAnswerError(f"it answered JSON that is no object ({len(text)} bytes)")
    return found


def read_transcript(body: bytes, times: Times, audio_s: float) -> Transcript:
    """The transcript in an answer.

    Args:
        times: that were asked for; they are needed where there is text.
        audio_s: of the request, in seconds.

    Raises:
        ServerAnswerError: the answer is not one.
    """
    found = read_object(body)
    text = text_of(found, "text").strip()
    words: tuple[Span, ...] = ()
    segments: tuple[Segment, ...] = ()
    if times == "words":
        words = tuple(
            Span(text_of(each, "word").strip(), *_span(each, audio_s), confidence=None)
            for each in _listed(found, "words")
        )
        if text and not words:
            raise ServerAnswerError("its answer has no times of words; say times: segments, or times: none, of it")
    if times != "none":
        segments = tuple(_segment(each, audio_s) for each in _listed(found, "segments"))
        if times == "segments" and text and not segments:
            raise ServerAnswerError("its answer has no segments; say times: none of it")
    language = found.get("language")
    known = isinstance(language, str) and len(language) <= MAX_LANGUAGE
    return Transcript(
        text=text,
        words=words,
        segments=at_words(segments, words),
        audio_s=audio_s,
        language=language if known else "",  # type: ignore[arg-type]
    )


def message_of(body: bytes) -> str:
    """The sentence of an error: OpenAI's and vLLM's `error.message`, FastAPI's `detail`; "" of anything else."""
    error = _error_of(body)
    message = error.get("message", error.get("detail", ""))
    return message if isinstance(message, str) else ""


def code_of(error: bytes | Mapping[str, Any]) -> str:
    """The word for programs of an error: OpenAI's `error.code`, or its `error.type`; "" of anything else."""
    error = _error_of(error) if isinstance(error, bytes) else error
    words = (each for name in ("code", "type") if isinstance(each := error.get(name), str))
    return next((each for each in words if len(each) <= MAX_CODE and CODE.fullmatch(each)), "")


def _error_of(body: bytes) -> Mapping[str, Any]:
    try:
        found = read_object(body if len(body) <= MAX_ERROR_BYTES else b"")
    except ServerAnswerError:
        return {}
    error = found.get("error", found)
    return error if isinstance(error, Mapping) else {"message": error}


def shortened(message: str) -> str:
    """A message of others as one line that is not too long."""
    line = " ".join("".join(each if each.isprintable() else " " for each in message[: 4 * MAX_MESSAGE]).split())
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"


def text_of(found: Mapping[str, Any], name: str) -> str:
    """The text of a field; raises `ServerAnswerError`."""
    if not isinstance(value := found.get(name), str):
        raise ServerAnswerError(f"its answer has no text as {name}, but {type(value).__name__}")
    if len(value) > MAX_CHARS:
        raise ServerAnswerError(f"its answer has more than {MAX_CHARS} characters as {name}")
    return value


def _listed(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = found.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise ServerAnswerError(f"its answer has {name} that are no list of objects")
    if len(value) > MAX_LISTED:
        raise ServerAnswerError(f"its answer has more than {MAX_LISTED} {name}")
    return value


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:  # an int of a thousand digits
        number = math.inf
    if not math.isfinite(number):
        raise ServerAnswerError(f"its answer has a {name} that is no number, but {type(value).__name__}")
    return number


def _span(found: Mapping[str, Any], audio_s: float) -> tuple[float, float]:
    start_s, end_s = _number(found, "start"), _number(found, "end")
    if not 0 <= start_s <= end_s:
        raise ServerAnswerError(f"its answer has times that are none: from {start_s:g} s to {end_s:g} s")
    return min(start_s, audio_s), min(end_s, audio_s)


def _segment(found: Mapping[str, Any], audio_s: float) -> Segment:
    given = {ours: theirs for ours, theirs in MEASURES.items() if found.get(theirs) is not None}
    measures: dict[str, Any] = {ours: _number(found, theirs) for ours, theirs in given.items()}
    tokens = found.get("tokens")
    ids = tokens if isinstance(tokens, list) and all(type(each) is int for each in tokens) else ()
    return Segment(text_of(found, "text").strip(), *_span(found, audio_s), tokens=tuple(ids), **measures)
