"""The form of `/v1/audio/transcriptions`  ->  what is asked of the models, and in which shape it is answered.

Fields are read as OpenAI's client packages send them: lists as `name[]`, objects as `name[key]`. What clients send
unasked and nothing here does is ignored, and the answer's headers say so; what somebody chose is refused instead.
docs/applications/gateway-parameters.md has the decision about each.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.ask import KEYWORD_WEIGHT, Ask, SpeakerOptions, Words, language_parameters, search_of
from tritone.gateway.refusal import FieldError
from tritone.texts import TextOptions

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
FORMATS: tuple[ResponseFormat, ...] = ("json", "text", "srt", "vtt", "verbose_json", "diarized_json")
STREAMED: tuple[ResponseFormat, ...] = ("json", "text", "diarized_json")
MAX_TEXT = 10_000  # characters of a field
NOTICE = "x-tritone-ignored"

LISTS = (
    "allowed_languages",
    "timestamp_granularities",
    "include",
    "keywords",
    "languages",
    "known_speaker_names",
    "known_speaker_references",
)
OBJECTS = ("chunking_strategy", "search", "speakers", "texts")
TEXTS = (
    "model",
    "language",
    "prompt",
    "response_format",
    "temperature",
    "stream",
    "chunking_strategy",
    "vad_filter",
    "channels",
)
SWITCH = ("true", "false", "True", "False", "1", "0")
OF_VAD = {"threshold": 1.0, "prefix_padding_ms": 1e9, "silence_duration_ms": 1e9}  # of `server_vad`, and the most


@dataclass(frozen=True, kw_only=True)
class TranscriptionRequest:
    """A request. `search`, parameters of the wire contract, `texts`, `num_speakers` and `each_channel` are ours."""

    model: str = ""
    language: str = ""
    allowed_languages: tuple[str, ...] = ()
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    temperature: float | None = None
    response_format: ResponseFormat = "json"
    stream: bool = False
    words: bool = False
    segments: bool = False
    logprobs: bool = False
    speaker_model: str = ""
    num_speakers: int = 0  # 0: as many as there are
    each_channel: bool = False  # is a speaker of its own
    vad_filter: bool = False
    search: Mapping[str, str] = field(default_factory=dict)
    texts: TextOptions = field(default_factory=TextOptions)
    ignored: Mapping[str, str] = field(default_factory=dict)  # fields, and why

    @classmethod
    def read(cls, fields: Iterable[tuple[str, str]]) -> "TranscriptionRequest":
        """Read the fields of a form, without the file.

        Raises:
            InputError: a field is unknown, comes twice, or has a value that cannot be used.
        """
        form = _Form(fields)
        response_format = form.one_of("response_format", FORMATS, "json")
        granularities = form.several("timestamp_granularities", ("word", "segment"))
        ignored: dict[str, str] = {}
        if granularities and response_format != "verbose_json":
            ignored["timestamp_granularities"] = "times are in verbose_json alone"
        logprobs = bool(form.several("include", ("logprobs",)))
        if logprobs and response_format != "json":
            raise FieldError("include", "logprobs goes with response_format json alone")
        stream = form.one_of("stream", SWITCH, "false").lower() in ("true", "1")
        if stream and response_format not in STREAMED:
            raise FieldError("stream", f"goes with response_format {', '.join(STREAMED)}, not {response_format}")
        form.refuse("known_speaker_names", "known_speaker_references")
        strategy = form.objects.get("chunking_strategy", {})
        kind = form.texts.get("chunking_strategy") or strategy.get("type", "auto")
        if kind not in ("auto", "server_vad") or set(strategy) - {"type", *OF_VAD}:
            raise FieldError("chunking_strategy", "must be 'auto' or server_vad with its three values")
        for name, most in OF_VAD.items():
            _number(f"chunking_strategy[{name}]", strategy.get(name, ""), most)
        if kind == "server_vad":
            ignored["chunking_strategy"] = "only what is longer than the model takes is cut, by the gateway's own rules"
        languages = form.lists.get("languages", [])
        allowed = [code for each in form.lists.get("allowed_languages", []) for code in each.split(",")]
        allowed += languages if len(languages) > 1 else []
        speakers = form.objects.get("speakers", {})
        if set(speakers) - {"model", "num_speakers"} or (speakers and response_format != "diarized_json"):
            raise FieldError("speakers", "has model and num_speakers, and goes with response_format diarized_json")
        each_channel = form.one_of("channels", ("mixed", "each"), "mixed") == "each"
        if each_channel and (speakers or logprobs):
            raise FieldError("channels", "each makes every channel a speaker; leave speakers and logprobs out")
        return cls(
            model=form.texts.get("model", ""),
            language=form.texts.get("language") or (languages[0] if len(languages) == 1 else ""),
            allowed_languages=tuple(each.strip() for each in allowed if each.strip()),
            prompt=form.texts.get("prompt", ""),
            keywords=tuple(form.lists.get("keywords", ())),
            temperature=_number("temperature", form.texts.get("temperature", ""), 1.0),
            ignored=ignored,
            response_format=response_format,
            stream=stream,
            words="word" in granularities,
            segments="segment" in granularities or not granularities,
            logprobs=logprobs,
            speaker_model=speakers.get("model", ""),
            num_speakers=_whole("speakers[num_speakers]", speakers.get("num_speakers", "0")),
            each_channel=each_channel,
            vad_filter=form.one_of("vad_filter", SWITCH, "false").lower() in ("true", "1"),
            search=form.objects.get("search", {}),
            texts=TextOptions().changed(form.objects.get("texts", {})),
        )

    def ask(self, info: ModelInfo, *, translate: bool = False, has_vad: bool = False) -> Ask:
        """What is asked of a model; `has_vad`: whether one for voice activity is served beside it.

        Raises:
            FieldError: the model has no meaning for a field.
        """
        try:
            search: dict[str, Any] = {**language_parameters(info, self.language, self.allowed_languages)}
        except InputError as error:
            raise FieldError("allowed_languages" if self.allowed_languages else "language", str(error)) from error
        if translate:
            if not info.translates:
                why = f"'{info.name}' does not translate; Whisper models of several languages and Canary do"
                raise FieldError("model", why)
            search["task"] = "translate"
        if info.has_prompt:
            prompt = ", ".join([*([self.prompt] if self.prompt else []), *self.keywords])
            given = {"prompt": prompt, "temperature": self.temperature}
            search |= {name: value for name, value in given.items() if value not in ("", None, 0)}
        else:
            search |= hotwords(self.keywords)
        words: Words = "wanted" if self.response_format in ("srt", "vtt") or self.each_channel else "none"
        ask = Ask(
            model=info.name,
            search=search | dict(self.search),
            texts=self.texts,
            details=self.response_format != "text",  # which have the length of the audio, too
            words="needed" if self.words and self.response_format == "verbose_json" else words,
            speakers=SpeakerOptions(model=self.speaker_model, num_speakers=self.num_speakers)
            if self.response_format == "diarized_json" and not self.each_channel
            else None,
            each_channel=self.each_channel,
            speech_only=self.vad_filter and has_vad,
        )
        try:
            search_of(ask, info)
        except InputError as error:
            raise FieldError("response_format" if ask.speakers else "timestamp_granularities", str(error)) from error
        return ask

    def notices(self, info: ModelInfo, *, has_vad: bool = False) -> dict[str, str]:
        """Headers that name what had no influence on a model's answer, and say why; none if all had."""
        ignored = dict(self.ignored)
        if self.vad_filter and not has_vad:
            ignored["vad_filter"] = "no model for voice activity is served here"
        if self.response_format in ("srt", "vtt") and not info.has_words:
            ignored["times of words"] = "the model gives none, cues share the time of their segment by their lengths"
        if not info.has_prompt:
            if self.prompt:
                advice = ", keywords[] favours words" if info.has_search and not info.decodes else ""
                ignored["prompt"] = f"the model takes none{advice}"
            if self.temperature:
                ignored["temperature"] = "the model samples nothing"
            if self.language and not info.languages:
                ignored["language"] = "the model writes its own"
        return {NOTICE: "; ".join(f"{name}: {why}" for name, why in ignored.items())} if ignored else {}


