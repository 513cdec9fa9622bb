"""Live streams: 16-bit samples at 16 kHz come in binary messages, and a line for each utterance goes out.

    samples  ...  "line"  samples  ...  "end"
        ->  "one two"  ...  "three"  "."

"line" ends an utterance, as silence does. An error is a line that begins with "!", and the end of the connection.
"""

from collections.abc import Iterator, Sequence

from lines.options import LinesOptions
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.refusal import ErrorAnswer


class LinesConversation(SocketConversation):
    """The conversation with one client."""

    protocol, path = "lines", "/lines/live"

    @staticmethod
    def complaint(answer: ErrorAnswer) -> str:
        return f"! {answer.message}"

    async def ask(self) -> Ask:
        """What is asked of the models."""
        return Ask(model=self.socket.query.get("model", ""), turns=self.speech.turns)

    async def command(self, text: str) -> None:
        """A message of text; binary ones are audio, and taken by the class above."""
        if text == "line":
            await self.commit()
        elif text == "end":
            await self.finish()
        else:
            raise InputError(f"expected audio, 'line' or 'end', got {text[:80]!r}")

    def messages(self, events: Sequence[Event], after: After) -> Iterator[str]:
        """What events become."""
        has_times = self.gateway.options.of("lines", LinesOptions).lines_times
        for event in events:
            if event.kind == "final" and event.transcript is not None and event.transcript.text:
                yield f"{event.time_s:.1f} {event.transcript.text}" if has_times else event.transcript.text
        if after == "finish":
            yield "."


routes = LinesConversation.routes
