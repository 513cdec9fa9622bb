"""How a recording is transcribed by a Whisper model or another encoder-decoder: what a request may ask for.

    {"language": "de", "beam": "5", "temperature": "0,0.4"}  ->  DecodingOptions

Each option is described where its field is. Defaults are those of openai/whisper's `transcribe`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.kinds.whisper.part import WhisperPart
from tritone.options.fields import check_bounds, described, option, parse_parameters, read_number, read_switch

Policy = Literal["alignatt", "agreement"]  # see `settling.py`
Task = Literal["transcribe", "translate", "identify"]
WordTimes = bool | Literal["auto"]
Fallback = Literal["likeliest", "last"]
MAX_BEAM = 16  # of a request: the work grows with it, and other requests wait for it
MAX_TEMPERATURES = 8
MAX_TEMPERATURE = 2.0
MAX_PROMPT = 10_000  # characters; a model reads some 220 tokens of them
MAX_SUPPRESSED = 1000
MAX_CODE = 8  # characters of a language's code
MAX_LANGUAGES = 200
ENGLISH = "en"
LEAST_TEMPERATURE = 1e-6
FALLBACK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def special_of(bundle: Bundle) -> WhisperPart | EncoderDecoderPart | None:
    """What the manifest says of a decoder that attends to audio; None if the model has none."""
    return bundle.manifest.find(WhisperPart) or bundle.manifest.find(EncoderDecoderPart)


def _read_temperatures(value: Any) -> tuple[float, ...]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return tuple(read_number(part) for part in parts)


def _divisible(temperature: float) -> float:
    """0 for what is nearly so: logits divided by it would be infinite, and the device counts in millionths."""
    return 0.0 if temperature < LEAST_TEMPERATURE else temperature


def _read_limit(value: Any) -> float | None:
    return None if value in (None, "none") else read_number(value)


def _read_word_times(value: Any) -> WordTimes:
    return "auto" if value == "auto" else read_switch(value)


def _read_text(most: int, value: Any) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"expected text of at most {most} characters, got {str(value)[:80]!r}")
    return value


def _read_codes(value: Any) -> tuple[str, ...]:
    parts = value.split(",", MAX_LANGUAGES) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"expected codes of languages like de,fr, got {str(value)[:80]!r}")
    codes = tuple(dict.fromkeys(code for part in parts if (code := part.strip())))
    if wrong := [code for code in codes if len(code) > MAX_CODE]:
        raise ValueError(f"expected codes of languages like de,fr, got {wrong[0][:80]!r}")
    return codes


def _read_ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"expected ids of tokens like 5,27, got {str(value)[:80]!r}")
    try:
        return tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"expected ids of tokens like 5,27, got {value[:80]!r}") from None


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How to transcribe in one request; see the help of the fields."""

    language: str = option(
        "",
        "Code of the language, such as de; detected in the first window if not given.",
        read=partial(_read_text, MAX_CODE),
        values="a code such as `de`, or empty",
    )
    allowed_languages: tuple[str, ...] = option(
        (),
        "Whisper: codes of the languages that may be detected, like de,fr; all of the model's if not given.",
        metavar="CODES",
        read=_read_codes,
        values="codes with commas between, or empty",
    )
    multilingual: bool = option(
        False, "Whisper: detect the language of each window, or segment of a stream, not of the first one alone."
    )
    task: Task = option(
        "transcribe",
        "Whisper: transcribe, translate into English, or identify: find the language and write no text.",
    )
    target_language: str = option(
        "",
        "Canary: code of the language of the text, if it is not that of the audio.",
        read=partial(_read_text, 8),
        values="a code such as `en`, or empty",
    )
    punctuation: bool = option(
        True,
        "Canary: write punctuation and capitals.",
        flags=("--write-punctuation/--no-write-punctuation",),  # scores have a --punctuation that means something else
    )
    timestamps: bool = option(
        True,
        "Whisper: have the model write times, which cut the text into segments.",
        flags=("--segment-times/--no-segment-times",),
    )
    word_times: WordTimes = option(
        False,
        "Whisper: add words with their times to the details; on a CPU another call a window.",
        flags=("--word-times/--no-word-times",),
        read=_read_word_times,
        values="true, false or auto, which is if the model can tell them",
    )
    beam: int = option(1, "Texts that are followed together where the temperature is 0.", least=1, most=MAX_BEAM)
    length_penalty: float = option(
        1.0, "Whisper: exponent of the length that scores of a beam are divided by.", least=0, most=10
    )
    temperature: tuple[float, ...] = option(
        FALLBACK,
        "Whisper: temperatures to try one after the other, while a window's text is too repetitive or unlikely, like "
        "0,0.4; 0 takes the likeliest token.",
        flags=("--temperatures",),
        metavar="LIST",
        read=_read_temperatures,
        values=f"numbers from 0 to {MAX_TEMPERATURE:g} with commas between, at most {MAX_TEMPERATURES}",
    )
    fallback: Fallback = option(
        "likeliest",
        "Whisper: which text a window gets when none is good enough: likeliest, of those that are not too repetitive "
        "if there are any, as faster-whisper has it; or last, of the last temperature, as openai/whisper has it.",
    )
    best_of: int = option(1, "Whisper: texts to sample at a temperature above 0.", least=1, most=MAX_BEAM)
    seed: int = option(
        0, "Whisper: seed of sampling; the same audio, options and seed give the same text.", least=0, most=2**63
    )
    prompt: str = option(
        "",
        "Whisper: text that the first window is read after, such as names that may come.",
        metavar="TEXT",
        read=partial(_read_text, MAX_PROMPT),
        values=f"text of at most {MAX_PROMPT} characters",
    )
    carry_prompt: bool = option(False, "Whisper: put the prompt before every window.")
    previous_text: bool = option(True, "Whisper: put the text of earlier windows before a window.")
    compression_ratio_threshold: float | None = option(
        2.4,
        "Whisper: text that zlib compresses by more is too repetitive; none: any will do.",
        read=_read_limit,
        values="a number, or `none`",
    )
    log_prob_threshold: float | None = option(
        -1.0,
        "Whisper: text with a lower mean log-probability of tokens is too unlikely; none: any will do.",
        read=_read_limit,
        values="a number, or `none`",
    )
    no_speech_threshold: float | None = option(
        0.6,
        "Whisper: a window whose probability of silence is higher has no text, if its text is unlikely; none: it has.",
        read=_read_limit,
        values="a number, or `none`",
    )
    max_tokens: int = option(
        0, "Whisper: most tokens of a window; 0: half of the model's context.", least=0, most=2**16
    )
    policy: Policy = option(
        "alignatt",
        "Whisper, streams: when a word is final: alignatt, as soon as it attends to audio well before the end; "
        "agreement, when two texts after each other begin with it.",
    )
    partial_s: float = option(
        1.0,
        "Whisper, streams: audio from one partial text to the next, in seconds.",
        least=0.2,
        most=10,
        unit=" seconds",
    )
    pause_s: float = option(
        1.0,
        "Whisper, streams: silence after speech that ends a segment, in seconds.",
        least=0.2,
        most=10,
        unit=" seconds",
    )
    suppress: tuple[int, ...] | None = option(
        None,
        "Whisper: ids of tokens never to write, in place of the model's own.",
        metavar="IDS",
        read=_read_ids,
        values="ids with commas between, or empty for none",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not 1 <= len(self.temperature) <= MAX_TEMPERATURES or not all(
            0 <= each <= MAX_TEMPERATURE for each in self.temperature
        ):
            raise InputError(
                f"temperature must be 1 to {MAX_TEMPERATURES} numbers from 0 to {MAX_TEMPERATURE:g}, got "
                f"{', '.join(f'{each:g}' for each in self.temperature) or 'none'}"
            )
        object.__setattr__(self, "temperature", tuple(map(_divisible, self.temperature)))
        for name in ("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold"):
            if (value := getattr(self, name)) is not None and not math.isfinite(value):
                raise InputError(f"{name} must be a finite number or none, got {value}")
        if self.task not in get_args(Task):
            raise InputError(f"task must be {', '.join(get_args(Task))}, got {self.task!r}")
        if len(self.allowed_languages) > MAX_LANGUAGES:
            raise InputError(
                f"allowed_languages has {len(self.allowed_languages)} codes, at most {MAX_LANGUAGES} are read"
            )
        if self.language and self.allowed_languages and self.language not in self.allowed_languages:
            raise InputError(
                f"language is {self.language!r}, and allowed_languages {', '.join(self.allowed_languages)}; leave one "
                "of them out"
            )
        if self.language and (self.multilingual or self.task == "identify"):
            what = "multilingual" if self.multilingual else "task identify"
            raise InputError(f"language is {self.language!r}, and {what} has it detected; leave one of them out")
        if self.policy not in get_args(Policy):
            raise InputError(f"policy must be {' or '.join(get_args(Policy))}, got {self.policy!r}")
        if self.suppress is not None and len(self.suppress) > MAX_SUPPRESSED:
            raise InputError(f"suppress has {len(self.suppress)} ids, at most {MAX_SUPPRESSED} are read")

    def changed(self, parameters: Mapping[str, Any]) -> "DecodingOptions":
        """These options with some of them replaced, as a request's parameters ask for; numbers may be text.

        Who has the language detected needs not leave out the one that was usual, nor the other way round.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        asked = parse_parameters(described(DecodingOptions), parameters)
        if asked.get("allowed_languages") or asked.get("multilingual") or asked.get("task") == "identify":
            asked.setdefault("language", "")
        if asked.get("language"):
            asked.setdefault("multilingual", False)
        return replace(self, **asked)


def check_options(
    options: DecodingOptions, special: WhisperPart | EncoderDecoderPart, num_tokens: int
) -> DecodingOptions:
    """The same options, after making sure that a model with `num_tokens` tokens has what they ask for.

    Raises:
        InputError: it has not; says what it has.
    """
    if wrong := [id for id in options.suppress or () if not 0 <= id < num_tokens]:
        raise InputError(f"suppress has id {wrong[0]}; ids of this model are 0 to {num_tokens - 1}")
    if isinstance(special, EncoderDecoderPart):
        return _check_encoder_decoder(options, special)
    for name in OF_ENCODER_DECODERS:
        if getattr(options, name) != getattr(DecodingOptions, name):
            raise InputError(f"a Whisper model has no choice of {name}; leave it out")
    languages = special.languages
    asked = {"language": [options.language] if options.language else [], "allowed_languages": options.allowed_languages}
    for name, codes in asked.items():
        if languages and (unknown := [code for code in codes if code not in languages]):
            raise InputError(
                f"{name} is {', '.join(unknown)!r}; this model knows {', '.join(languages)}, or leave it out to have "
                "it detected"
            )
        if not languages and {*codes} - {ENGLISH}:
            raise InputError(f"this model transcribes English alone; leave out {name}")
    if not languages and (options.task != "transcribe" or options.multilingual):
        raise InputError("this model transcribes English alone; leave out task and multilingual")
    if options.word_times is True and not special.alignment_heads:
        raise InputError(
            "this model cannot tell the times of words: its bundle does not say which heads follow the audio "
            "(alignment_heads)"
        )
    if options.prompt and special.sot_prev is None:
        raise InputError("this model has no token that stands before a prompt; leave the prompt out")
    if options.max_tokens > special.text_context // 2:
        raise InputError(
            f"max_tokens is {options.max_tokens}, but this model writes at most {special.text_context // 2} a window"
        )
    return options


def _check_encoder_decoder(options: DecodingOptions, special: EncoderDecoderPart) -> DecodingOptions:
    unfit = [
        name
        for name in PARAMETERS
        if name not in (*OF_ALL_DECODERS, *OF_ENCODER_DECODERS)
        and getattr(options, name) != getattr(DecodingOptions, name)
    ]
    if options.temperature in (FALLBACK, (0.0,)):
        unfit = [name for name in unfit if name != "temperature"]
    if unfit:
        raise InputError(f"{', '.join(unfit)} is for Whisper models; this one takes the likeliest tokens, or a beam's")
    if options.task == "identify":
        raise InputError("this model does not detect languages; task identify is for Whisper models")
    if options.task == "translate" and options.target_language not in ("", ENGLISH):
        raise InputError(f"task translate is into English, target_language is {options.target_language!r}; give one")
    for name, code in (("language", options.language), ("target_language", target_language(options, special))):
        if code and not special.languages:
            raise InputError("this model has no choice of languages; leave out language, target_language and task")
        if code and code not in special.languages:
            raise InputError(f"{name} is {code!r}; this model knows {', '.join(special.languages)}")
    if not options.punctuation and special.punctuation is None:
        raise InputError("this model has no choice of punctuation; leave it out")
    if options.word_times is True and special.word_times is None:
        raise InputError("this model cannot tell the times of words; leave out word_times")
    most = special.text_context - len(special.prompt)
    if options.max_tokens > most:
        raise InputError(f"max_tokens is {options.max_tokens}, but this model writes at most {most} of a recording")
    return options


def target_language(options: DecodingOptions, special: EncoderDecoderPart) -> str:
    """The language that a text is to be in; empty if the model has no choice."""
    if options.target_language or options.task == "translate":
        return options.target_language or ENGLISH
    return options.language or special.language


def read_decoding(text: str) -> DecodingOptions:
    """The defaults of a served model, from its setting: a JSON object of request parameters, or nothing.

    Raises:
        InputError: it is none, or asks for what no model has.
    """
    if not text:
        return DecodingOptions()
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f'expected a JSON object such as {{"language": "de"}}, got {text[:80]!r}') from error
    if not isinstance(given, dict):
        raise InputError(f'expected a JSON object such as {{"language": "de"}}, got {text[:80]!r}')
    return DecodingOptions().changed(given)


def with_search(decoding: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
    """Options of decoding with those of a search that mean the same here."""
    return {**{name: search[name] for name in OF_ANY_SEARCH if name in search}, **decoding}


PARAMETERS = tuple(described(DecodingOptions))  # of a request
OF_ENCODER_DECODERS = ("target_language", "punctuation")  # and of no Whisper
OF_ALL_DECODERS = ("language", "task", "word_times", "beam", "length_penalty", "max_tokens", "suppress")
OF_ANY_SEARCH = ("language", "beam")  # which command lines and models of other kinds have, too