def hotwords(keywords: Iterable[str]) -> dict[str, Any]:
    """Keywords as the search parameter that has them."""
    weights = {each: KEYWORD_WEIGHT for each in keywords}
    return {"hotwords": json.dumps(weights, ensure_ascii=False)} if weights else {}


class _Form:
    """The fields of a form by their names: texts, lists (`name[]`) and objects (`name[key]`)."""

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self.texts: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {}
        self.objects: dict[str, dict[str, str]] = {}
        for whole, value in fields:
            name, bracket, key = whole.partition("[")
            key = key.removesuffix("]")
            if len(value) > MAX_TEXT:
                raise FieldError(whole[:80], f"has {len(value)} characters, {MAX_TEXT} is the most")
            if name in LISTS and not key:
                self.lists.setdefault(name, []).append(value)
                continue
            here = self.objects.setdefault(name, {}) if name in OBJECTS and key else self.texts
            if here is self.texts and (bracket or name not in TEXTS):
                known = ", ".join(sorted({*TEXTS, *LISTS, *OBJECTS, "file"}))
                raise FieldError(whole[:80], f"is unknown; known are {known}")
            at = key or name
            if at in here:
                raise FieldError(whole[:80], "is given twice")
            here[at] = value

    def one_of(self, name: str, known: tuple[Any, ...], default: str) -> Any:
        value = self.texts.get(name) or default
        if value not in known:
            raise FieldError(name, f"must be one of {', '.join(known)}, got {value[:80]!r}")
        return value

    def several(self, name: str, known: tuple[str, ...]) -> list[str]:
        values = self.lists.get(name, [])
        for value in values:
            if value not in known:
                raise FieldError(name, f"must be one of {', '.join(known)}, got {value[:80]!r}")
        return values

    def refuse(self, *names: str) -> None:
        for name in names:
            if self.lists.get(name):
                raise FieldError(name, "is not possible here; leave it out")


def _number(name: str, text: str, most: float) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = -1.0
    if value is not None and not 0 <= value <= most:
        raise FieldError(name, f"must be a number from 0 to {most:g}, got {text[:80]!r}")
    return value


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise FieldError(name, f"must be a whole number, got {text[:80]!r}")
    return int(text)
