"""sherpa-onnx's protocol for live streams: what clients of its online WebSocket server send to ws://HOST:6006.

    float32 samples at 16 kHz  ...  "Done"
        ->  {"text": "one two", "tokens": [...], "timestamps": [...], "is_final": false, ...}  ...  "Done!"

Source: k2-fsa/sherpa-onnx, sherpa-onnx/csrc/online-websocket-server-impl.cc, online-websocket-client.cc and
python-api-examples/online-websocket-client-*.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritone.audio.live import PlainSamples
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import SAMPLE_RATE, After, SocketConversation
from tritone.gateway.refusal import ErrorAnswer
from tritone.transcript import Transcript

END, ENDED = "Done", "Done!"


def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    """An error as both of sherpa-onnx's servers word it."""
    return {"text": "", "error": answer.message}


class OnlineConversation(SocketConversation):
    """One conversation."""

    protocol, path = "sherpa-onnx", "/sherpa-onnx"
    complaint = staticmethod(complaint)

    async def begin(self) -> None:
        self.audio = PlainSamples("<f4", SAMPLE_RATE)
        self._segment, self._start_s = 0, 0.0
        await self.open()

    async def ask(self) -> Ask:
        return Ask(model=self.socket.query.get("model", ""), turns=self.speech.turns)

    async def command(self, text: str) -> None:
        if text != END:
            raise InputError(f"expected float32 samples or {END!r}, got {text[:80]!r}")
        await self.finish()

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any] | str]:
        results = [(each.transcript, each) for each in events if each.transcript is not None]
        for index, (transcript, event) in enumerate(results, 1):
            is_final, is_last = event.kind == "final", after == "finish" and index == len(results)
            yield _result(transcript, event.segment, self._start_s, is_final=is_final, is_last=is_last)
            if is_final:
                self._segment, self._start_s = event.segment + 1, event.time_s
        if after == "finish":
            if not results:  # clients read the last one
                yield _result(Transcript(""), self._segment, self._start_s, is_final=True, is_last=True)
            yield ENDED


routes = OnlineConversation.routes


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
