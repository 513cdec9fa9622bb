"""The result of recognition: text with token and word timings. Times are seconds from the start of the audio.

The pipelines make it, the wire carries it as JSON (output `DETAILS`), the client reads it back.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """A token or a word: its text, start and end in seconds, confidence 0..1."""

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Transcript:
    """What was said.

    `is_final` is False for a partial result of a stream; `confidence` is the mean over words, 1.0 if there are none.
    """

    text: str
    tokens: tuple[Span, ...] = ()
    words: tuple[Span, ...] = ()
    confidence: float = 1.0
    audio_s: float = 0.0
    is_final: bool = True

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form, times rounded to the millisecond."""
        result = asdict(self)
        for spans in (result["tokens"], result["words"]):
            for span in spans:
                span.update(
                    {key: round(span[key], 3) for key in ("start_s", "end_s")}, confidence=round(span["confidence"], 4)
                )
        return result | {"audio_s": round(self.audio_s, 3), "confidence": round(self.confidence, 4)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Transcript":
        """Read `to_dict()` back. Fields of a newer server that this version does not know are left out.

        Raises:
            KeyError, TypeError: `fields` is not such a dictionary.
        """

        def spans(name: str) -> tuple[Span, ...]:
            return tuple(
                Span(span["text"], span["start_s"], span["end_s"], span["confidence"]) for span in fields.get(name, ())
            )

        known = {name: fields[name] for name in ("confidence", "audio_s", "is_final") if name in fields}
        return cls(text=fields["text"], tokens=spans("tokens"), words=spans("words"), **known)
