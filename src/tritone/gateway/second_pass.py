"""Two passes: a stronger model for whole recordings writes the final text of a segment that was recognised live.

    events of a stream  ->  the same events in the same order; a final one has the text of the second model

Partial texts are those of the streaming model. The audio of a segment that ended goes to the other model while the
stream goes on. Events wait for the final text of an earlier segment, so that every protocol sees segments one after the
other. Where the second pass fails, takes too long, or the segment is too long for it, the text is that of the first
pass, and the event (`Event.second_pass`), the log and the metrics tell.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from tritone.audio.waveform import Samples
from tritone.diarization import with_speakers
from tritone.errors import TritoneError
from tritone.formats import turns_of
from tritone.gateway.ask import Event, SecondPassOutcome
from tritone.transcript import Transcript, shifted

LOG = logging.getLogger("tritone.gateway")
MAX_SEGMENT_S = 60.0  # audio that is kept of a stream, in seconds: 2.9 MB of 16 bits at 24 kHz
MAX_WAITING = 4  # final texts of a stream that are being written; then the stream waits for the oldest

Rewrite = Callable[[Samples], Awaitable[Transcript]]


class SecondPass:
    """The second passes of one stream.

    Args:
        rewrite: transcribes the audio of a segment; times count from its start.
        timeout_s: how long that may take, in seconds.
        on_event: called with each final event when its text is known.
    """

    def __init__(self, rewrite: Rewrite, timeout_s: float, on_event: Callable[[Event], None]) -> None:
        self._rewrite = rewrite
        self._timeout_s = timeout_s
        self._on_event = on_event
        self._waiting: deque[Event | asyncio.Task[Event]] = deque()

    def begin(self, event: Event, samples: Samples, begin_s: float, *, whole: bool) -> None:
        """Take a final event of the first pass, and have its text written again.

        Args:
            samples: (samples,) of the segment, which begin at `begin_s` seconds of the stream.
            whole: whether these are all of its samples.
        """
        if event.transcript is None or not event.transcript.text:
            self._on_event(event)  # nobody said anything
            self._waiting.append(event)
        elif not whole:
            self._waiting.append(self._failed(event, "too_long", f"it is longer than {MAX_SEGMENT_S:g} s"))
        else:
            self._waiting.append(asyncio.ensure_future(self._written(event, samples, begin_s)))

    def add(self, event: Event) -> None:
        """Take another event."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Event) and last.kind == event.kind == "partial":
            self._waiting.pop()  # it is out of date before anybody could see it
        self._waiting.append(event)

    async def ready(self) -> list[Event]:
        """The events that wait for no earlier one any more."""
        tasks = list(self._tasks())
        if len(tasks) > MAX_WAITING:
            await asyncio.wait(tasks[:-MAX_WAITING])
        return self._ready()

    async def settled(self) -> list[Event]:
        """All events, when the last final text is written."""
        if tasks := list(self._tasks()):
            await asyncio.wait(tasks)
        return self._ready()

    async def late(self) -> bool:
        """Wait for the final text that other events wait for; False at once if there is none."""
        task = next(self._tasks(), None)
        if task is not None:
            await asyncio.wait([task])
        return task is not None

    async def close(self) -> None:
        """Give up what is not written yet."""
        tasks = list(self._tasks())
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _tasks(self) -> Iterator["asyncio.Task[Event]"]:
        return (each for each in self._waiting if isinstance(each, asyncio.Task))

    def _ready(self) -> list[Event]:
        events = []
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, asyncio.Task):
                if not first.done():
                    break
                first = first.result()
            events.append(first)
            self._waiting.popleft()
        return events

    async def _written(self, event: Event, samples: Samples, begin_s: float) -> Event:
        first = event.transcript
        assert first is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                second = await self._rewrite(samples)
        except TimeoutError:
            return self._failed(event, "timeout", f"it took more than {self._timeout_s:g} s")
        except TritoneError as error:
            return self._failed(event, "failed", str(error))
        text = replace(shifted(second, begin_s), audio_s=first.audio_s, segment=first.segment, is_final=True)
        if any(word.speaker for word in first.words):
            text = with_speakers(text, turns_of(first, ""))
        return self._known(replace(event, transcript=text, second_pass="done"))

    def _failed(self, event: Event, outcome: SecondPassOutcome, reason: str) -> Event:
        LOG.warning("segment %d of a stream keeps the text of the first pass (%s): %s", event.segment, outcome, reason)
        return self._known(replace(event, second_pass=outcome))

    def _known(self, event: Event) -> Event:
        self._on_event(event)
        return event
