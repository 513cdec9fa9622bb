"""The parameters of `/v1/listen`, which stand in the address  ->  what is asked of the models.

What changes nothing that a client would miss is ignored, such as mip_opt_out and a version; what somebody
relies on and nothing here does, such as `redact`, is refused, and so is what is no parameter.
docs/applications/gateway-deepgram.md has the decision about each.

Source: the parameters and types of deepgram-sdk 7.17.0.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.announced_audio import ALAW, FLAC, MULAW, OGG_OPUS, PCM, AudioFormat, Encoding
from tritone.gateway.ask import (
    KEYWORD_WEIGHT,
    Ask,
    SpeakerOptions,
    TurnOptions,
    VadOptions,
    favoured,
    language_parameters,
)
from tritone.texts import TextOptions
from tritone.texts.options import LANGUAGES

PROTOCOL = "deepgram"
CLOSE = '{"type": "CloseStream"}'  # what a message without bytes stands for
ENCODINGS: Mapping[str, Encoding] = {
    "": "",
    "linear16": PCM,
    "mulaw": MULAW,
    "alaw": ALAW,
    "flac": FLAC,
    "opus": OGG_OPUS,
    "ogg-opus": OGG_OPUS,
}
REFUSED = {
    "callback": "answers go to who asks; send the request from where the answer is wanted",
    "redact": "nothing is redacted here",
    "replace": "nothing is replaced here",
    "search": "no phrases are looked for here; keyterm favours words",
    "detect_entities": "no entities are found here",
    "summarize": "nothing is summarized here",
    "sentiment": "no sentiments are found here",
    "topics": "no topics are found here",
    "custom_topic": "no topics are found here",
    "intents": "no intents are found here",
    "custom_intent": "no intents are found here",
    "dictation": "spoken marks are not written as marks here",
    "measurements": "names of units are not shortened here",
    "ner": "no entities are found here",
    "alternatives": "one transcript is written here",
}
IGNORED = (
    *("mip_opt_out", "version", "tier", "diarize_version", "no_delay", "filler_words"),
    *("callback_method", "custom_topic_mode", "custom_intent_mode"),  # of what is refused
)
OFF = ("", "false")
MAX_MS = 60_000
MOST_SILENCE_MS = 500  # in a segment, where a client names a silence that ends utterances, and none that ends segments
MAX_KEYWORDS = 1000
ANY_LANGUAGE = "multi"


@dataclass(frozen=True, kw_only=True)
class ListenRequest:
    """What a client asks for. `endpointing_ms` and `utterance_end_ms`: 0 where it leaves them to the model.

    `favoured`: keywords and their weights, in natural-log units.
    """

    model: str = ""
    language: str = ""
    hints: tuple[str, ...] = ()  # languages that it may be, where none is named
    audio: AudioFormat = field(default_factory=AudioFormat)
    punctuate: bool = False
    smart_format: bool = False
    numerals: bool = False
    profanity_filter: bool = False
    diarize: bool = False
    favoured: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    utterances: bool = False
    utt_split_s: float = 0.8
    paragraphs: bool = False
    detect_language: bool = False
    multichannel: bool = False  # each channel has a transcript of its own
    interim_results: bool = False
    vad_events: bool = False
    endpointing_ms: int = 0
    utterance_end_ms: int = 0

    @classmethod
    def read(cls, items: Iterable[tuple[str, str]], also: Collection[str] = ()) -> "ListenRequest":
        """Read the parameters of an address.

        Args:
            also: names of parameters that somebody else reads.

        Raises:
            InputError: a name is unknown, a value cannot be used, or nothing here does what is asked for.
        """
        query = Query(items)
        given = query.given
        if unknown := sorted(given.keys() - {*READ, *SWITCHES, *REFUSED, *IGNORED, *also}):
            known = ", ".join(sorted({*READ[1:], *SWITCHES, *also}))
            raise InputError(f"{unknown[0][:80]!r} is no parameter of this address, which has {known}")
        for name, why in REFUSED.items():
            if any(value.lower() not in OFF for value in given.get(name, ())):
                raise InputError(f"{name}: {why}")
        if query.switch("multichannel") and (query.switch("diarize") or query.text("diarize_model") not in OFF):
            raise InputError("diarize: with multichannel each channel is a speaker; leave one of them out")
        encoding = query.text("encoding").lower()
        if encoding not in ENCODINGS:
            raise InputError(f"encoding must be one of {', '.join(filter(None, ENCODINGS))}, got {encoding[:80]!r}")
        audio = AudioFormat(
            encoding=ENCODINGS[encoding],
            sample_rate=query.whole("sample_rate", 0, 10**9),
            channels=query.whole("channels", 0, 1000),
            fields=("sample_rate", "channels"),
        )
        detected = [each for each in given.get("detect_language", ()) if each.lower() not in (*OFF, "true")]
        pairs = (each.partition(":") for each in given.get("extra", ()))
        return cls(
            model=query.text("model"),
            language=query.text("language"),
            hints=(*given.get("language_hint", ()), *detected),
            detect_language=bool(detected) or query.switch("detect_language"),
            audio=audio,
            diarize=query.switch("diarize") or query.text("diarize_model") not in OFF,
            favoured=_favoured(given),
            tags=tuple(given.get("tag", ())),
            extra={name: value for name, _, value in pairs},
            utt_split_s=query.number("utt_split", 0.8, 60.0),
            endpointing_ms=query.milliseconds("endpointing"),
            utterance_end_ms=query.milliseconds("utterance_end_ms"),
            **{name: query.switch(name) for name in SWITCHES},
        )

    def ask(self, info: ModelInfo, *, has_vad: bool = False, turns: TurnOptions | None = None) -> Ask:
        """What is asked of a model.

        Args:
            has_vad: whether a served model may find speech in a stream.
            turns: how turns of a stream end where the client names no silence that ends them.
        """
        language = self.language or (ANY_LANGUAGE if self.detect_language else "")
        hints = self.hints if info.finds_language and language in ("", ANY_LANGUAGE) else ()
        search: dict[str, Any] = {**language_parameters(info, language, hints), **favoured(info, self.favoured)}
        plain = language.partition("-")[0].lower()
        vad, ends_ms = None, self.endpointing_ms
        if not ends_ms and turns is None:
            ends_ms = min(self.utterance_end_ms, MOST_SILENCE_MS)
        if has_vad and ends_ms:
            vad = VadOptions(parameters={"min_silence_s": ends_ms / 1000})
        return Ask(
            model=info.name,
            search=search,
            words="wanted",
            texts=TextOptions(
                numbers=self.numerals or self.smart_format,
                text_language=plain if plain in LANGUAGES else "",
                punctuate=self.punctuate or self.smart_format,
                profanity="mask" if self.profanity_filter else "keep",
            ),
            speakers=SpeakerOptions() if self.diarize else None,
            vad=vad,
            turns=None if self.endpointing_ms else turns,
        )


READ = (
    *("key", "model", "language", "language_hint", "detect_language", "encoding", "sample_rate", "channels"),
    *("diarize", "diarize_model", "keyterm", "keywords", "tag", "extra", "utt_split", "endpointing"),
    "utterance_end_ms",
)
"""Beside the switches; the first is the gateway's own, for browsers."""
SWITCHES = (
    *("punctuate", "smart_format", "numerals", "profanity_filter", "utterances", "paragraphs", "interim_results"),
    *("vad_events", "multichannel"),
)


