"""Pipecat hears a recording through the gateway and prints the turns: python with_pipecat.py flux speech.wav

The services are Pipecat's own, unmodified: `flux` and `deepgram` speak Deepgram's protocols, `openai` OpenAI Realtime.
"""

import argparse
import asyncio
from typing import Any

import soundfile
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TranscriptionFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService

PIECE_S, SILENCE_S = 0.1, 5


def service(name: str, gateway: str, model: str) -> Any:
    if name == "flux":
        settings: Any = DeepgramFluxSTTService.Settings(model=model, eager_eot_threshold=0.3)
        return DeepgramFluxSTTService(api_key="any", url=f"ws://{gateway}/v2/listen", settings=settings)
    if name == "deepgram":
        settings = DeepgramSTTService.Settings(model=model)
        return DeepgramSTTService(api_key="any", base_url=f"ws://{gateway}", settings=settings)
    turns = {"type": "semantic_vad", "eagerness": "high"}
    settings = OpenAIRealtimeSTTService.Settings(model=model)
    return OpenAIRealtimeSTTService(
        api_key="any", base_url=f"ws://{gateway}/v1/realtime", turn_detection=turns, settings=settings
    )


class Printer(FrameProcessor):
    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ProposedUserStartedSpeakingFrame):
            print("turn starts", flush=True)
        elif isinstance(frame, TranscriptionFrame):
            print(f"text: {frame.text}", flush=True)
        elif isinstance(frame, ProposedUserStoppedSpeakingFrame):
            print("turn ends", flush=True)
        await self.push_frame(frame, direction)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service", choices=["flux", "deepgram", "openai"])
    parser.add_argument("audio")
    parser.add_argument("--gateway", default="localhost:9000")
    parser.add_argument("--model", required=True, help="a served model, or an alias of the gateway")
    given = parser.parse_args()
    samples, rate = soundfile.read(given.audio, dtype="int16")
    stt = service(given.service, given.gateway, given.model)
    if given.service == "flux":

        @stt.event_handler("on_eager_end_of_turn")
        async def on_eager_end_of_turn(service: Any, transcript: str) -> None:
            print(f"turn may be ending: {transcript}", flush=True)

        @stt.event_handler("on_turn_resumed")
        async def on_turn_resumed(service: Any) -> None:
            print("turn goes on", flush=True)

    task = PipelineTask(Pipeline([stt, Printer()]), params=PipelineParams(audio_in_sample_rate=rate))

    async def speak() -> None:
        """Send the recording in the time that it takes, and silence after it."""
        await asyncio.sleep(1)  # until the pipeline has connected
        audio = samples.tobytes() + bytes(2 * rate * SILENCE_S)
        size = 2 * round(rate * PIECE_S)
        for start in range(0, len(audio), size):
            await task.queue_frame(InputAudioRawFrame(audio[start : start + size], rate, 1))
            await asyncio.sleep(PIECE_S)
        await task.queue_frame(EndFrame())

    await asyncio.gather(PipelineRunner(handle_sigint=False).run(task), speak())


if __name__ == "__main__":
    asyncio.run(main())
