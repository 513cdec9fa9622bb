"""The text of a transcription that an upstream sends while it writes it, in server-sent events.

    events.feed(b'data: {"type":"transcript.text.delta","delta":"Good"}\\n\\n')   ->  on_text("Good")
    events.transcript(audio_s)                                                   ->  Transcript, or `ServerAnswerError`

Events are OpenAI's (`transcript.text.delta`, `transcript.text.done`), or vLLM's chunks, which end with `[DONE]`; others
are left out. A server that knows no `stream` answers in JSON, as OpenAI's does for whisper-1. Whatever comes takes time
in proportion to its length, and events, lines and text have limits.
"""

from collections.abc import Callable
from typing import Any

from tritone.errors import ServerAnswerError
from tritone.gateway.upstreams.answers import (
    MAX_CHARS,
    code_of,
    message_of,
    read_object,
    read_transcript,
    shortened,
    text_of,
)
from tritone.transcript import Transcript

END = b"[DONE]"
MAX_EVENTS = 50_000  # four hours of speech, a token each
MAX_LINES = 4 * MAX_EVENTS  # with comments and empty ones
STEPS = 1000  # a text is passed on when this part of it is new, so that long ones are not copied for each word


class TextEvents:
    """The events of one answer.

    Args:
        on_text: called with the text so far when there is more of it, once for each part that is taken.
        clean: what may be shown of a server's message and the code with it.
    """

    def __init__(
        self,
        on_text: Callable[[str], None],
        clean: Callable[[str, str], str] = lambda message, code: shortened(message),
    ) -> None:
        self._on_text, self._clean = on_text, clean
        self._texts: list[str] = []  # that make the text
        self._num_chars = self._num_passed_on = 0
        self._unread = bytearray()  # a line that is not whole, or JSON
        self._num_lines = self._num_events = 0
        self._data: list[bytes] = []  # lines of the event under way
        self._is_json: bool | None = None  # None: nothing came yet
        self._is_complete = False
        self._error: ServerAnswerError | None = None

    def feed(self, part: bytes) -> None:
        """Take a part of the answer, cut anywhere. What is wrong with it is raised by `transcript`."""
        if self._is_json is None:
            part = part.lstrip()
            self._is_json = part.startswith(b"{") if part else None
        if self._error is not None:
            return
        end = -1 if self._is_json else part.rfind(b"\n")
        if end < 0:
            self._unread += part
            return
        lines = (bytes(self._unread) + part[:end]).split(b"\n")
        self._unread = bytearray(part[end + 1 :])
        self._num_lines += len(lines)
        if self._num_lines > MAX_LINES:
            self._error = ServerAnswerError(f"it sent more than {MAX_LINES} lines")
        for line in lines:
            if self._error is None:
                self._take(line.removesuffix(b"\r"))
        if self._num_chars > self._num_passed_on * (1 + 1 / STEPS):
            self._num_passed_on = self._num_chars
            self._on_text(self._text.strip())

    def transcript(self, audio_s: float) -> Transcript:
        """The whole text, when the answer has ended; raises `ServerAnswerError` if it is not complete."""
        if self._is_json is not False:
            return read_transcript(bytes(self._unread), "none", audio_s)
        for line in (bytes(self._unread), b""):  # the last event may lack its empty line
            if self._error is None:
                self._take(line)
        if self._error is not None:
            raise self._error
        if not self._is_complete:
            raise ServerAnswerError("its events ended before the text did")
        return Transcript(text=self._text.strip(), audio_s=audio_s)

    @property
    def _text(self) -> str:
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data = b"\n".join(self._data)
            self._data.clear()
            try:
                self._event(data)
            except ServerAnswerError as error:
                self._error = error

    def _event(self, data: bytes) -> None:
        self._num_events += 1
        if self._num_events > MAX_EVENTS:
            raise ServerAnswerError(f"it sent more than {MAX_EVENTS} events")
        if data.strip() == END:
            self._is_complete = True
            return
        event = read_object(data)
        if event.get("error") or "error" in (event.get("object"), event.get("type")):
            message = self._clean(message_of(data), code_of(data)) or "no message"
            raise ServerAnswerError(f"it failed within the text: {message}")
        choices = event.get("choices")
        if event.get("type") == "transcript.text.delta":
            self._add(text_of(event, "delta"))
        elif event.get("type") == "transcript.text.done":
            self._texts, self._is_complete = [text_of(event, "text")], True
        elif isinstance(choices, list) and choices:
            self._add(_content(choices[0]))

    def _add(self, delta: str) -> None:
        self._texts.append(delta)
        self._num_chars += len(delta)
        if self._num_chars > MAX_CHARS:
            raise ServerAnswerError(f"its text has more than {MAX_CHARS} characters")


def _content(choice: Any) -> str:
    """The text of a choice of vLLM; the last one may have none."""
    delta = choice.get("delta") if isinstance(choice, dict) else None
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""
