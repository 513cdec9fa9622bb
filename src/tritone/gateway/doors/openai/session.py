"""The configuration of a Realtime transcription session, as clients of the beta and of GA send and read it.

    {"type": "transcription", "audio": {"input": {"format": {...}, "turn_detection": {...}}}}      GA
    {"input_audio_format": "pcm16", "input_audio_transcription": {...}, "turn_detection": {...}}   beta

An update changes what it names and leaves the rest. What OpenAI has and this server has not is null in the answer, and
named in its `ignored`, where clients send it unasked; else it is refused.
docs/applications/gateway-parameters.md has the decision about each.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tritone.audio.g711 import SAMPLE_RATE as G711_RATE
from tritone.audio.g711 import decode_alaw, decode_mulaw
from tritone.audio.live import SampleStream
from tritone.gateway.doors.openai.errors import FieldError
from tritone.texts import TextOptions

Dialect = Literal["ga", "beta"]
Encoding = Literal["pcm", "mulaw", "alaw"]
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]

PCM_RATE = 24000  # Hz, OpenAI's only one
RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
LOGPROBS = "item.input_audio_transcription.logprobs"
OWN = ("search", "texts", "final_model", "final_search")  # what OpenAI's sessions do not have
MAX_KEYWORDS = 1000
MAX_TEXT = 10_000  # characters of a prompt or of all keywords

GA_ENCODINGS: Mapping[str, Encoding] = {"audio/pcm": "pcm", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}
BETA_ENCODINGS: Mapping[str, Encoding] = {"pcm16": "pcm", "g711_ulaw": "mulaw", "g711_alaw": "alaw"}


@dataclass(frozen=True, kw_only=True)
class TurnDetection:
    """When speech starts and stops (`server_vad`); defaults are OpenAI's."""

    threshold: float = 0.5  # probability of speech, 0 to 1
    prefix_padding_ms: int = 300  # audio before speech that belongs to it
    silence_duration_ms: int = 500  # silence that ends speech


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """What a session asks for. `search`, `texts`, `final_model` and `final_search` are extensions of ours."""

    encoding: Encoding = "pcm"
    rate: int = PCM_RATE  # Hz
    model: str = ""  # the gateway's own for streams if empty
    search: Mapping[str, Any] = field(default_factory=dict)  # parameters of the wire contract
    texts: TextOptions = field(default_factory=TextOptions)
    final_model: str = ""  # of the second pass; none if empty
    final_search: Mapping[str, Any] = field(default_factory=dict)
    language: str = ""
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    delay: Delay = "low"
    turn_detection: TurnDetection | None = TurnDetection()  # None: the client commits
    logprobs: bool = False
    ignored: frozenset[str] = frozenset()  # fields that have no influence here

    @property
    def bytes_per_sample(self) -> int:
        return 2 if self.encoding == "pcm" else 1

    def decoder(self) -> Callable[[bytes], npt.NDArray[np.int16]]:
        """What makes (samples,) int16 at `rate` of the audio of one `append` after the other."""
        if self.encoding == "pcm":
            return SampleStream("<i2").push
        return decode_mulaw if self.encoding == "mulaw" else decode_alaw

    def updated(self, session: object, dialect: Dialect) -> "SessionConfig":
        """The configuration after `session.update` or `transcription_session.update`.

        Raises:
            FieldError: a field is unknown, of another type, or asks for what this server does not have.
        """
        fields = _Fields(session, "session")
        return self._beta(fields) if dialect == "beta" else self._ga(fields)

    def _ga(self, fields: "_Fields") -> "SessionConfig":
        fields.only("type", "audio", "include", "id", "object", "expires_at")
        kind = fields.text("type", "transcription")
        if kind != "transcription":
            raise FieldError(
                "session.type", f"is {kind!r}; this server transcribes and answers nothing: 'transcription' is needed"
            )
        audio = fields.part("audio")
        audio.only("input")
        audio_input = audio.part("input")
        audio_input.only("format", "noise_reduction", "transcription", "turn_detection")
        changed = self._include(fields)._noise_reduction(audio_input, "noise_reduction")
        if audio_input.has("format"):
            changed = changed._format(audio_input.part("format"))
        return changed._transcription(audio_input, "transcription")._turns(audio_input)

    def _beta(self, fields: "_Fields") -> "SessionConfig":
        fields.only(
            *("input_audio_format", "input_audio_transcription", "turn_detection", "include", "modalities"),
            *("input_audio_noise_reduction", "client_secret", "id", "object", "expires_at"),
        )
        changed = self._include(fields)._noise_reduction(fields, "input_audio_noise_reduction")
        if fields.has("input_audio_format"):
            encoding = fields.one_of("input_audio_format", BETA_ENCODINGS)
            changed = replace(changed, encoding=encoding, rate=PCM_RATE if encoding == "pcm" else G711_RATE)
        return changed._transcription(fields, "input_audio_transcription")._turns(fields)

    def _noise_reduction(self, fields: "_Fields", name: str) -> "SessionConfig":
        if not fields.has(name):
            return self
        if not fields.is_null(name):
            part = fields.part(name)
            part.only("type")
            part.one_of("type", {each: each for each in ("near_field", "far_field")}, "near_field")
        return self._with_ignored("noise_reduction", is_given=not fields.is_null(name))

    def _with_ignored(self, name: str, *, is_given: bool) -> "SessionConfig":
        return replace(self, ignored=self.ignored | {name} if is_given else self.ignored - {name})

    def _include(self, fields: "_Fields") -> "SessionConfig":
        if not fields.has("include"):
            return self
        include = fields.texts("include")
        unknown = [each for each in include if each != LOGPROBS]
        if unknown:
            raise FieldError("session.include", f"has {unknown[0]!r}; '{LOGPROBS}' is all there is")
        return replace(self, logprobs=bool(include))

    def _format(self, fields: "_Fields") -> "SessionConfig":
        fields.only("type", "rate")
        encoding = fields.one_of("type", GA_ENCODINGS, "audio/pcm")
        if encoding != "pcm":
            return replace(self, encoding=encoding, rate=G711_RATE)
        rate = fields.number("rate", PCM_RATE)
        if rate not in RATES:
            raise FieldError(f"{fields.path}.rate", f"is {rate:g}; one of {', '.join(map(str, RATES))} Hz is needed")
        return replace(self, encoding="pcm", rate=int(rate))

    def _transcription(self, fields: "_Fields", name: str) -> "SessionConfig":
        if not fields.has(name):
            return self
        part = fields.part(name)
        part.only("model", "language", "languages", "prompt", "keywords", "delay", *OWN)
        languages = part.texts("languages")
        language = part.text("language", languages[0] if len(languages) == 1 else self.language)
        if len(languages) > 1:
            raise FieldError(f"{part.path}.languages", "has several; give one language, or none to have it detected")
        keywords = tuple(part.texts("keywords")) if part.has("keywords") else self.keywords
        delay: Delay = self.delay
        if part.has("delay"):
            known: tuple[Delay, ...] = ("minimal", "low", "medium", "high", "xhigh")
            delay = part.one_of("delay", {each: each for each in known})
        prompt = part.text("prompt", self.prompt)
        return replace(
            self._with_ignored("prompt", is_given=bool(prompt))._with_ignored("language", is_given=bool(language)),
            model=part.text("model", self.model),
            search=part.scalars("search") if part.has("search") else self.search,
            texts=TextOptions().changed(part.scalars("texts")) if part.has("texts") else self.texts,
            final_model=part.text("final_model", self.final_model),
            final_search=part.scalars("final_search") if part.has("final_search") else self.final_search,
            language=language,
            prompt=prompt,
            keywords=keywords,
            delay=delay,
        )

    def _turns(self, fields: "_Fields") -> "SessionConfig":
        if not fields.has("turn_detection"):
            return self
        if fields.is_null("turn_detection"):
            return replace(self, turn_detection=None)
        part = fields.part("turn_detection")
        part.only(
            *("type", "threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms"),
            *("create_response", "interrupt_response", "eagerness"),
        )
        kind = part.text("type", "server_vad")
        if kind not in ("server_vad", "semantic_vad"):
            raise FieldError(f"{part.path}.type", f"is {kind!r}; this server has 'server_vad', or null for none")
        changed = self._with_ignored("semantic_vad", is_given=kind == "semantic_vad")
        part.number("idle_timeout_ms", 0)
        part.text("eagerness", "")
        for name in ("idle_timeout_ms", "eagerness"):
            changed = changed._with_ignored(name, is_given=not part.is_null(name))
        before = self.turn_detection or TurnDetection()
        return replace(
            changed,
            turn_detection=TurnDetection(
                threshold=part.number("threshold", before.threshold, 0, 1),
                prefix_padding_ms=int(part.number("prefix_padding_ms", before.prefix_padding_ms, 0, 10_000)),
                silence_duration_ms=int(part.number("silence_duration_ms", before.silence_duration_ms, 20, 60_000)),
            ),
        )

    def to_dict(self, dialect: Dialect, session_id: str, *, has_vad: bool) -> dict[str, Any]:
        """The session as `session.updated` and `transcription_session.updated` tell it.

        Args:
            has_vad: whether the values of turn detection are used; without, they are null.
        """
        # The models for streams know one language and take no prompt; clients read these two as texts.
        transcription: dict[str, Any] = {"model": self.model or None, "language": self.language, "prompt": ""}
        turns = self.turn_detection
        ignored = set(self.ignored)
        if turns not in (None, TurnDetection()) and not has_vad:
            ignored.add("turn_detection")
        told = {"ignored": sorted(ignored)} if ignored else {}
        detection: dict[str, Any] | None = None
        if turns is not None:
            detection = {"type": "server_vad"}
            detection |= {name: value if has_vad else None for name, value in asdict(turns).items()}
        include = [LOGPROBS] if self.logprobs else None
        if dialect == "beta":
            name = next(name for name, encoding in BETA_ENCODINGS.items() if encoding == self.encoding)
            return {
                "id": session_id,
                "object": "realtime.transcription_session",
                "input_audio_format": name,
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": None,
                "turn_detection": detection,
                "include": include,
                **told,
            }
        audio_format: dict[str, Any] = {
            "type": next(name for name, encoding in GA_ENCODINGS.items() if encoding == self.encoding)
        }
        if self.encoding == "pcm":
            audio_format["rate"] = self.rate
        transcription |= {"keywords": list(self.keywords), "delay": self.delay, "final_model": self.final_model or None}
        return {
            "id": session_id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {
                "input": {
                    "format": audio_format,
                    "transcription": transcription,
                    "noise_reduction": None,
                    "turn_detection": detection,
                }
            },
            "include": include,
            **told,
        }


