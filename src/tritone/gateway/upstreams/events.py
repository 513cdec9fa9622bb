"""The text of a transcription that an upstream sends while it writes it, in server-sent events.

    events.feed(b'data: {"type":"transcript.text.delta","delta":"Good"}\\n\\n')   ->  on_text("Good")
    events.transcript(audio_s)                                                   ->  Transcript, or `ServerAnswerError`

Events are OpenAI's (`transcript.text.delta`, `transcript.text.done`), or vLLM's chunks, which end with `[DONE]`; others
are left out. A server that knows no `stream` answers in JSON, as OpenAI's does for whisper-1.
"""

from collections.abc import Callable
from typing import Any

from tritone.errors import ServerAnswerError
from tritone.gateway.upstreams.answers import message_of, read_object, read_transcript, text_of
from tritone.transcript import Transcript

END = b"[DONE]"


class TextEvents:
    """The events of one answer.

    Args:
        on_text: called with the text so far, whenever there is more of it.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._text = ""
        self._unread = bytearray()
        self._data: list[bytes] = []  # lines of the event under way
        self._is_json: bool | None = None  # None: nothing came yet
        self._is_complete = False
        self._error: ServerAnswerError | None = None

    def feed(self, part: bytes) -> None:
        """Take a part of the answer, cut anywhere. What is wrong with it is raised by `transcript`."""
        self._unread += part
        if self._is_json is None and (start := self._unread.lstrip()[:1]):
            self._is_json = start == b"{"
        end = self._unread.rfind(b"\n")
        if self._is_json is not False or end < 0:
            return
        lines = bytes(self._unread[:end]).split(b"\n")
        del self._unread[: end + 1]
        for line in lines:
            self._take(line.removesuffix(b"\r"))

    def transcript(self, audio_s: float) -> Transcript:
        """The whole text, when the answer has ended; raises `ServerAnswerError` if it is not complete."""
        if self._is_json is not False:
            return read_transcript(bytes(self._unread), "none", audio_s)
        for line in (bytes(self._unread), b""):  # the last event may lack its empty line
            self._take(line)
        if self._error is not None:
            raise self._error
        if not self._is_complete:
            raise ServerAnswerError("its events ended before the text did")
        return Transcript(text=self._text.strip(), audio_s=audio_s)

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data = b"\n".join(self._data)
            self._data.clear()
            if self._error is None:
                try:
                    self._event(data)
                except ServerAnswerError as error:
                    self._error = error

    def _event(self, data: bytes) -> None:
        if data.strip() == END:
            self._is_complete = True
            return
        event = read_object(data)
        if event.get("error") or "error" in (event.get("object"), event.get("type")):
            raise ServerAnswerError(f"it failed within the text: {message_of(data) or 'no message'}")
        choices = event.get("choices")
        if event.get("type") == "transcript.text.delta":
            self._add(text_of(event, "delta"))
        elif event.get("type") == "transcript.text.done":
            self._text, self._is_complete = text_of(event, "text"), True
        elif isinstance(choices, list) and choices:
            self._add(_content(choices[0]))

    def _add(self, delta: str) -> None:
        if delta:
            self._text += delta
            self._on_text(self._text.strip())


def _content(choice: Any) -> str:
    """The text of a choice of vLLM; the last one may have none."""
    delta = choice.get("delta") if isinstance(choice, dict) else None
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""
