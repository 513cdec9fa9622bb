"""Speech out by Wyoming: texts, as a whole or in parts as they are written, become audio, sentence by sentence.

    {"type": "synthesize", "data": {"text": "Hello.", "voice": {"name": "joe"}}}
        ->  {"type": "audio-start", ...}  {"type": "audio-chunk", ...} samples  ...  {"type": "audio-stop"}
    {"type": "synthesize-start"}  {"type": "synthesize-chunk", "data": {"text": "Hel"}}  ...
    {"type": "synthesize-stop"}
        ->  the same, which begins with the first sentence, and {"type": "synthesize-stopped"}

Source: rhasspy/wyoming 1.10.2, tts.py and audio.py.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np

from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import Waveform
from tritone.errors import InputError
from tritone.gateway.callers import Caller
from tritone.gateway.saying import FoundVoice, Voices
from tritone.texts.sentences import PAUSE_S, ComingText

CHUNK_BYTES = 1 << 14
SAMPLES = {"width": 2, "channels": 1}

Send = Callable[..., Awaitable[None]]


class Speaker:
    """What speaks to one client.

    Args:
        send: sends an event: its type, its payload, and its data by name.
    """

    def __init__(self, voices: Voices, caller: Caller, send: Send) -> None:
        self._voices, self._caller, self._send = voices, caller, send
        self._voice: FoundVoice | None = None  # of a text that comes in parts
        self._coming = ComingText()
        self._began = False  # whether its audio did

    async def take(self, kind: str, data: Mapping[str, Any]) -> None:
        """Answer an event.

        Raises:
            InputError: it asks for what there is not, or has nothing to speak.
            GatewayRefusal: no voice is ready, or the client has asked for more audio than it may.
            TritoneError: the server failed.
        """
        if kind == "synthesize-start":
            self._voice, self._coming, self._began = await self._found(data), ComingText(), False
        elif kind == "synthesize-chunk" and self._voice is not None:
            await self._speak(" ".join(self._coming.add(_text(data))), self._voice)
        elif kind == "synthesize-stop" and self._voice is not None:
            await self._speak(" ".join(self._coming.end()), self._voice)
            await self._end(self._voice)
            await self._send("synthesize-stopped")
            self._voice = None
        elif kind == "synthesize" and self._voice is None:  # else it is the whole of what comes in parts
            voice, self._began = await self._found(data), False
            await self._speak(_text(data) or " ", voice)  # who sends no text is told so
            await self._end(voice)
        elif kind != "synthesize":
            raise InputError(f"{kind} without synthesize-start before it")

    async def _found(self, data: Mapping[str, Any]) -> FoundVoice:
        """The voice that a client means."""
        if data.get("text_format") not in (None, "text"):
            raise InputError(f"text_format must be 'text', got {str(data['text_format'])[:40]!r}; send plain text")
        wanted = data.get("voice") or {}
        fields = {name: wanted.get(name) or "" for name in ("name", "speaker", "language")} if _is_map(wanted) else {}
        if not fields or not all(isinstance(each, str) for each in fields.values()):
            raise InputError("voice must be an object with name, speaker or language, which are texts")
        name = ".".join(filter(None, (fields["name"], fields["speaker"])))
        return await self._voices.find(voice=name, language="" if fields["name"] else fields["language"])

    async def _speak(self, text: str, voice: FoundVoice) -> None:
        if not text:
            return
        if self._began:
            await self._play(np.zeros(round(PAUSE_S * voice.info.sample_rate), np.float32), voice)
        async with aclosing(self._voices.speak(text, voice, self._caller)) as parts:
            async for part in parts:
                await self._begin(voice)
                await self._play(part.waveform, voice)

    async def _play(self, waveform: Waveform, voice: FoundVoice) -> None:
        samples = to_pcm(waveform).astype("<i2", copy=False).tobytes()
        for start in range(0, len(samples), CHUNK_BYTES):
            chunk = samples[start : start + CHUNK_BYTES]
            await self._send("audio-chunk", chunk, rate=voice.info.sample_rate, **SAMPLES)

    async def _begin(self, voice: FoundVoice) -> None:
        if not self._began:
            self._began = True
            await self._send("audio-start", rate=voice.info.sample_rate, **SAMPLES)

    async def _end(self, voice: FoundVoice) -> None:
        await self._begin(voice)  # of a text of no words, too
        await self._send("audio-stop")


async def programs(voices: Voices, name: str, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The program that speaks, as `info` lists it; none where no voice is served."""
    found: dict[str, dict[str, Any]] = {}
    for each in await voices.all():
        model = each.info.name
        voice = found.setdefault(
            model,
            {"name": model, "description": model, "languages": list(each.info.languages), "speakers": [], **about},
        )
        if each.speaker:
            voice["speakers"].append({"name": each.speaker})
    described = {"name": name, "description": "Speech by Tritone", "voices": list(found.values()), **about}
    return [{**described, "supports_synthesize_streaming": True}] if found else []


def _text(data: Mapping[str, Any]) -> str:
    if not isinstance(text := data.get("text"), str):
        raise InputError(f"text must be a text, got {str(text)[:40]}")
    return text


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)
