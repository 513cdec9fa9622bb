"""The result of recognition: text with token and word timings. Times are seconds from the start of the audio.

The pipelines make it, the wire carries it as JSON (output `DETAILS`), the client reads it back.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self

# Kana, CJK ideographs with their extensions and compatibility forms: scripts without spaces. Hangul has them.
IDEOGRAPH = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
_ideograph = re.compile(IDEOGRAPH)


@dataclass(frozen=True)
class Span:
    """A token or a word: its text, start and end in seconds, confidence, and the speaker, "" where unknown.

    `confidence`: 0..1, None where the model has none.
    """

    text: str
    start_s: float
    end_s: float
    confidence: float | None
    speaker: str = ""


@dataclass(frozen=True)
class Alternative:
    """Another reading of the same audio. `score`: what readings are ranked by, in natural-log units."""

    text: str
    score: float
    tokens: tuple[Span, ...] = ()
    words: tuple[Span, ...] = ()
    confidence: float | None = None


@dataclass(frozen=True)
class Segment:
    """A part of a recording that a model itself cut off, such as a sentence, with how sure it was of the text.

    `avg_log_prob`: mean log-probability of its window's tokens. `no_speech_prob`: the probability that there is no
    speech in the window. `compression_ratio`: how far zlib compresses the window's text; repetitive text has more.
    `temperature`: at which it was written. `tokens`: ids, with those of its start and end where the model wrote any.
    `speaker`: who spoke, `language`: the code of its language; "" where unknown. A probability is None where the model
    has none.
    """

    text: str
    start_s: float
    end_s: float
    avg_log_prob: float | None = None
    no_speech_prob: float | None = None
    compression_ratio: float = 0.0
    temperature: float = 0.0
    tokens: tuple[int, ...] = ()
    speaker: str = ""
    language: str = ""


@dataclass(frozen=True)
class Transcript:
    """What was said.

    `is_final` is False for a partial result of a stream; `confidence` is the mean over words, or what a model has for
    the text; None where there is neither.
    `alternatives`: the n best readings, the first being this one, where more than one was asked for.

    A stream with endpoints is a row of segments. The transcript is of the one under way, `segment` is its number from
    0; `ended` holds those that this step ended, in order and final, and `history` the text of all ended segments. Times
    count from the start of the stream.

    `tags`: what else a model says of the audio as a whole, by name, such as ("emotion", "HAPPY") (SenseVoice).
    `segments` are of models that write them (Whisper). `language`: the code of the language, of models that take it
    or find it out; `languages`: what was found, likeliest first, with its probability. Empty elsewhere.
    `settled`: characters at the start of a partial text that do not change any more; None where a model does not tell.
    """

    text: str
    # Factories, since what a class has itself would be found before `__getattr__` is asked.
    tokens: tuple[Span, ...] = field(default_factory=tuple)
    words: tuple[Span, ...] = field(default_factory=tuple)
    confidence: float | None = field(default_factory=lambda: None)
    audio_s: float = 0.0
    is_final: bool = True
    alternatives: tuple[Alternative, ...] = field(default_factory=tuple)
    segment: int = 0
    ended: tuple["Transcript", ...] = ()
    history: str = ""
    segments: tuple[Segment, ...] = ()
    language: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    languages: tuple[tuple[str, float], ...] = ()
    settled: int | None = None

    @classmethod
    def deferred(cls, text: str, details: "Callable[[], Self]", **known: Any) -> "Self":
        """A final transcript whose tokens, words, confidence and alternatives are made when one of them is read.

        Most servers send the text alone, which costs a tenth.

        Args:
            details: makes a transcript that has them.
            known: the other fields.
        """
        made = cls.__new__(cls)
        made.__dict__.update(text=text, _details=details, **known)
        return made

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__
        if name in DEFERRED and (details := fields.get("_details")) is not None:
            whole = details()
            fields.update((each, getattr(whole, each)) for each in DEFERRED)
            fields.pop("_details", None)  # of several threads that read at once, each has made the same
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> dict[str, Any]:
        _ = self.words  # what makes them may be tied to this process
        return dict(self.__dict__)

    @property
    def whole_text(self) -> str:
        """The text of the stream so far, over all its segments."""
        return joined(self.history, self.text)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form, times rounded to the millisecond. `history` is left out: the whole text tells it."""
        result: dict[str, Any] = {
            "text": self.text,
            "tokens": _spans_out(self.tokens),
            "words": _spans_out(self.words),
            "confidence": rounded(self.confidence),
            "audio_s": round(self.audio_s, 3),
            "is_final": self.is_final,
            "segment": self.segment,
        }
        if self.alternatives:
            result["alternatives"] = [
                {
                    "text": each.text,
                    "score": round(each.score, 4),
                    "tokens": _spans_out(each.tokens),
                    "words": _spans_out(each.words),
                    "confidence": rounded(each.confidence),
                }
                for each in self.alternatives
            ]
        if self.language:
            result["language"] = self.language
        if self.tags:
            result["tags"] = dict(self.tags)
        if self.languages:
            result["languages"] = {code: round(share, 4) for code, share in self.languages}
        if self.settled is not None:
            result["settled"] = self.settled
        if self.segments:
            result["segments"] = [
                {
                    "text": each.text,
                    "start_s": round(each.start_s, 3),
                    "end_s": round(each.end_s, 3),
                    "avg_log_prob": rounded(each.avg_log_prob),
                    "no_speech_prob": rounded(each.no_speech_prob),
                    "compression_ratio": round(each.compression_ratio, 4),
                    "temperature": round(each.temperature, 4),
                    "tokens": list(each.tokens),
                    **_speaker_out(each),
                    **({"language": each.language} if each.language else {}),
                }
                for each in self.segments
            ]
        if self.ended:
            result["ended"] = [each.to_dict() for each in self.ended]
        return result

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Transcript":
        """Read `to_dict()` back. Fields of a newer server that this version does not know are left out.

        Raises:
            KeyError, TypeError: `fields` is not such a dictionary.
        """
        names = ("confidence", "audio_s", "is_final", "segment", "language", "settled")
        known = {name: fields[name] for name in names if name in fields}
        return cls(
            text=fields["text"],
            tokens=_spans_in(fields, "tokens"),
            words=_spans_in(fields, "words"),
            alternatives=tuple(
                Alternative(
                    text=each["text"],
                    score=each["score"],
                    tokens=_spans_in(each, "tokens"),
                    words=_spans_in(each, "words"),
                    confidence=each.get("confidence"),
                )
                for each in fields.get("alternatives", ())
            ),
            ended=tuple(cls.from_dict(each) for each in fields.get("ended", ())),
            languages=tuple((code, fields["languages"][code]) for code in fields.get("languages", ())),
            segments=tuple(
                Segment(
                    **{each.name: part[each.name] for each in dataclass_fields(Segment) if each.name in part}
                    | {"tokens": tuple(part.get("tokens", ()))}
                )
                for part in fields.get("segments", ())
            ),
            tags=tuple(fields.get("tags", {}).items()),
            **known,
        )


