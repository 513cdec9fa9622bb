"""The configuration of a Realtime transcription session, as clients of the beta and of GA send and read it.

    {"type": "transcription", "audio": {"input": {"format": {...}, "turn_detection": {...}}}}      GA
    {"input_audio_format": "pcm16", "input_audio_transcription": {...}, "turn_detection": {...}}   beta

An update changes what it names and leaves the rest. What OpenAI has and this server has not is null in the answer, and
named in its `ignored`, where clients send it unasked; else it is refused.
docs/applications/gateway-parameters.md has the decision about each.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tritone.audio.g711 import SAMPLE_RATE as G711_RATE
from tritone.audio.g711 import decode_alaw, decode_mulaw
from tritone.audio.live import LiveAudio, PlainSamples
from tritone.gateway.refusal import FieldError
from tritone.texts import TextOptions

Dialect = Literal["ga", "beta"]
Encoding = Literal["pcm", "mulaw", "alaw"]
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
Eagerness = Literal["low", "medium", "high", "auto"]

PCM_RATE = 24000  # Hz, OpenAI's only one
LOGPROBS = "item.input_audio_transcription.logprobs"
MAX_KEYWORDS = 1000
MAX_TEXT = 10_000  # characters of a prompt or of all keywords

GA_ENCODINGS: Mapping[str, Encoding] = {"audio/pcm": "pcm", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}
BETA_ENCODINGS: Mapping[str, Encoding] = {"pcm16": "pcm", "g711_ulaw": "mulaw", "g711_alaw": "alaw"}
TURNS = ("threshold", "prefix_padding_ms", "silence_duration_ms")
SEMANTIC = frozenset(("semantic_vad", "eagerness"))  # is ignored where no classifier of ends of turns is served


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
    allowed_languages: tuple[str, ...] = ()
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    delay: Delay = "low"
    turn_detection: TurnDetection | None = TurnDetection()  # None: the client commits
    eagerness: Eagerness | None = None  # of semantic_vad; None: silence ends turns
    logprobs: bool = False
    ignored: frozenset[str] = frozenset()  # fields that have no influence here

    def audio(self) -> LiveAudio:
        """What reads the audio of one `append` after the other."""
        if self.encoding == "pcm":
            return PlainSamples("<i2", self.rate)
        return PlainSamples("u1", self.rate, decode_mulaw if self.encoding == "mulaw" else decode_alaw)

    def updated(self, session: object, dialect: Dialect) -> "SessionConfig":
        """The configuration after `session.update` or `transcription_session.update`.

        Raises:
            FieldError: a field is unknown, of another type, or asks for what this server does not have.
        """
        try:
            asked = (_Beta if dialect == "beta" else _Ga).model_validate({} if session is None else session)
        except ValidationError as error:
            raise _refused(error) from error
        changed = self
        if "include" in asked.model_fields_set:
            changed = replace(changed, logprobs=bool(asked.include))
        given = asked if isinstance(asked, _Beta) else (asked.audio or _Audio()).input or _Input()
        if "noise_reduction" in given.model_fields_set:
            changed = changed._with_ignored("noise_reduction", given.noise_reduction)
        if "format" in given.model_fields_set:
            form = _Format() if given.format is None else given.format
            name, rate = (form, None) if isinstance(form, str) else (form.type, form.rate)
            encoding = {**GA_ENCODINGS, **BETA_ENCODINGS}[name or "audio/pcm"]
            changed = replace(changed, encoding=encoding, rate=(rate or PCM_RATE) if encoding == "pcm" else G711_RATE)
        if "transcription" in given.model_fields_set:
            changed = changed._transcribing(given.transcription or _Transcription())
        if "turn_detection" in given.model_fields_set:
            changed = changed._turning(given.turn_detection)
        return changed

    def _with_ignored(self, name: str, given: object) -> "SessionConfig":
        return replace(self, ignored=self.ignored | {name} if given else self.ignored - {name})

    def _transcribing(self, asked: "_Transcription") -> "SessionConfig":
        language = self.language if asked.language is None else asked.language
        allowed: tuple[str, ...] = self.allowed_languages
        if asked.languages:
            language, allowed = (asked.languages[0], ()) if len(asked.languages) == 1 else ("", tuple(asked.languages))
        if asked.allowed_languages is not None:
            allowed = tuple(asked.allowed_languages)
        prompt = self.prompt if asked.prompt is None else asked.prompt
        changed = self._with_ignored("prompt", prompt)._with_ignored("language", language)
        # A text that is null stays as it was; a list or an object that is null is empty.
        names = {"model", "final_model", "delay"} & asked.model_fields_set
        new = {name: value for name in names if (value := getattr(asked, name)) is not None}
        new |= {name: getattr(asked, name) or {} for name in {"search", "final_search"} & asked.model_fields_set}
        if "texts" in asked.model_fields_set:
            new["texts"] = TextOptions().changed(asked.texts or {})
        if "keywords" in asked.model_fields_set:
            new["keywords"] = tuple(asked.keywords or ())
        return replace(changed, language=language, allowed_languages=allowed, prompt=prompt, **new)

    def _turning(self, asked: "_Turns | None") -> "SessionConfig":
        if asked is None:
            return replace(self, turn_detection=None, eagerness=None)
        semantic = asked.type == "semantic_vad"
        changed = replace(self, eagerness=(asked.eagerness or "auto") if semantic else None)
        changed = changed._with_ignored("semantic_vad", semantic)
        for name in ("idle_timeout_ms", "eagerness"):
            changed = changed._with_ignored(name, getattr(asked, name) is not None)
        sizes = {name: value for name in TURNS if (value := getattr(asked, name)) is not None}
        turns = replace(self.turn_detection or TurnDetection(), **sizes)
        return replace(changed, turn_detection=turns)

    def to_dict(
        self,
        dialect: Dialect,
        session_id: str,
        *,
        has_vad: bool,
        has_turns: bool = False,
        takes_language: bool = False,
    ) -> dict[str, Any]:
        """The session as `session.updated` and `transcription_session.updated` report it.

        Args:
            has_vad: whether the values of turn detection are used; without, they are null.
            has_turns: whether a classifier decides where turns end if semantic_vad is asked for.
            takes_language: whether the model takes the language.
        """
        # No model for streams takes a prompt; clients read these two as texts.
        transcription: dict[str, Any] = {"model": self.model or None, "language": self.language, "prompt": ""}
        turns = self.turn_detection
        semantic = has_turns and self.eagerness is not None
        ignored = set(self.ignored) - ({"language"} if takes_language else set()) - (SEMANTIC if semantic else set())
        if turns not in (None, TurnDetection()) and not has_vad and not semantic:
            ignored.add("turn_detection")
        problem = {"ignored": sorted(ignored)} if ignored else {}
        detection: dict[str, Any] | None = None
        if semantic:
            detection = {"type": "semantic_vad", "eagerness": self.eagerness}
        elif turns is not None:
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
                **problem,
            }
        audio_format: dict[str, Any] = {
            "type": next(name for name, encoding in GA_ENCODINGS.items() if encoding == self.encoding)
        }
        if self.encoding == "pcm":
            audio_format["rate"] = self.rate
        if self.allowed_languages:
            transcription["allowed_languages"] = list(self.allowed_languages)
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
            **problem,
        }


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be text, a number, true or false")
    return value


def _short(texts: list[str]) -> list[str]:
    if sum(map(len, texts)) > MAX_TEXT:
        raise ValueError(f"must have {MAX_TEXT} characters at most")
    return texts


Text = Annotated[str, Field(max_length=MAX_TEXT)]
Texts = Annotated[list[str], Field(max_length=MAX_KEYWORDS), AfterValidator(_short)]
Scalars = dict[str, Annotated[Any, AfterValidator(_scalar)]]


class _Part(BaseModel):
    """A part of a session; what is null is as if it were not there, where nothing else is given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Format(_Part):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] | None = None
    rate: Literal[8000, 16000, 22050, 24000, 32000, 44100, 48000] | None = None


