"""LiveKit Agents hears a recording through the gateway and prints the turns: python with_livekit.py flux speech.wav

The plugins are LiveKit's own, unmodified: `flux` and `deepgram` speak Deepgram's protocols, `openai` OpenAI Realtime.
"""

import argparse
import asyncio
from typing import Any

import soundfile
from livekit import rtc
from livekit.agents import utils
from livekit.agents.stt import SpeechEventType
from livekit.plugins import deepgram, openai

PIECE_S, SILENCE_S = 0.1, 5


def plugin(name: str, gateway: str, model: str, rate: int, session: Any) -> Any:
    if name == "flux":
        return deepgram.STTv2(
            model=model,
            sample_rate=rate,
            eager_eot_threshold=0.3,
            api_key="any",
            base_url=f"ws://{gateway}/v2/listen",
            http_session=session,
        )
    if name == "deepgram":
        return deepgram.STT(
            model=model,
            sample_rate=rate,
            endpointing_ms=0,  # the classifier ends turns
            api_key="any",
            base_url=f"http://{gateway}/v1/listen",
            http_session=session,
        )
    turns: Any = {"type": "semantic_vad", "eagerness": "high"}
    return openai.STT(
        model=model, use_realtime=True, turn_detection=turns, api_key="any", base_url=f"http://{gateway}/v1"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", choices=["flux", "deepgram", "openai"])
    parser.add_argument("audio")
    parser.add_argument("--gateway", default="localhost:9000")
    parser.add_argument("--model", required=True, help="a served model, or an alias of the gateway")
    given = parser.parse_args()
    samples, rate = soundfile.read(given.audio, dtype="int16")
    async with utils.http_context.open() as session:
        stt = plugin(given.service, given.gateway, given.model, rate, session)
        stream = stt.stream()

        async def speak() -> None:
            """Send the recording in the time that it takes, and silence after it."""
            audio = samples.tobytes() + bytes(2 * rate * SILENCE_S)
            size = 2 * round(rate * PIECE_S)
            for start in range(0, len(audio), size):
                piece = audio[start : start + size]
                stream.push_frame(rtc.AudioFrame(piece, rate, 1, len(piece) // 2))
                await asyncio.sleep(PIECE_S)
            stream.end_input()

        speaking = asyncio.create_task(speak())
        async for event in stream:
            text = event.alternatives[0].text if event.alternatives else ""
            if event.type == SpeechEventType.START_OF_SPEECH:
                print("turn starts", flush=True)
            elif event.type == SpeechEventType.PREFLIGHT_TRANSCRIPT:
                print(f"turn may be ending: {text}", flush=True)
            elif event.type == SpeechEventType.FINAL_TRANSCRIPT:
                print(f"text: {text}", flush=True)
            elif event.type == SpeechEventType.END_OF_SPEECH:
                print("turn ends", flush=True)
        await speaking
        await stream.aclose()
        await stt.aclose()


if __name__ == "__main__":
    asyncio.run(main())
