"""WeNet's protocol: what clients of its websocket_server_main send to ws://HOST:10086.

    {"signal": "start", "nbest": 1, "continuous_decoding": true}  int16 samples at 16 kHz  ...  {"signal": "end"}
        ->  {"status": "ok", "type": "server_ready"}, "partial_result" ..., "final_result" ..., "speech_end"

`nbest` of a result is JSON within JSON: [{"sentence": "one two", "word_pieces": [{"word": "one", "start": 120, ...}]}],
times in milliseconds.

Source: wenet-e2e/wenet, runtime/core/websocket and runtime/core/bin/websocket_client_main.cc.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from tritone.audio.live import SampleStream
from tritone.errors import InputError
from tritone.gateway.ask import Ask
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.transcript import Alternative, Span, Transcript

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

PROTOCOL = "wenet"
SAMPLE_RATE = 16000  # Hz; the protocol names none


def routes(gateway: "Gateway", path: str = "/wenet") -> list[BaseRoute]:
    """The protocol at a path."""
    return [conversations(gateway, path, PROTOCOL, _talk, _complaint)]


def _complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    return {"status": "failed", "message": answer.message}


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    nbest, is_continuous = await _start(socket)
    model = await gateway.speech.live_model(socket.query.get("model", ""))
    # It is the most there may be, and greedy search has one.
    search = {"nbest": nbest} if nbest > 1 and model.has_beam else {}
    ask = Ask(model=model.name, search=search, turns=gateway.speech.turns)
    async with await gateway.speech.open(ask, SAMPLE_RATE, socket.caller) as live:
        await socket.send({"status": "ok", "type": "server_ready"})
        samples = SampleStream("<i2")
        is_over = False
        while not is_over:
            message = await socket.receive()
            if isinstance(message, bytes):
                events = await live.accept(samples.push(message))
            elif _signal(read_json(message)) == "end":
                events = await live.finish()
                is_over = True
            else:
                raise InputError('the stream has started: send audio, or {"signal": "end"}')
            results = [(each.kind, each.transcript) for each in events if each.transcript is not None]
            if is_over and not any(kind == "final" for kind, _ in results):
                results.append(("final", Transcript("")))  # clients wait for one
            for kind, transcript in results:
                await socket.send(_result(transcript, nbest, is_final=kind == "final"))
                if kind == "final" and not is_continuous:
                    is_over = True
                    break
        await socket.send({"status": "ok", "type": "speech_end"})


async def _start(socket: Socket) -> tuple[int, bool]:
    """Wait for the signal; returns the number of readings wanted, and whether the stream goes on after a result."""
    message = await socket.receive()
    if isinstance(message, bytes):
        raise InputError('audio came before its start: send {"signal": "start"} first')
    fields = read_json(message)
    if _signal(fields) != "start":
        raise InputError('the stream has not started: send {"signal": "start"} first')
    nbest, is_continuous = fields.get("nbest", 1), fields.get("continuous_decoding", False)
    if not isinstance(nbest, int) or isinstance(nbest, bool) or nbest < 1:
        raise InputError(f"nbest must be a whole number of at least 1, got {str(nbest)[:80]}")
    if not isinstance(is_continuous, bool):
        raise InputError(f"continuous_decoding must be true or false, got {str(is_continuous)[:80]}")
    return nbest, is_continuous


def _signal(fields: Mapping[str, Any]) -> str:
    signal = fields.get("signal")
    if signal not in ("start", "end"):
        raise InputError(f'a message must have "signal": "start" or "end", got {str(dict(fields))[:80]}')
    return str(signal)


def _result(transcript: Transcript, nbest: int, *, is_final: bool) -> Mapping[str, Any]:
    readings: Sequence[Transcript | Alternative] = transcript.alternatives[:nbest] or (transcript,)
    paths = [
        {"sentence": each.text, "word_pieces": _pieces(each.tokens)} if is_final else {"sentence": each.text}
        for each in readings
    ]
    return {
        "status": "ok",
        "type": "final_result" if is_final else "partial_result",
        "nbest": json.dumps(paths, ensure_ascii=False),
    }


def _pieces(tokens: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {"word": each.text, "start": round(1000 * each.start_s), "end": round(1000 * each.end_s)} for each in tokens
    ]
