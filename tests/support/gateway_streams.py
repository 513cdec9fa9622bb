"""Live streams through the gateway's `Speech`, of audio whose texts can be told: what comes back, event by event."""

from typing import Any

import numpy as np
import numpy.typing as npt

from toy import CONTEXT, SAMPLE_RATE, toy_waveform
from tritone.gateway.ask import Ask, Event
from tritone.gateway.callers import Caller

CALLER = Caller(protocol="test")
# Words after which a pause is silence to the toy model: the levels of their letters add up to its number of tokens.
ONE, NEO = "one", "neo"


def whole_frames(text: str, frames_per_token: int = 1) -> npt.NDArray[np.float32]:
    """The waveform of a text without what its last frame looks at after itself, so that more may follow."""
    return toy_waveform(text, frames_per_token)[:-CONTEXT]


async def events_of(speech: Any, ask: Ask, audio: Any, *, piece: int = 1000, commit_at: int = -1) -> list[Event]:
    """What a stream answers that gets audio in pieces of so many samples, and a commit before sample `commit_at`."""
    events: list[Event] = []
    async with await speech.open(ask, SAMPLE_RATE, CALLER) as live:
        for begin in range(0, len(audio), piece):
            if begin == commit_at:
                events += await live.commit()
            events += await live.accept(audio[begin : begin + piece])
        events += await live.finish()
        assert not await live.late()  # all has come by then
    return events
