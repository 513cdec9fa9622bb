"""sherpa-onnx's protocol for live streams: what clients of its online WebSocket server send to ws://HOST:6006.

    float32 samples at 16 kHz  ...  "Done"
        ->  {"text": "one two", "tokens": [...], "timestamps": [...], "is_final": false, ...}  ...  "Done!"

Source: k2-fsa/sherpa-onnx, sherpa-onnx/csrc/online-websocket-server-impl.cc, online-websocket-client.cc and
python-api-examples/online-websocket-client-*.py.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from tritone.audio.live import SampleStream
from tritone.errors import InputError
from tritone.gateway.ask import Ask
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

PROTOCOL = "sherpa-onnx"
SAMPLE_RATE = 16000  # Hz; the protocol names none
END, ENDED = "Done", "Done!"


def routes(gateway: "Gateway", path: str = f"/{PROTOCOL}") -> list[BaseRoute]:
    """The protocol at a path."""
    return [conversations(gateway, path, PROTOCOL, _talk, complaint)]


def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    """An error as both of sherpa-onnx's servers word it."""
    return {"text": "", "error": answer.message}


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    ask = Ask(model=socket.query.get("model", ""), turns=gateway.speech.turns)
    async with await gateway.speech.open(ask, SAMPLE_RATE, socket.caller) as live:
        samples = SampleStream("<f4")
        is_over, segment, start_s = False, 0, 0.0
        while not is_over:
            message = await socket.receive()
            if isinstance(message, bytes):
                events = await live.accept(samples.push(message))
            elif message == END:
                events = await live.finish()
                is_over = True
            else:
                raise InputError(f"expected float32 samples or {END!r}, got {message[:80]!r}")
            results = [(each.transcript, each) for each in events if each.transcript is not None]
            for index, (transcript, event) in enumerate(results, 1):
                is_final = event.kind == "final"
                is_last = is_over and index == len(results)
                await socket.send(_result(transcript, event.segment, start_s, is_final=is_final, is_last=is_last))
                if is_final:
                    segment, start_s = event.segment + 1, event.time_s
            if is_over and not results:  # clients read the last one
                await socket.send(_result(Transcript(""), segment, start_s, is_final=True, is_last=True))
        await socket.send(ENDED)


def _result(
    transcript: Transcript, segment: int, start_s: float, *, is_final: bool, is_last: bool
) -> Mapping[str, Any]:
    """A result; times of tokens count from `start_s`, where the segment begins."""
    return {
        "text": transcript.text,
        "tokens": [each.text for each in transcript.tokens],
        "timestamps": [round(each.start_s - start_s, 2) for each in transcript.tokens],
        "ys_probs": [],
        "lm_probs": [],
        "context_scores": [],
        "segment": segment,
        "words": [],
        "start_time": round(start_s, 2),
        "is_final": is_final,
        "is_eof": is_last,
    }
