"""Words of recordings and of live streams get speakers, through a real Triton of toy models."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect

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


def test_words_of_a_recording_get_speakers(gateway: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(speech, "_options", replace(speech._options, speaker_model="nobody"))
    with pytest.raises(GatewayRefusal, match="nobody"):
        run(speech.transcribe(file.getvalue(), ask, CALLER))
    named = replace(ask, speakers=SpeakerOptions(model="voices", num_speakers=2))
    assert run(speech.transcribe(file.getvalue(), named, CALLER)) == found


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


def conversation() -> bytes:
    """Two words of two voices with a pause between them, as 16-bit samples."""
    audio = np.concatenate([part for word in (LOW, HIGH) for part in (said(word), said(word[-1:] * 3))])
    return bytes((audio * 32767).astype("<i2").tobytes())


def messages(gateway: Any, path: str, start: dict[str, Any] | None, end: dict[str, Any]) -> list[dict[str, Any]]:
    """What a WebSocket answers to the conversation."""
    data = conversation()
    with connect(f"ws://127.0.0.1:{gateway.port}{path}") as socket:
        if start is not None:
            socket.send(json.dumps(start))
        for begin in range(0, len(data), 6400):
            socket.send(data[begin : begin + 6400])
        socket.send(json.dumps(end))
        return [json.loads(each) for each in socket]


def labels_of(words: Sequence[dict[str, Any]]) -> list[Any]:
    """The speakers in their order; of the first letter too little was said to know one."""
    return list(dict.fromkeys(word["speaker"] for word in words if "speaker" in word))


def test_texts_that_grow_say_who_speaks_on_our_websocket(gateway: Any) -> None:
    start = {"type": "start", "model": "live", "words": True, "speakers": True}
    found = messages(gateway, "/v1/stream", start, {"type": "end"})
    for kind in ("partial", "final"):
        words = [word for each in found if each["type"] == kind for word in each["words"]]
        assert labels_of(words) == ["speaker1", "speaker2"], kind


def test_interim_results_say_who_speaks_as_deepgram_does(gateway: Any) -> None:
    path = f"/v1/listen?model=live&encoding=linear16&sample_rate={SAMPLE_RATE}&diarize=true&interim_results=true"
    found = [each for each in messages(gateway, path, None, {"type": "CloseStream"}) if each["type"] == "Results"]
    for is_final in (False, True):
        words = [
            word
            for each in found
            if each["is_final"] == is_final
            for word in each["channel"]["alternatives"][0]["words"]
        ]
        assert labels_of(words) == [0, 1], is_final
