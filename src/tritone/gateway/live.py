"""A live stream: audio goes in as it is recorded, what happens in it comes out as events.

    accept(samples)  ->  [speech_started, partial, ..., speech_stopped, final]

A live stream is a row of segments. The recogniser's own endpoint rules end them, a served voice activity model does, or
the client (`commit`). With a classifier of ends of turns (`Ask.turns`) a segment is a turn: voice activity finds a
pause, the classifier says whether the speaker has finished, and if not the turn goes on with the next speech, or ends
in a long silence. Each stream on the server that takes part in it is a leg: one for all segments where the recogniser
ends them, one for each segment otherwise. A model for whole recordings gets a segment and writes it at its end
(`whole.py`). Times are those of the whole stream.
"""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.inputs import mono
from tritone.audio.recent import RecentAudio
from tritone.audio.waveform import Samples
from tritone.client.async_stream import AsyncActivityStream, AsyncClientStream
from tritone.errors import StreamError
from tritone.gateway.arrivals import Arrivals
from tritone.gateway.ask import Ask, Event, Trigger, TurnEnd, TurnOptions, VadOptions, search_of
from tritone.gateway.callers import Caller
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.second_pass import MAX_SEGMENT_S, SecondPass
from tritone.gateway.speakers import LiveSpeakers, live_speakers
from tritone.gateway.turns import BEFORE_S, TurnClassifier, classifier_of
from tritone.gateway.upstreams.realtime import RealtimeStream
from tritone.gateway.whole import WholeStream
from tritone.transcript import Transcript, continued, shifted

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech

RECENT_S = 3.0  # audio that is kept for speech that is found after it began


