"""What a RecognitionConfig asks for, as the gateway's `Ask`; what nothing here can do is refused, not left out.

asked(config, streams=True)  ->  Asked(ask=Ask(search={"hotwords": {"anna": 8}}, ...), ...)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.announced_audio import AudioFormat, Encoding
from tritone.gateway.ask import Ask, SpeakerOptions, TurnOptions, VadOptions, language_parameters
from tritone.gateway.protocols.riva.messages import ENCODINGS, UNSPECIFIED
from tritone.search.options import BEAM_MODES, MAX_BEAM
from tritone.texts import TextOptions
from tritone.texts.options import LANGUAGES

MAX_PREFIX_S = 2.0  # audio before the start of speech
DEFAULT_SPEAKERS = 8  # at most, where a client does not say how many; as Riva
# Keys for which RecognitionConfig has no field.
OF_TEXTS = ("number_rules", "text_language", "capitals", "profane_words")
OF_ENCODINGS: Mapping[int, Encoding] = {
    number: "" if name == UNSPECIFIED else cast(Encoding, name) for name, number in ENCODINGS.items()
}
FINAL_MODEL = "final_model"
BY_VAD = "enable_vad_endpointing"
NUMBERS_IN_PARTIALS = "apply_partial_itn"
# Riva's keys of its Silero model, and the parameters of ours.
OF_VAD = {
    "neural_vad.onset": "threshold",
    "neural_vad.offset": "end_threshold",
    "neural_vad.min_duration_on": "min_speech_s",
    "neural_vad.min_duration_off": "min_silence_s",
    "neural_vad.pad_offset": "padding_s",
}
PREFIX = "neural_vad.pad_onset"
# Of the interface, and with nothing here that does it.
NOT_DONE = {
    "start_history": "it is about the share of frames with tokens in a window. Speech begins with its first frame here",
    "start_threshold": "it is about the share of frames with tokens in a window. Send neural_vad.onset, a probability "
    "of speech, in custom_configuration",
    "stop_threshold": "it is about the share of frames without tokens in a window. Send neural_vad.offset, a "
    "probability of speech, in custom_configuration",
    "stop_threshold_eou": "it is about the share of frames without tokens in a window",
}


def audio_format(config: Any) -> AudioFormat:
    """What a RecognitionConfig says of the audio; `InputError` if no audio is like that."""
    if config.encoding not in OF_ENCODINGS:
        raise InputError(f"encoding {config.encoding} is not known; send one of {', '.join(ENCODINGS)}")
    return AudioFormat(
        encoding=OF_ENCODINGS[config.encoding],
        sample_rate=config.sample_rate_hertz,
        channels=config.audio_channel_count,
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a configuration asks for.

    `max_alternatives`: the most readings of an utterance. `early_end_s`: audio without another token after
    which a partial result is called stable; 0: never.
    """

    ask: Ask
    max_alternatives: int = 1
    early_end_s: float = 0.0

    def fitted(self, info: ModelInfo, language_code: str) -> Ask:
        """What is asked of this model: several readings if its search has them, a language if it knows several."""
        search = dict(self.ask.search)
        has_beam = search["search"] in BEAM_MODES if "search" in search else info.has_beam
        if self.max_alternatives > 1 and has_beam:
            search["nbest"] = min(self.max_alternatives, MAX_BEAM)
        if "language" not in search and "allowed_languages" not in search:
            search |= language_parameters(info, language_code)
        return replace(self.ask, search=search)


def asked(config: Any, *, streams: bool, detects: bool = False, turns: TurnOptions | None = None) -> Asked:
    """Read a RecognitionConfig.

    Args:
        streams: whether it is of StreamingRecognize.
        detects: whether streams are cut by voice activity where the client does not say how.
        turns: how turns of streams end where the client does not say how they are cut.

    Raises:
        InputError: it asks for what cannot be, or for what is not done here.
    """
    if config.enable_separate_recognition_per_channel and streams:
        raise InputError(
            "enable_separate_recognition_per_channel is of Recognize: channels of streams are averaged. Open a stream "
            "for each, or leave the field out."
        )
    if config.enable_separate_recognition_per_channel and config.diarization_config.enable_speaker_diarization:
        raise InputError(
            "enable_separate_recognition_per_channel and enable_speaker_diarization do not go together: a channel is a "
            "speaker; leave one out"
        )
    custom = dict(config.custom_configuration)
    if not streams:
        of_streams = {*OF_VAD, PREFIX, BY_VAD, NUMBERS_IN_PARTIALS, FINAL_MODEL} & custom.keys()
        of_streams |= {"endpointing_config"} if config.HasField("endpointing_config") else set()
        if of_streams:
            raise InputError(f"{', '.join(sorted(of_streams))} is of StreamingRecognize; leave it out of Recognize")
    if not _switch(custom, NUMBERS_IN_PARTIALS, True):
        raise InputError(f"{NUMBERS_IN_PARTIALS} false is not done here: partial texts are written as final ones are")
    if config.max_alternatives < 0:
        raise InputError(f"max_alternatives is {config.max_alternatives}; give 1 or more")
    if not streams or config.HasField("endpointing_config") or {*OF_VAD, PREFIX, BY_VAD} & custom.keys():
        turns = None
    return Asked(
        max_alternatives=config.max_alternatives,
        early_end_s=_early_end(config.endpointing_config),
        ask=Ask(
            model=config.model,
            words="needed" if config.enable_word_time_offsets else "none",
            texts=_texts(config, custom),
            speakers=_speakers(config),
            each_channel=config.enable_separate_recognition_per_channel,
            vad=_vad(config.endpointing_config, custom, detects=detects) if streams else None,
            turns=turns,
            final_model=custom.pop(FINAL_MODEL, ""),
            search=_search(config, custom),
        ),
    )


