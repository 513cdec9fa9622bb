"""The model that Triton runs for a voice: it answers a request once for each sentence of its text.

requests  ->  taken at once  ->  a sentence of each in turn, from a thread of their own

Requests take turns by sentences, so that the first words of one do not wait for the end of a long text.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.audio.spoken import Spoken
from tritone.backend import heartbeat, offline
from tritone.backend.continuous import HELD_POLL_S
from tritone.backend.metrics import Outcome, outcome_of
from tritone.backend.process import batch
from tritone.backend.replies import error_reply, reply
from tritone.errors import TritoneError
from tritone.pipelines.isolation import as_value

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MOST_UNDER_WAY = 32  # requests; further ones wait in Triton's queue, with its limits


@dataclass
class _Text:
    """A text that is being spoken. `sender`: of its answers."""

    sender: Any
    sentences: Iterator[Spoken]


class TritonPythonModel(offline.TritonPythonModel):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        super().initialize(args)
        self._under_way = 0
        self._outcomes: list[Outcome] = []
        self._lock = threading.Lock()
        self._texts: SimpleQueue[_Text] = SimpleQueue()
        threading.Thread(target=self._speak_all, name="sentences", daemon=True).start()

    def execute(self, requests: Sequence[Any]) -> None:  # type: ignore[override]
        """Begin to speak; Triton wants nothing returned from such a model."""
        for request in requests:
            with heartbeat.waiting():
                while self._under_way >= MOST_UNDER_WAY:
                    time.sleep(HELD_POLL_S)
            with batch():
                self._begin_text(request)
        self._report()

    def finalize(self) -> None:
        """As of a `BatchModel`, with what was answered since the last request."""
        self._report()
        super().finalize()

    def _begin_text(self, request: Any) -> None:
        sender = request.get_response_sender()
        with self._lock:
            self._under_way += 1
        try:
            job = self._parse(request)
            (text,) = job.rows
            self._texts.put(_Text(sender, self._pipeline.stream(text, job.options)))
        except Exception as error:
            self._end(sender, as_value(error))

    def _speak_all(self) -> None:
        while True:
            text = self._texts.get()
            try:
                spoken = None if text.sender.is_cancelled() else next(text.sentences, None)
                if spoken is None:
                    self._end(text.sender, None)
                    continue
                text.sender.send(reply(self._kind.answer([spoken], ())))
            except Exception as error:
                self._end(text.sender, as_value(error))
                continue
            self._texts.put(text)

    def _end(self, sender: Any, fault: TritoneError | None) -> None:
        with self._lock:
            self._under_way -= 1
            self._outcomes.append(outcome_of(fault))
        with suppress(Exception):  # of a client that is gone
            if fault is not None:
                sender.send(error_reply(fault))
            sender.send(flags=FINAL)

    def _report(self) -> None:
        """Count what was answered; here, since Triton hangs when other threads tell it numbers."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        work = self._pipeline.work.take()
        self._metrics.count(outcomes, work, work.network_s + work.search_s)
