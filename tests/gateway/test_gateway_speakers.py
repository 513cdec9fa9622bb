"""Words of recordings and of live streams get speakers, through a real Triton of toy models."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

from toy import CONTEXT, FRAME, SAMPLE_RATE
from tritone.gateway.callers import Caller
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.speech import Ask, SpeakerOptions

CALLER = Caller(protocol="test")
FRAMES = 8  # of each letter, 0.32 s: pauses end segments after 0.4 s
# Levels of two words (of 64), which are two voices to the toy speaker model. The toy model writes letters for their
# differences, and a level that lasts is a pause to it.
LOW, HIGH = (10, 13, 16), (34, 37, 34)
SPACE = 2  # more than the level before is a space


def said(levels: Sequence[int]) -> Any:
    return np.repeat(np.array(levels) / 64, FRAMES * FRAME).astype(np.float32)


def test_words_of_a_recording_get_speakers(gateway: Any, run: Any) -> None:
    file = io.BytesIO()
    audio = said([*LOW, LOW[-1] + SPACE, *HIGH])
    soundfile.write(file, np.append(audio, audio[-CONTEXT:]), SAMPLE_RATE, format="WAV", subtype="FLOAT")
    ask = Ask(model="toy", details=False, speakers=SpeakerOptions(num_speakers=2))
    speech = gateway.gateway.speech
    found = run(speech.transcribe(file.getvalue(), ask, CALLER))
    assert [word.speaker for word in found.words] == ["speaker1", "speaker2"]

    async def parts() -> list[Any]:
        return [part async for part in speech.parts(file.getvalue(), ask, CALLER)]

    assert run(parts()) == [found]
    unknown = replace(ask, speakers=SpeakerOptions(model="nobody"))
    with pytest.raises(GatewayRefusal, match="nobody"):
        run(speech.transcribe(file.getvalue(), unknown, CALLER))


def test_words_of_a_stream_get_speakers_as_they_come_and_keep_them(gateway: Any, run: Any) -> None:
    audio = np.concatenate([part for word in (LOW, HIGH, LOW) for part in (said(word), said(word[-1:] * 3))])

    async def texts(ask: Ask) -> list[Any]:
        events = []
        async with await gateway.gateway.speech.open(ask, SAMPLE_RATE, CALLER) as live:
            for begin in range(0, len(audio), 4000):
                events += await live.accept(audio[begin : begin + 4000])
            events += await live.finish()
        return [each for each in events if each.transcript is not None and each.transcript.words]

    ask = Ask(model="live", speakers=SpeakerOptions())
    found = run(texts(ask))
    finals = [each.transcript.words[0].speaker for each in found if each.kind == "final"]
    assert finals == ["speaker1", "speaker2", "speaker1"]
    # They are known before the segment ends: in the last text that still grows all words have them.
    growing = {each.segment: each.transcript.words for each in found if each.kind == "partial"}
    assert [{word.speaker for word in growing[segment]} for segment in sorted(growing)] == [{each} for each in finals]
    with pytest.raises(GatewayRefusal, match="nobody"):
        run(texts(replace(ask, speakers=SpeakerOptions(model="nobody"))))