def _search(config: Any, custom: dict[str, str]) -> dict[str, Any]:
    """Request parameters of the wire contract; those of `custom_configuration` travel as they are."""
    search: dict[str, Any] = dict(custom)
    if config.max_alternatives > 1 and "nbest" in search:
        raise InputError("nbest is in custom_configuration, and max_alternatives says it too; send one of them")
    if hotwords := _hotwords(config):
        _add(search, "hotwords", hotwords, "speech_contexts")
    return search


def _hotwords(config: Any) -> dict[str, float]:
    hotwords: dict[str, float] = {}
    for context in config.speech_contexts:
        if context.phrases and not math.isfinite(context.boost):
            raise InputError(f"the boost of phrase {context.phrases[0][:80]!r} is {context.boost}; send one such as 5")
        if context.phrases and not context.boost:
            raise InputError(
                f"the boost of phrase {context.phrases[0][:80]!r} is 0, which changes nothing; send one such as 5"
            )
        for phrase in context.phrases:
            if hotwords.get(phrase, context.boost) != context.boost:
                raise InputError(f"phrase {phrase[:80]!r} has two boosts, {hotwords[phrase]:g} and {context.boost:g}")
            hotwords[phrase] = context.boost
    return hotwords


def _add(search: dict[str, Any], name: str, value: object, field: str) -> None:
    if name in search:
        raise InputError(f"{name} is in custom_configuration, and {field} says it too; send one of them")
    search[name] = value


def _texts(config: Any, custom: dict[str, str]) -> TextOptions:
    language = _language(config.language_code)
    options = TextOptions(
        text_language=language if language in LANGUAGES else "",
        punctuate=config.enable_automatic_punctuation,
        numbers=not config.verbatim_transcripts,
        profanity="mask" if config.profanity_filter else "keep",
    )
    return options.changed({name: custom.pop(name) for name in OF_TEXTS if name in custom})


def _language(code: str) -> str:
    """The language of a code such as de-DE."""
    return code.partition("-")[0].lower()


def _speakers(config: Any) -> SpeakerOptions | None:
    wanted = config.diarization_config
    if wanted.max_speaker_count < 0:
        raise InputError(
            f"max_speaker_count is {wanted.max_speaker_count}; give 1 or more, or 0 for {DEFAULT_SPEAKERS}"
        )
    if not wanted.enable_speaker_diarization:
        return None
    return SpeakerOptions(max_speakers=wanted.max_speaker_count or DEFAULT_SPEAKERS)


def _vad(endpointing: Any, custom: dict[str, str], *, detects: bool) -> VadOptions | None:
    """How voice activity cuts a stream, or None, where the recogniser's own rules do."""
    parameters: dict[str, Any] = {OF_VAD[key]: _number(custom, key) for key in OF_VAD if key in custom}
    for field, reason in NOT_DONE.items():
        if endpointing.HasField(field):
            raise InputError(f"endpointing_config.{field} is not done here: {reason}.")
    if endpointing.HasField("stop_history"):
        _add(parameters, "min_silence_s", _seconds(endpointing, "stop_history"), "stop_history")
    prefixed = PREFIX in custom
    prefix_s = _number(custom, PREFIX) if prefixed else VadOptions.prefix_s
    if not 0 <= prefix_s <= MAX_PREFIX_S:
        raise InputError(f"{PREFIX} must be 0 to {MAX_PREFIX_S:g} seconds, got {prefix_s:g}")
    if not _switch(custom, BY_VAD, detects or bool(parameters) or prefixed):
        if parameters or prefixed:
            raise InputError(f"{BY_VAD} is false, so that stop_history and neural_vad have no effect; leave them out")
        return None
    return VadOptions(parameters=parameters, prefix_s=prefix_s)


def _early_end(endpointing: Any) -> float:
    if not endpointing.HasField("stop_history_eou"):
        return 0.0
    early_s = _seconds(endpointing, "stop_history_eou")
    if endpointing.HasField("stop_history") and early_s >= _seconds(endpointing, "stop_history"):
        raise InputError("endpointing_config.stop_history_eou must be less than stop_history, the end proper")
    return early_s


def _seconds(endpointing: Any, field: str) -> float:
    milliseconds: int = getattr(endpointing, field)
    if milliseconds <= 0:
        raise InputError(f"endpointing_config.{field} is {milliseconds} ms; give more than 0, or leave it out")
    return milliseconds / 1000


def _number(custom: dict[str, str], key: str) -> float:
    text = custom.pop(key)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{key} must be a number, got {text[:80]!r}")
    return number


def _switch(custom: dict[str, str], key: str, usual: bool) -> bool:
    text = custom.pop(key, str(usual)).lower()
    if text not in ("true", "false"):
        raise InputError(f"{key} must be true or false, got {text[:80]!r}")
    return text == "true"