def _favoured(given: Mapping[str, list[str]]) -> Mapping[str, float]:
    """The words of `keyterm`, and of `keywords`, which may have a weight: `snuffleupagus:1.5`."""
    found = {term: KEYWORD_WEIGHT for term in given.get("keyterm", ()) if term.strip()}
    for each in given.get("keywords", ()):
        word, colon, weight = each.rpartition(":")
        try:
            number = float(weight) if colon else 1.0
        except ValueError:
            number = math.nan
        if not math.isfinite(KEYWORD_WEIGHT * number):
            raise InputError(f"keywords: {each[:80]!r} should be a word, or a word, a colon and a number")
        found[word if colon else each] = KEYWORD_WEIGHT * number
    if len(found) > MAX_KEYWORDS:
        raise InputError(f"keyterm and keywords have {len(found)} words together, {MAX_KEYWORDS} is the most")
    return found


class Query:
    """The parameters of an address: reads single values, the last of each name."""

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        self.given: dict[str, list[str]] = {}
        for name, value in items:
            self.given.setdefault(name, []).append(value)

    def text(self, name: str) -> str:
        return self.given.get(name, [""])[-1]

    def switch(self, name: str) -> bool:
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise InputError(f"{name} must be true or false, got {value[:80]!r}")
        return value == "true"

    def whole(self, name: str, default: int, most: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= most):
            raise InputError(f"{name} must be a whole number up to {most}, got {text[:80]!r}")
        return int(text)

    def number(self, name: str, default: float, most: float) -> float:
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise InputError(f"{name} must be a number from 0 to {most:g}, got {text[:80]!r}")
        return value

    def milliseconds(self, name: str) -> int:
        """0 for `false` and `true`, too, which name no time."""
        return 0 if self.text(name).lower() in ("false", "true") else self.whole(name, 0, MAX_MS)
