"""What every protocol asks of Triton when texts are to be spoken: voices, and speech sentence by sentence.

voice = await speech.voices.find("tts-1", "ann")
async for part in speech.voices.speak(text, voice, caller, speed=1.2): part.waveform
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritone.audio.spoken import Spoken
from tritone.client.async_client import AsyncClient
from tritone.client.models import ModelInfo
from tritone.errors import InputError, ServerTimeoutError
from tritone.gateway.callers import Caller
from tritone.gateway.options import GatewayOptions
from tritone.gateway.refusal import absent

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_S = 5.0  # for which a list of voices holds


@dataclass(frozen=True)
class FoundVoice:
    """A served voice. `speaker`: "" is the only one, or the first."""

    info: ModelInfo
    speaker: str = ""

    @property
    def name(self) -> str:
        """By which clients name it."""
        return self.speaker or self.info.name

    @property
    def language(self) -> str:
        """As BCP 47 has it; "" where the server does not say."""
        return self.info.languages[0] if self.info.languages else ""


class Voices:
    """The voices of one Triton. `count_audio` counts speech that was made, as of audio that came."""

    def __init__(
        self, client: AsyncClient, options: GatewayOptions, count_audio: Callable[[float, str, Caller], None]
    ) -> None:
        self._client, self._options, self._count_audio = client, options, count_audio
        self._known: list[FoundVoice] = []
        self._looked_at = float("-inf")

    async def all(self) -> list[FoundVoice]:
        """Those that were ready a moment ago: models, and the speakers of each that has several."""
        if time.monotonic() - self._looked_at > LOOK_S:
            models = await self._client.models()
            self._known = [voice for each in models if each.kind == "synthesis" for voice in _speakers(each)]
            self._looked_at = time.monotonic()
        return self._known

    async def find(self, model: str = "", voice: str = "", language: str = "") -> FoundVoice:
        """The voice that is meant.

        Args:
            model: a served model; "" and the gateway's aliases are any.
            voice: a speaker, a model, or both as MODEL.SPEAKER; "" and the aliases are the first.
            language: which it must speak, as BCP 47 has it; "" is any.

        Raises:
            GatewayRefusal: with status 404, there is no such model, or no voice at all.
            InputError: the model has no such voice, or none speaks that language; says which there are.
        """
        if model and model not in self._options.aliases:
            try:
                found = _speakers(await self._client.model(model, kind="synthesis"))
            except InputError as error:
                raise await absent(self._client, error) from error
        elif not (found := await self.all()):
            try:  # one that was ready before is known
                await self._client.model(kind="synthesis")
            except InputError as error:
                raise await absent(
                    self._client, InputError("no model that speaks is ready here."), named=False
                ) from error
        if voice and voice not in self._options.aliases:
            named = [
                each for each in found if voice in (each.speaker, each.info.name, f"{each.info.name}.{each.speaker}")
            ]
            if not named:
                raise InputError(f"there is no voice {voice[:80]!r}; there are {_listed(found)}")
            found = named
        if language:
            speaking = [each for each in found if _matches(language, each.language)]
            if not speaking:
                known = ", ".join(sorted({each.language for each in found if each.language}))
                raise InputError(f"no such voice speaks {language[:40]!r}; languages are {known or 'not known'}")
            found = speaking
        return found[0]

    async def speak(
        self, text: str, voice: FoundVoice, caller: Caller, *, speed: float = 1.0
    ) -> AsyncGenerator[Spoken, None]:
        """Speak a text, sentence by sentence.

        Raises:
            InputError: the text or the speed cannot be used.
            GatewayRefusal: the caller has asked for more audio than it may.
            TritoneError: the server failed.
        """
        asked: dict[str, Any] = {"speed": speed if speed != 1.0 else None, "speaker": voice.speaker or None}
        limits = self._options.limits
        spoken = self._client.speak_iter(
            text, voice.info.name, timeout_s=limits.request_s, headers=caller.headers, **asked
        )
        async with aclosing(spoken) as parts:
            while True:
                try:
                    async with asyncio.timeout(limits.triton_timeout_s):
                        part = await anext(parts, None)
                except TimeoutError as error:
                    raise ServerTimeoutError(
                        f"voice '{voice.info.name}': no sentence came for {limits.triton_timeout_s:g} s"
                    ) from error
                if part is None:
                    return
                self._count_audio(part.audio_s, voice.info.name, caller)
                yield part


def _speakers(info: ModelInfo) -> list[FoundVoice]:
    return [FoundVoice(info, speaker) for speaker in info.speakers or ("",)]


def _listed(found: "Sequence[FoundVoice]") -> str:
    names = [each.name for each in found]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _matches(wanted: str, spoken: str) -> bool:
    """Whether a language is the one that is wanted, or the same without a country on either side."""
    mine, its = wanted.lower().split("-"), spoken.lower().split("-")
    return bool(spoken) and (mine == its or mine[:1] == its or its[:1] == mine)
