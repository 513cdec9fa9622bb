"""Words of recordings and of live streams get speakers, through a real Triton of toy models."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

from toy import FRAME, SAMPLE_RATE, TOKENS
from tritone.gateway.callers import Caller
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.speech import Ask, SpeakerOptions

CALLER = Caller(door="test")
PAUSE = np.zeros(SAMPLE_RATE, np.float32)
# A letter's level lasts for so many frames where it begins a word, 0.8 s, and as others for two.
FIRST, OTHERS = 20, 2
# The level of `MW` is mostly 15, that of `WM` 25 (of 64): to the toy speaker model these are two voices.
MW, WM = "mw", "wm"


def said(text: str) -> Any:
    """Audio of levels that last, which the toy models hear as voices, and as text by their differences."""
    ids = [TOKENS.index("▁" if letter == " " else letter) for letter in text]
    lasting = [FIRST if not number or text[number - 1] == " " else OTHERS for number in range(len(text))]
    return np.repeat(np.cumsum(ids) % 40 / 64, np.array(lasting) * FRAME).astype(np.float32)


def test_words_of_a_recording_get_speakers(gateway: Any, run: Any) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.append(said(f"{MW} {WM}"), PAUSE), SAMPLE_RATE, format="WAV", subtype="FLOAT")
    ask = Ask(model="toy", details=False, speakers=SpeakerOptions(num_speakers=2))
    speech = gateway.gateway.speech
    found = run(speech.transcribe(file.getvalue(), ask, CALLER))
    assert [(word.text, word.speaker) for word in found.words] == [(MW, "speaker1"), (WM, "speaker2")]

    async def parts() -> list[Any]:
        return [part async for part in speech.parts(file.getvalue(), ask, CALLER)]

    assert run(parts()) == [found]
    unknown = replace(ask, speakers=SpeakerOptions(model="nobody"))
    with pytest.raises(GatewayRefusal, match="nobody"):
        run(speech.transcribe(file.getvalue(), unknown, CALLER))


def test_segments_of_a_stream_keep_the_speakers_that_they_got(gateway: Any, run: Any) -> None:
    audio = np.concatenate([part for word in (MW, WM, MW) for part in (said(word), PAUSE)])

    async def finals(ask: Ask) -> list[Any]:
        events = []
        async with await gateway.gateway.speech.open(ask, SAMPLE_RATE, CALLER) as live:
            for begin in range(0, len(audio), 4000):
                events += await live.accept(audio[begin : begin + 4000])
            events += await live.finish()
        return [each.transcript for each in events if each.kind == "final" and each.transcript.words]

    ask = Ask(model="live", speakers=SpeakerOptions())
    assert [(each.words[0].text, each.words[0].speaker) for each in run(finals(ask))] == [
        *((MW, "speaker1"), (WM, "speaker2"), (MW, "speaker1"))
    ]
    with pytest.raises(GatewayRefusal, match="nobody"):
        run(finals(replace(ask, speakers=SpeakerOptions(model="nobody"))))