class _NoiseReduction(_Part):
    type: Literal["near_field", "far_field"] | None = None


class _Transcription(_Part):
    model: Text | None = None
    language: Text | None = None
    languages: Texts | None = None
    allowed_languages: Texts | None = None
    prompt: Text | None = None
    keywords: Texts | None = None
    delay: Delay = "low"
    search: Scalars | None = None
    texts: Scalars | None = None
    final_model: Text | None = None
    final_search: Scalars | None = None


class _Turns(_Part):
    type: Literal["server_vad", "semantic_vad"] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    prefix_padding_ms: Annotated[float, Field(ge=0, le=10_000), AfterValidator(int)] | None = None
    silence_duration_ms: Annotated[float, Field(ge=20, le=60_000), AfterValidator(int)] | None = None
    idle_timeout_ms: Annotated[float, Field(ge=0, le=1e9)] | None = None
    create_response: Any = None
    interrupt_response: Any = None
    eagerness: Eagerness | None = None


class _Input(_Part):
    format: _Format | None = None
    noise_reduction: _NoiseReduction | None = None
    transcription: _Transcription | None = None
    turn_detection: _Turns | None = None


class _Audio(_Part):
    input: _Input | None = None


class _Session(_Part):
    include: list[Literal["item.input_audio_transcription.logprobs"]] | None = None
    id: Any = None
    object: Any = None
    expires_at: Any = None


class _Ga(_Session):
    type: Literal["transcription"] | None = None
    audio: _Audio | None = None


class _Beta(_Session):
    format: Literal["pcm16", "g711_ulaw", "g711_alaw"] = Field("pcm16", alias="input_audio_format")
    noise_reduction: _NoiseReduction | None = Field(None, alias="input_audio_noise_reduction")
    transcription: _Transcription | None = Field(None, alias="input_audio_transcription")
    turn_detection: _Turns | None = None
    modalities: Any = None
    client_secret: Any = None


def _refused(error: ValidationError) -> FieldError:
    """The first thing that is wrong."""
    first = error.errors()[0]
    path = ".".join(["session", *(str(each)[:80] for each in first["loc"])])
    if first["type"] == "extra_forbidden":
        return FieldError(path, "is unknown; docs/applications/gateway-parameters.md has what is known")
    problem = "must be an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    problem = problem.removeprefix("Value error, ").replace("Input should be", "must be")
    shown = repr(first["input"])
    return FieldError(path, f"{problem}, got {shown if len(shown) <= 80 else f'{shown[:77]}...'}")
