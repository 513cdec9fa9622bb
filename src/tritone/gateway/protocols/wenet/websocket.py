"""WeNet's protocol: what clients of its websocket_server_main send to ws://HOST:10086.

    {"signal": "start", "nbest": 1, "continuous_decoding": true}  int16 samples at 16 kHz  ...  {"signal": "end"}
        ->  {"status": "ok", "type": "server_ready"}, "partial_result" ..., "final_result" ..., "speech_end"

`nbest` of a result is JSON within JSON: [{"sentence": "one two", "word_pieces": [{"word": "one", "start": 120, ...}]}],
times in milliseconds.

Source: wenet-e2e/wenet, runtime/core/websocket and runtime/core/bin/websocket_client_main.cc.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import read_json
from tritone.transcript import Alternative, Span, Transcript


class WenetConversation(SocketConversation):
    """One conversation, whose first message says how many readings are wanted, and whether it ends with a result."""

    protocol, path = "wenet", "/wenet"

    @staticmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
        return {"status": "failed", "message": answer.message}

    async def begin(self) -> None:
        message = await self.receive()
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
        self._nbest, self._is_continuous = nbest, is_continuous
        await self.open()
        await self.socket.send({"status": "ok", "type": "server_ready"})

    async def ask(self) -> Ask:
        model = await self.speech.live_model(self.socket.query.get("model", ""))
        # It is the most there may be, and greedy search has one.
        search = {"nbest": self._nbest} if self._nbest > 1 and model.has_beam else {}
        return Ask(model=model.name, search=search, turns=self.speech.turns)

    async def command(self, text: str) -> None:
        if _signal(read_json(text)) != "end":
            raise InputError('the stream has started: send audio, or {"signal": "end"}')
        await self.finish()

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any]]:
        results = [(each.kind, each.transcript) for each in events if each.transcript is not None]
        self.is_over = after == "finish"
        if self.is_over and not any(kind == "final" for kind, _ in results):
            results.append(("final", Transcript("")))  # clients wait for one
        for kind, transcript in results:
            yield _result(transcript, self._nbest, is_final=kind == "final")
            if kind == "final" and not self._is_continuous:
                self.is_over = True
                break
        if self.is_over:
            yield {"status": "ok", "type": "speech_end"}


routes = WenetConversation.routes


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
