"""Two passes: a stronger model for whole recordings writes the final text of a segment that was recognised live."""

from dataclasses import replace
from typing import TYPE_CHECKING

from tritone.audio.waveform import Samples
from tritone.gateway.ask import Ask
from tritone.gateway.callers import Caller
from tritone.transcript import Transcript, shifted

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech


async def revised(
    speech: "Speech", found: Transcript, ask: Ask, caller: Caller, audio: tuple[Samples, int, float]
) -> Transcript:
    """The transcript that `ask.final_model` writes of a segment.

    Args:
        found: of the first pass; of a segment without text it stays as it is.
        audio: (samples,) of the segment, their rate in Hz, and where they begin in the stream, in seconds.
    """
    samples, sample_rate, begin_s = audio
    if not found.text or not samples.size:
        return found
    second = await speech.once(samples, sample_rate, ask.final_model, ask, caller)
    return replace(shifted(second, begin_s), segment=found.segment)