class _Fields:
    """A JSON object with checks whose errors name the path of the field."""

    def __init__(self, value: object, path: str) -> None:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise FieldError(path, f"must be an object, got {_shown(value)}")
        self._value: Mapping[str, Any] = value
        self.path = path

    def only(self, *known: str) -> None:
        for name in self._value:
            if name not in known:
                raise FieldError(f"{self.path}.{str(name)[:80]}", f"is unknown; known are {', '.join(known)}")

    def has(self, name: str) -> bool:
        return name in self._value

    def is_null(self, name: str) -> bool:
        return self._value.get(name) is None

    def part(self, name: str) -> "_Fields":
        return _Fields(self._value.get(name), f"{self.path}.{name}")

    def text(self, name: str, default: str) -> str:
        value = self._value.get(name)
        if value is None:
            return default
        return self._checked(name, value, "text", lambda each: isinstance(each, str) and len(each) <= MAX_TEXT)

    def texts(self, name: str) -> list[str]:
        def is_list(value: object) -> bool:
            if not isinstance(value, list) or len(value) > MAX_KEYWORDS:
                return False
            return all(isinstance(each, str) for each in value) and sum(map(len, value)) <= MAX_TEXT

        value = self._value.get(name)
        return [] if value is None else self._checked(name, value, "a list of texts", is_list)

    def scalars(self, name: str) -> dict[str, str | int | float | bool]:
        """An object of texts, numbers, true and false; null is an empty one."""
        found = self.part(name)._value
        for each, value in found.items():
            if not isinstance(value, str | int | float):
                raise FieldError(
                    f"{self.path}.{name}.{each[:80]}", f"must be text, a number, true or false, got {_shown(value)}"
                )
        return dict(found)

    def number(self, name: str, default: float, least: float = 0, most: float = 1e9) -> float:
        value = self._value.get(name)
        if value is None:
            return default
        return self._checked(
            name,
            value,
            f"a number from {least:g} to {most:g}",
            lambda each: isinstance(each, int | float) and not isinstance(each, bool) and least <= each <= most,
        )

    def one_of(self, name: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        value = self._value.get(name) if self._value.get(name) is not None else default
        self._checked(name, value, f"one of {', '.join(known)}", lambda each: isinstance(each, str) and each in known)
        return known[str(value)]

    def _checked(self, name: str, value: Any, wanted: str, is_good: Callable[[Any], bool]) -> Any:
        if not is_good(value):
            raise FieldError(f"{self.path}.{name}", f"must be {wanted}, got {_shown(value)}")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
