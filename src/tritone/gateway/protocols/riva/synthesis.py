"""Riva's speech synthesis service: texts become audio, as a whole or sentence by sentence.

a SynthesizeSpeechRequest  ->  voice, encoding, rate  ->  the gateway's Voices  ->  SynthesizeSpeechResponses
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from tritone.audio.encoder import SpeechEncoder, SpeechFormat
from tritone.errors import InputError
from tritone.gateway.protocols.riva import messages
from tritone.gateway.protocols.riva.messages import ENCODINGS, UNSPECIFIED
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.saying import FoundVoice

if TYPE_CHECKING:
    from tritone.gateway.callers import Caller
    from tritone.gateway.gateway import Gateway

FORMATS: dict[int, SpeechFormat] = {
    ENCODINGS[UNSPECIFIED]: "pcm",
    ENCODINGS["LINEAR_PCM"]: "pcm",
    ENCODINGS["FLAC"]: "flac",
    ENCODINGS["OGGOPUS"]: "opus",
}
LEAST_RATE, MOST_RATE = 8000, 48000  # Hz
MAX_MESSAGE = 1 << 18  # bytes; no text that is spoken has more
SPEED = "speed"  # the one key of `custom_configuration`


async def speech_of(gateway: "Gateway", request: Any, caller: "Caller") -> AsyncGenerator[Any, None]:
    """The responses to a request, one for each sentence; their audio makes one file.

    Raises:
        InputError: the request asks for what there is not.
        GatewayRefusal: no voice is ready, or the caller has asked for more audio than it may.
        TritoneError: the server failed.
    """
    format, speed = _format(request), _speed(dict(request.custom_configuration))
    voice = await gateway.speech.voices.find(voice=request.voice_name, language=request.language_code)
    rate = request.sample_rate_hz or voice.info.sample_rate
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise InputError(f"sample_rate_hz must be {LEAST_RATE} to {MOST_RATE}, or 0 for the voice's own; got {rate}")
    encoder = SpeechEncoder(format, voice.info.sample_rate, rate=rate)
    async with aclosing(gateway.speech.voices.speak(request.text, voice, caller, speed=speed)) as parts:
        async for part in parts:
            response = _response(request)
            response.audio = await asyncio.to_thread(encoder.add, part.waveform)
            response.meta.text = response.meta.processed_text = part.text
            yield response
    if rest := await asyncio.to_thread(encoder.end):
        response = _response(request)
        response.audio = rest
        yield response


def whole(request: Any, parts: list[Any]) -> Any:
    """One response of those of all sentences."""
    response = _response(request)
    response.audio = b"".join(each.audio for each in parts)
    response.meta.text = request.text
    response.meta.processed_text = " ".join(each.meta.text for each in parts if each.meta.text)
    return response


async def voices_of(gateway: "Gateway", wanted: str) -> Any:
    """The voices as the clients' `--list-voices` reads them: models with their languages and speakers.

    Raises:
        GatewayRefusal: with status 404, there is no ready model of the name that is wanted.
    """
    response = messages.SynthesisConfigResponse()
    models: dict[str, list[FoundVoice]] = {}
    for voice in await gateway.speech.voices.all():
        models.setdefault(voice.info.name, []).append(voice)
    for name, found in models.items():
        if wanted in ("", name):
            entry = response.model_config.add(model_name=name)
            speakers = [each.speaker for each in found if each.speaker]
            entry.parameters.update(
                language_code=found[0].language,
                voice_name=name,
                subvoices=",".join(f"{each}:{number}" for number, each in enumerate(speakers)),
                sample_rate=str(found[0].info.sample_rate),
            )
    if wanted and not response.model_config:
        raise GatewayRefusal(404, f"there is no ready voice model {wanted[:200]!r}", code="model_not_found")
    return response


def _response(request: Any) -> Any:
    response = messages.SynthesizeSpeechResponse()
    if request.HasField("id"):
        response.id.value = request.id.value
    return response


def _format(request: Any) -> SpeechFormat:
    """What audio is written as, after making sure that nothing is asked for that there is not."""
    for name in ("zero_shot_data", "custom_dictionary", "enable_word_time_offsets"):
        if request.HasField(name) if name == "zero_shot_data" else getattr(request, name):
            raise InputError(f"{name} is nothing that voices here have; leave it out")
    if request.text.lstrip().startswith("<speak"):
        raise InputError("text is SSML, which would be read aloud with its marks; send plain text")
    if request.encoding not in FORMATS:
        raise InputError(f"encoding must be LINEAR_PCM, FLAC or OGGOPUS, got number {request.encoding}")
    return FORMATS[request.encoding]


def _speed(configuration: dict[str, str]) -> float:
    text = configuration.pop(SPEED, "1")
    if configuration:
        raise InputError(f"custom_configuration knows {SPEED} alone, got {', '.join(configuration)[:200]}")
    try:
        return float(text)
    except ValueError:
        raise InputError(f"custom_configuration: {SPEED} must be a number, got {text[:40]!r}") from None
