"""What a client asks of the models, whatever protocol it speaks; and what happens in a live stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tritone.client.models import ModelInfo
from tritone.client.parameters import request_parameters
from tritone.errors import InputError
from tritone.texts import TextOptions
from tritone.transcript import Transcript

AUTO = "auto"  # what models call it that find the language themselves
DETECTED = (AUTO, "multi")  # what clients call it: the latter are Deepgram's and Riva's
KEYWORD_WEIGHT = 5.0  # of a keyword as a hotword, in natural-log units, where a client gives none
EventKind = Literal["speech_started", "eager_end", "resumed", "speech_stopped", "partial", "final"]
Trigger = Literal["classifier", "silence", "client"]
Words = Literal["none", "wanted", "needed"]
SecondPassOutcome = Literal["done", "failed", "timeout", "too_long"]


@dataclass(frozen=True, kw_only=True)
class VadOptions:
    """How a served model for voice activity cuts a live stream into segments.

    `model`: "" is the gateway's. `parameters`: of the wire contract, such as {"threshold": 0.6, "min_silence_s": 0.5}.
    `prefix_s`: audio before the start of speech that is recognised with it.
    """

    model: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    prefix_s: float = 0.2


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """When a speaker has finished: after each pause a served classifier is asked, and either the turn ends or goes on.

    `model`: "" is the gateway's. `pause_s`: silence after which it is asked. `threshold`: probability from which the
    turn ends then. `eager_threshold`: one from which it is said that the turn may be ending; None: never.
    `max_silence_s`: silence that ends a turn whatever the classifier said.
    """

    model: str = ""
    pause_s: float = 0.2
    threshold: float = 0.5
    eager_threshold: float | None = None
    max_silence_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """Why a turn ends, or may be ending. `probability`: of the classifier when it was asked last, None if it never was.

    `trigger`: "classifier" at the pause after which it was asked, "silence" that was as long as it may be, or "client".
    """

    trigger: Trigger
    probability: float | None = None


@dataclass(frozen=True, kw_only=True)
class SpeakerOptions:
    """How words get speakers. `model`: for embeddings, "" is the only one; `num_speakers`: 0 finds how many."""

    model: str = ""
    num_speakers: int = 0
    max_speakers: int = 0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a client asks of the models.

    `model`: "" is the gateway's own for whole recordings, or for streams. `search`: request parameters of the wire
    contract; those that cannot travel are an `InputError`. `details`: all that a model has beside its text at no
    cost. `words`: words with times, if the model can ("wanted"), or else an error ("needed"); some models take longer
    for them. `texts`: how they are written. `each_channel`: recordings: each channel is a speaker of its own.
    `speech_only`: recordings: what a served model for voice activity takes for silence is left out. `vad`: for streams;
    None leaves segments to the recogniser's endpoint rules. `turns`: for streams; segments are then turns, whatever
    rules the recogniser has, and `vad` says where speech is. `final_model`: a model for whole recordings that writes
    the final text of each segment, with `final_search` as its request parameters; "" is none.
    """

    model: str = ""
    search: Mapping[str, Any] = field(default_factory=dict)
    details: bool = True
    words: Words = "none"
    texts: TextOptions = field(default_factory=TextOptions)
    speakers: SpeakerOptions | None = None
    each_channel: bool = False
    speech_only: bool = False
    vad: VadOptions | None = None
    turns: TurnOptions | None = None
    final_model: str = ""
    final_search: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            for each in (self.search, self.final_search, {} if self.vad is None else self.vad.parameters):
                request_parameters(each)
        except ValueError as error:
            raise InputError(str(error)) from error


def search_of(ask: Ask, info: ModelInfo) -> dict[str, Any]:
    """The request parameters for a model, which is asked for words with times where the client needs them, or speakers.

    Raises:
        InputError: they are needed, and the model has none.
    """
    if ask.words != "needed" and ask.speakers is None:
        return {**info.word_parameters("auto" if ask.words == "wanted" else False), **ask.search}
    if not info.has_words:
        raise InputError(
            f"model '{info.name}' gives no times of words, which words, utterances and speakers are made of; leave "
            "them out, or name another model"
        )
    return {**ask.search, **info.word_parameters(True)}


def language_parameters(
    info: ModelInfo, language: str, allowed: Sequence[str] = (), *, is_asked: bool = False
) -> dict[str, str]:
    """The request parameters that tell a model the language of its audio; none for models that take no language.

    Args:
        language: as protocols write it, such as de, de-DE or de_DE; "" leaves it to the model, `DETECTED` has it found
            out.
        allowed: the languages that it may be.
        is_asked: whether clients name a language only where they mean it. Those of other protocols always send one,
            and a model of one language ignores it.

    Raises:
        InputError: the model knows no such language, or takes none although it `is_asked`; or it is to detect it
            among several, and detects none.
    """
    if is_asked and language and not (info.languages or info.has_prompt):
        raise InputError(f"model '{info.name}' takes no language; leave it out")
    codes = tuple(dict.fromkeys(_named(each, info) for each in allowed if each))
    if language.lower() in DETECTED:
        if AUTO in info.languages:
            return {"language": AUTO}
        if info.languages and not info.finds_language:
            raise InputError(f"model '{info.name}' does not detect languages; name one of {_known(info)}")
        language = ""
    found = {"language": _named(language, info)} if language and (info.has_prompt or info.languages) else {}
    if info.finds_language and codes:
        found["allowed_languages"] = ",".join(codes)
    elif codes and not (info.languages and len(codes) == 1):
        raise InputError(
            f"model '{info.name}' does not detect languages, so that none can be allowed (allowed_languages); Whisper "
            "models do"
        )
    elif codes:
        found.setdefault("language", codes[0])
    return found


def favoured(info: ModelInfo, words: Mapping[str, float]) -> dict[str, Any]:
    """The request parameters by which a model favours words: its prompt, or hotwords with these weights."""
    if not words:
        return {}
    return {"prompt": ", ".join(words)} if info.has_prompt else {"hotwords": dict(words)}


def _named(language: str, info: ModelInfo) -> str:
    """A language as the model calls it: itself, or the first of the same language without the country."""
    wanted = language.replace("_", "-").lower()
    plain = wanted.partition("-")[0]
    same = [each for each in info.languages if each.lower() == wanted]
    same += [each for each in info.languages if each.partition("-")[0].lower() == plain]
    if info.languages and not same:
        raise InputError(f"model '{info.name}' knows no language {language[:80]!r}; it knows {_known(info)}")
    return same[0] if same else plain if info.has_prompt else language


def _known(info: ModelInfo) -> str:
    return ", ".join(each for each in info.languages if each != AUTO)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a live stream.

    `segment`: its number from 0. `time_s`: where in the audio of the stream, in seconds; of a partial text how much was
    heard, of a final one the end of its segment. `transcript`: of the segment, for texts; times count from the start of
    the stream. `second_pass`: of a final text where two passes were asked for; all but "done" say that the text is that
    of the first pass, because the second failed, took too long, or is not made of so long a segment. "" otherwise.
    `turn`: where a classifier decides on turns, of `eager_end` and `final`. `eager_end` has the text so far; `resumed`
    comes after it when the speaker goes on.
    """

    kind: EventKind
    segment: int
    time_s: float
    transcript: Transcript | None = None
    second_pass: SecondPassOutcome | Literal[""] = ""
    turn: TurnEnd | None = None
