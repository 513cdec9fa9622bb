"""A stream of StreamingRecognize, whatever brings its messages: a RecognitionConfig, then audio  ->  its responses."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tritone.audio.waveform import Samples
from tritone.errors import InputError
from tritone.gateway.announced_audio import StreamAudio
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, AnyMessage, Conversation
from tritone.gateway.protocols.riva import messages
from tritone.gateway.protocols.riva.config import asked, audio_format
from tritone.gateway.protocols.riva.results import Results
from tritone.transcript import Transcript

STABLE = 1.0  # of a partial result that nothing follows
FORCE_END = "force_eou"  # the one key of `runtime_config`


class Recognition(Conversation[AnyMessage]):
    """One stream."""

    def configure(self, config: Any, *, interim: bool) -> None:
        """Take its RecognitionConfig, and whether partial results are wanted."""
        detects = bool(self.gateway.options.vad_model)
        self._wanted = asked(config, streams=True, detects=detects, turns=self.speech.turns)
        self._language_code = config.language_code
        self._interim = interim
        self.audio = StreamAudio(audio_format(config))
        self._results = results_of(config)
        self._partial: Transcript | None = None  # the latest, while it was not called stable
        self._changed_s = 0.0  # where the audio ends that it is the text of, in seconds

    @abstractmethod
    async def write(self, response: Any) -> None:
        """Send a StreamingRecognizeResponse."""

    async def ask(self) -> Ask:
        return self._wanted.fitted(await self.speech.live_model(self._wanted.ask.model), self._language_code)

    async def take_with(self, data: bytes, runtime: Mapping[str, str]) -> None:
        """Take some bytes, and what a message says beside them."""
        ends = _forced_end(dict(runtime))
        await self.take_audio(data)
        if ends:
            await self.commit()

    async def recognise(self, samples: Samples) -> list[Event]:
        if self.audio.rate:
            await self.open()
        return await super().recognise(samples)

    async def finish(self) -> None:
        events = await self.recognise(await self.audio.finish())
        if self.live is None:
            raise InputError("the stream ended without audio")
        await self.send_events(events, "finish")
        await self.send_events(await self.live.finish(), "finish")
        self.is_over = True

    async def send_events(self, events: Sequence[Event], after: After) -> None:
        for event in events:
            if event.transcript is None or event.kind not in ("partial", "final"):
                continue
            is_final = event.kind == "final"
            self._partial, self._changed_s = None if is_final else event.transcript, self._written_s
            if is_final or self._interim:
                await self._write(event.transcript, is_final=is_final)
        if after == "audio":
            await self._tell_early()

    async def _tell_early(self) -> None:
        """Call a partial result stable when no token has followed it for long enough; once, until it changes."""
        found, early_s = self._partial, self._wanted.early_end_s
        if found is not None and early_s and self._interim and self._written_s - self._changed_s >= early_s:
            self._partial = None
            await self._write(found, is_final=False, stability=STABLE)

    async def _write(self, found: Transcript, *, is_final: bool, stability: float = 0.0) -> None:
        response = messages.StreamingRecognizeResponse()
        result = response.results.add(is_final=is_final, stability=stability)
        received_s = 0.0 if self.live is None else self.live.received_s
        self._results.fill(result, found, received_s, is_final=is_final)
        await self.write(response)

    @property
    def _written_s(self) -> float:
        return 0.0 if self.live is None else self.live.written_s


def results_of(config: Any) -> Results:
    speakers = config.diarization_config.enable_speaker_diarization
    return Results(words=config.enable_word_time_offsets, speakers=speakers)


def _forced_end(runtime: dict[str, str]) -> bool:
    text = runtime.pop(FORCE_END, "false").lower()
    if runtime or text not in ("true", "false"):
        raise InputError(f"runtime_config knows {FORCE_END}, which is true or false; got {str(runtime or text)[:200]}")
    return text == "true"