DEFERRED = ("tokens", "words", "confidence", "alternatives")
Timed = TypeVar("Timed", Span, Segment)


def joined(before: str, after: str) -> str:
    """Two pieces of text as one: with a space between them, unless one is empty or the script writes none there."""
    if not before or not after or (_ideograph.match(before[-1]) and _ideograph.match(after[0])):
        return before + after
    return f"{before} {after}"


def continued(before: Transcript, after: Transcript) -> Transcript:
    """Two transcripts of one stream, one after the other, as one without other readings; the rest is the second's."""
    if not before.text:
        return after
    text, words = joined(before.text, after.text), before.words + after.words
    return replace(
        after,
        text=text,
        tokens=before.tokens + after.tokens,
        words=words,
        segments=before.segments + after.segments,
        confidence=mean_confidence(words) if words else after.confidence,
        alternatives=(),
        language=after.language or before.language,
        settled=None if after.settled is None else len(text) - len(after.text) + after.settled,
    )


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A confidence or a log-probability as it is written."""
    return None if value is None else round(value, digits)


def mean_confidence(words: Sequence[Span]) -> float | None:
    """The mean of the confidences of words; None if there are no words, or one has none."""
    known = [each.confidence for each in words if each.confidence is not None]
    return sum(known) / len(known) if known and len(known) == len(words) else None


def within(spans: tuple[Timed, ...], end_s: float) -> tuple[Timed, ...]:
    """The same spans; times after `end_s`, where the audio ends, are there."""
    if all(span.end_s <= end_s for span in spans):
        return spans
    return tuple(
        span if span.end_s <= end_s else replace(span, start_s=min(span.start_s, end_s), end_s=min(span.end_s, end_s))
        for span in spans
    )


def at_words(segments: tuple[Segment, ...], words: Sequence[Span]) -> tuple[Segment, ...]:
    """The same segments, each from the start of its first word to the end of its last.

    A word is of the segment that its first letter is in. What has no word of its own, such as a mark, is in the word
    before it. Without words, or where the letters are others, segments stay as they are.
    """
    ends = [*accumulate(_num_letters(each.text) for each in segments)]
    starts = [*accumulate((_num_letters(each.text) for each in words), initial=0)]
    if not segments or ends[-1] != starts.pop():
        return segments
    own: list[list[Span]] = [[] for _ in segments]
    for word, start in zip(words, starts, strict=True):
        own[min(bisect_right(ends, start), len(own) - 1)].append(word)
    for place in range(1, len(own)):
        own[place] = own[place] or own[place - 1][-1:]
    return tuple(
        replace(each, start_s=said[0].start_s, end_s=max(word.end_s for word in said)) if said else each
        for each, said in zip(segments, own, strict=True)
    )


def _num_letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def main_language(segments: Iterable[Segment]) -> str:
    """The language that most of the time of some segments is in; empty if none says its own."""
    spoken: dict[str, float] = {}
    for each in segments:
        if each.language:
            spoken[each.language] = spoken.get(each.language, 0.0) + each.end_s - each.start_s
    return max(spoken, key=spoken.__getitem__, default="")


def shares(found: Iterable[tuple[str, float]], total: float) -> tuple[tuple[str, float], ...]:
    """Languages with their probabilities over several parts of a recording, likeliest first.

    Args:
        found: probabilities in the parts, times what each part counts for.
        total: what all parts count for together.
    """
    sums: dict[str, float] = {}
    for code, share in found:
        sums[code] = sums.get(code, 0.0) + share
    return tuple(sorted(((code, share / total) for code, share in sums.items()), key=lambda each: -each[1]))


def shifted(transcript: Transcript, seconds: float) -> Transcript:
    """A transcript whose times count from `seconds` before its audio, as in a longer recording that it is part of."""

    def moved(spans: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(each, start_s=each.start_s + seconds, end_s=each.end_s + seconds) for each in spans)

    return replace(
        transcript,
        tokens=moved(transcript.tokens),
        words=moved(transcript.words),
        audio_s=transcript.audio_s + seconds,
        alternatives=tuple(
            replace(each, tokens=moved(each.tokens), words=moved(each.words)) for each in transcript.alternatives
        ),
        ended=tuple(shifted(each, seconds) for each in transcript.ended),
        segments=moved(transcript.segments),
    )


def _spans_out(spans: tuple[Span, ...]) -> list[dict[str, Any]]:
    return [
        {
            "text": span.text,
            "start_s": round(span.start_s, 3),
            "end_s": round(span.end_s, 3),
            "confidence": rounded(span.confidence),
            **_speaker_out(span),
        }
        for span in spans
    ]


def _speaker_out(part: Span | Segment) -> dict[str, str]:
    return {"speaker": part.speaker} if part.speaker else {}


def _spans_in(fields: Mapping[str, Any], name: str) -> tuple[Span, ...]:
    return tuple(
        Span(span["text"], span["start_s"], span["end_s"], span["confidence"], span.get("speaker", ""))
        for span in fields.get(name, ())
    )