class Live:
    """One live stream, made by `Speech.open`; its methods are awaited one after the other.

    Leaving the `async with` block frees it at the server, and what it holds of its caller's limits.
    """

    def __init__(self, speech: "Speech", ask: Ask, sample_rate: int, caller: Caller) -> None:
        self.sample_rate = sample_rate
        self.caller = caller
        self._speech = speech
        self._ask = ask
        self.held = ExitStack()
        """What is given back when the stream is closed."""
        self._model = ""
        self._stream: AsyncClientStream | WholeStream | RealtimeStream | None = None
        self._vad: AsyncActivityStream | None = None
        self._speakers: LiveSpeakers | None = None
        self._turns: TurnClassifier | None = None
        self._vad_options = ask.vad
        self._recent = RecentAudio(sample_rate, MAX_SEGMENT_S if ask.final_model else RECENT_S)
        self._arrivals = Arrivals()
        self._events: list[Event] = []
        self._second = (
            SecondPass(self._rewritten, speech.limits.second_pass_s, self._final) if ask.final_model else None
        )
        self._begins = 0  # where in the stream its leg begins, in samples
        self._sent = 0  # where the audio ends that legs have received, in samples
        self._since = 0  # where the audio of the segment under way begins, in samples
        self._segment = 0
        self._text = ""  # of the last partial event
        self._found = False  # whether the segment under way had text, which a partial one may take back
        self._settled: int | None = None
        self._written_s = 0.0  # where in the stream the audio ends whose text has come, as the recogniser says
        self._stopped_s = 0.0  # where speech ended last
        self._speaking = False
        self._began_s = 0.0  # where the speech of the turn under way begins
        self._paused_s: float | None = None  # where the speech of the turn under way ended, for now
        self._eager = False  # whether it was said that the turn may be ending
        self._probability: float | None = None  # that it ends, as the classifier said last
        self._trigger: Trigger = "client"  # of the turn that ends
        self._parts = Transcript(text="", is_final=False)  # of the turn, which the recogniser's rules ended
        self._so_far = self._parts  # of the segment under way, as the last partial event had it
        self._over = False

    @property
    def received_s(self) -> float:
        """Seconds of audio that were accepted."""
        return self._recent.end / self.sample_rate

    @property
    def written_s(self) -> float:
        """Seconds of audio whose text has come, partial or final; other text may still come of later audio."""
        return self._written_s

    @property
    def silent_s(self) -> float:
        """How long nobody has spoken, in seconds of audio whose text has come and is final; 0 while somebody speaks.

        Who speaks is known by voice activity, or, without a model for it, by texts alone.
        """
        if self._vad is not None:
            return 0.0 if self._speaking else self.received_s - self._stopped_s
        return 0.0 if self._found else max(0.0, self._written_s - self._stopped_s)

    @property
    def model(self) -> str:
        """The name of the served model that recognises the stream."""
        return self._model

    async def start(self) -> None:
        """Check the models; nothing is sent to the server before the first audio. Called by `Speech.open`."""
        if self._ask.turns is not None:
            self._turns = await classifier_of(self._speech, self._ask.turns, self.sample_rate, self.caller)
            self._keep(self._turns.window_s + BEFORE_S)
            vad = self._ask.vad or VadOptions()
            self._vad_options = replace(vad, parameters={**vad.parameters, "min_silence_s": self._ask.turns.pause_s})
        if self._vad_options is not None:
            self._vad = await self._speech.detecting(self._vad_options, self.sample_rate, self.caller)
        if self._ask.final_model:
            search_of(self._ask, await self._speech.model(self._ask.final_model, "offline"))
        if self._ask.speakers is not None:
            self._speakers = await live_speakers(self._speech, self._ask.speakers, self.sample_rate, self.caller)
            self._keep(self._speakers.kept_s)
        self._stream = await self._speech.recognising(self._ask, self.sample_rate, self.caller)
        self._model = self._stream.model.name

    def _keep(self, kept_s: float) -> None:
        """Keep so many seconds of audio at least; called before there is any."""
        if kept_s > self._recent.kept_s:
            self._recent = RecentAudio(self.sample_rate, kept_s)

    async def accept(self, samples: npt.NDArray[Any]) -> list[Event]:
        """Take audio and return what happened by now.

        Args:
            samples: (samples,) or (samples, channels) at the stream's rate, floating point in [-1, 1] or int16, of any
                length.

        Raises:
            AudioError: the samples cannot be used; the stream goes on without them.
            GatewayRefusal: the stream, or its caller's audio, has become too long; that ends the stream.
            TritoneError: the server failed, which ends the stream.
        """
        self._require_open()
        found = mono(samples)
        self._count(found)
        if self._speakers is not None:
            await self._speakers.add(found)
        if self._vad is None:
            await self._recognise(found)
        elif self._speaking:
            activity, _ = await _both(self._vad.accept(found), self._recognise(found))
            await self._follow(activity)
        else:
            await self._follow(await self._vad.accept(found))
        return await self._taken()

    async def commit(self) -> list[Event]:
        """End the segment under way now, and return its final text among the events; the stream goes on."""
        self._require_open()
        await self._end_leg()
        self._begin_leg(self._recent.end)
        if self._paused_s is not None:
            self._paused_s, self._speaking = None, False
        return await self._taken(settled=True)

    async def finish(self) -> list[Event]:
        """End the stream, and return the rest of its events.

        The last one is final, unless there was no text since an earlier final one.
        """
        self._require_open()
        if self._speakers is not None:
            await self._speakers.finish()
        self._over = True
        if self._vad is not None:
            await self._follow(await self._vad.finish())
            if self._paused_s is not None:
                await self._end_speech(self._paused_s, "client")
        if self._vad is None or self._speaking or self._segment == 0:
            await self._end_leg(even_empty=self._segment == 0)
        return await self._taken(settled=True)

    def change_turns(self, turns: TurnOptions) -> None:
        """Decide on turns otherwise from now on; classifier and pause stay as they are."""
        if self._ask.turns is not None:
            self._ask = replace(
                self._ask, turns=replace(turns, model=self._ask.turns.model, pause_s=self._ask.turns.pause_s)
            )

    async def late(self) -> bool:
        """Wait for a final text that a second model is writing; False at once if there is none.

        It is for protocols that send events while no audio comes, and may be awaited beside the other methods. Then
        `news` has the event.
        """
        return self._second is not None and await self._second.late()

    async def news(self) -> list[Event]:
        """The events that came without audio, as `late` reported."""
        return await self._taken()

    async def close(self) -> None:
        """Free the stream; the second call does nothing."""
        self._over = True
        if self._second is not None:
            await self._second.close()
        open_now = [each for each in (self._stream, self._vad, self._speakers) if each is not None]
        self._stream = self._vad = None
        try:
            for each in open_now:
                await each.close()
        finally:
            self.held.close()

    async def __aenter__(self) -> "Live":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_open(self) -> None:
        if self._over:
            raise StreamError("this stream is over; open a new one")

    def _count(self, samples: Samples) -> None:
        try:
            self._speech.count_audio(samples.size / self.sample_rate, self._model, self.caller)
            longest = self._speech.limits.max_stream_s
            if self.received_s + samples.size / self.sample_rate > longest:
                message = f"this stream has more than {longest:g} s of audio, the longest one; open a new one"
                raise GatewayRefusal(413, message, code="stream_too_long")
        except GatewayRefusal:
            self._over = True
            raise
        self._recent.add(samples)
        self._arrivals.add(self.received_s)

    async def _taken(self, *, settled: bool = False) -> list[Event]:
        """The events that are known now; `settled` waits for texts that a second model writes."""
        if self._second is not None:
            return await (self._second.settled() if settled else self._second.ready())
        events, self._events = self._events, []
        return events

    # Voice activity: speech begins and ends legs.

    async def _follow(self, activity: SpeechActivity) -> None:
        for each in activity.segments:
            await self._take_speech(each.start_s, until_s=each.end_s)
            await self._take_pause(each.end_s)
        if activity.speaking_since_s is not None:
            await self._take_speech(activity.speaking_since_s)
        elif self._paused_s is not None and self._is_too_long(self.received_s):
            await self._end_speech(self._paused_s, "silence")
        if self._turns is not None and self._speaking:
            await self._recognise_until(self._recent.end)

    async def _recognise_until(self, end: int) -> None:
        """Recognise what is missing where a turn began and went on within one piece of audio."""
        if self._sent < end:
            await self._recognise(self._recent.between(self._sent, end)[0])

    def _is_too_long(self, time_s: float) -> bool:
        """Whether the pause is so long then that it ends the turn."""
        assert self._ask.turns is not None
        assert self._paused_s is not None
        return time_s - self._paused_s >= self._ask.turns.max_silence_s

    async def _take_speech(self, since_s: float, until_s: float | None = None) -> None:
        """Begin a segment, unless one is under way."""
        if self._paused_s is not None:
            if self._is_too_long(since_s):
                await self._end_speech(self._paused_s, "silence")
            else:
                self._paused_s = None
                if self._eager:
                    self._eager = False
                    self._add_event("resumed", since_s)
        if self._speaking:
            return
        assert self._vad_options is not None
        self._speaking, self._began_s, self._probability = True, since_s, None
        self._add_event("speech_started", since_s)
        begin = max(self._sent, round((since_s - self._vad_options.prefix_s) * self.sample_rate))
        end = self._recent.end if until_s is None else round(until_s * self.sample_rate)
        found, begin = self._recent.between(begin, end)
        self._begin_leg(begin)
        await self._recognise(found)

    async def _take_pause(self, end_s: float) -> None:
        """End the segment, unless it is a turn that goes on."""
        turns = self._ask.turns
        if turns is None or self._turns is None or self._over:
            await self._end_speech(end_s, "client")
            return
        begin, end = (round(each * self.sample_rate) for each in (self._began_s - BEFORE_S, end_s + turns.pause_s))
        await self._recognise_until(min(end, self._recent.end))
        asked = time.monotonic()
        self._paused_s = end_s
        self._probability = await self._turns.probability(self._recent.between(begin, end)[0])
        self._speech.observe("turn", self, time.monotonic() - asked)
        if self._probability >= turns.threshold:
            await self._end_speech(end_s, "classifier")
        elif turns.eager_threshold is not None and self._probability >= turns.eager_threshold:
            self._eager = True
            turn = TurnEnd(trigger="classifier", probability=self._probability)
            self._add_event("eager_end", end_s, await self._speech.written(self._so_far, self._ask.texts), turn=turn)

    async def _end_speech(self, end_s: float, trigger: Trigger) -> None:
        self._speaking, self._eager, self._paused_s, self._trigger = False, False, None, trigger
        self._stopped_s = end_s
        self._add_event("speech_stopped", end_s)
        await self._end_leg(end_s=end_s)
        self._trigger = "client"

    # Legs: streams on the server.

    def _begin_leg(self, begin: int) -> None:
        self._begins = self._sent = self._since = begin
        self._written_s = begin / self.sample_rate

    async def _recognise(self, samples: Samples) -> None:
        if self._stream is None:
            self._stream = await self._speech.recognising(self._ask, self.sample_rate, self.caller)
        self._sent += samples.size
        await self._read(await self._stream.accept(samples))

    async def _end_leg(self, *, end_s: float | None = None, even_empty: bool = True) -> None:
        last = Transcript(text="")
        if self._stream is not None and self._sent > self._begins:
            asked, stream = time.monotonic(), self._stream
            last = await stream.finish()
            self._stream, self._written_s = None, self._sent / self.sample_rate
            await self._read(replace(last, text="", is_final=False), over=True)  # segments that ended on the way
            last = continued(self._parts, self._placed(last))
            self._speech.observe("final", self, time.monotonic() - asked)
        if last.text or even_empty or self._found:
            await self._finish_segment(last, end_s)

    def _placed(self, found: Transcript) -> Transcript:
        """A transcript of the leg with times of the whole stream, and the number of its segment."""
        moved = shifted(found, self._begins / self.sample_rate) if self._begins else found
        if moved.segment == self._segment and not moved.ended and not moved.history:
            return moved
        return replace(moved, segment=self._segment, ended=(), history="")

    async def _read(self, found: Transcript, *, over: bool = False) -> None:
        for each in found.ended:
            if self._turns is None:
                await self._finish_segment(self._placed(each), None)
            else:
                self._parts = continued(self._parts, self._placed(each))
        if over:
            return
        self._written_s = self._begins / self.sample_rate + found.audio_s
        if (found.text, found.settled) == (self._text, self._settled):
            return
        placed = continued(self._parts, self._placed(found))
        if placed.text:
            self._found_text(placed)
        self._text, self._settled = found.text, found.settled
        self._so_far = placed
        if self._speakers is not None:
            placed = await self._speakers.so_far(placed, self._recent)
        self._add_event("partial", self.received_s, self._speech.so_far(placed, self._ask.texts))

    def _found_text(self, placed: Transcript) -> None:
        """Say where a segment's speech begins, at its first text."""
        if self._found:
            return
        self._found = True
        began_s = placed.words[0].start_s if placed.words else self.received_s
        if self._vad is None:
            self._add_event("speech_started", began_s)
        if (came := self._arrivals.at(began_s)) is not None:
            self._speech.observe("first_partial", self, time.monotonic() - came)

    async def _finish_segment(self, placed: Transcript, end_s: float | None) -> None:
        if end_s is None:
            end_s = placed.words[-1].end_s if placed.words else placed.audio_s or self.received_s
        if self._vad is None:
            self._stopped_s = end_s
            if placed.text:
                self._found_text(placed)
            if self._found:
                self._add_event("speech_stopped", end_s)
        end = min(self._sent, round(placed.audio_s * self.sample_rate)) or self._sent
        if self._speakers is not None:
            placed = await self._speakers.labelled(placed, self._recent)
        final = await self._speech.written(placed, self._ask.texts)
        event = Event(
            kind="final",
            segment=self._segment,
            time_s=end_s,
            transcript=replace(final, is_final=True),
            turn=TurnEnd(trigger=self._trigger, probability=self._probability) if self._turns is not None else None,
        )
        if self._second is None:
            self._events.append(event)
            self._final(event)
        else:
            samples, begin = self._recent.between(self._since, end)
            whole = begin <= self._since and len(samples) <= MAX_SEGMENT_S * self.sample_rate
            self._second.begin(event, samples, begin / self.sample_rate, whole=whole)
        self._since = end
        self._segment += 1
        self._text, self._settled, self._found = "", None, False
        self._parts = self._so_far = Transcript(text="", is_final=False)

    def _add_event(self, kind: Any, time_s: float, transcript: Transcript | None = None, **more: Any) -> None:
        event = Event(kind=kind, segment=self._segment, time_s=time_s, transcript=transcript, **more)
        if self._second is None:
            self._events.append(event)
        else:
            self._second.add(event)

    def _final(self, event: Event) -> None:
        """Count a final text that is known."""
        came = self._arrivals.at(event.time_s)
        if came is not None and event.transcript is not None and event.transcript.text:
            self._speech.observe("end_of_speech", self, time.monotonic() - came)
        if event.second_pass:
            self._speech.count_second_pass(self, event.second_pass)

    async def _rewritten(self, samples: Samples) -> Transcript:
        return await self._speech.rewritten(samples, self.sample_rate, self._ask, self.caller)


async def _both(first: Any, second: Any) -> tuple[Any, Any]:
    """The results of two coroutines that run at once; when one fails, the other has ended too."""
    results = await asyncio.gather(first, second, return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return results[0], results[1]
