"""Requests to a pipeline that takes new ones at any time: each is answered when it is done, whatever else goes on.

requests  ->  submitted at once  ->  answers, in any order, from a thread of their own

Triton's `execute` returns before the answers, so the next batch comes while this one is computed. It is held back while
the pipeline has more than it can begin soon; what waits then waits in Triton's own queue, with its limits.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend.metrics import Outcome, outcome_of
from tritone.backend.replies import error_reply
from tritone.errors import TritoneError
from tritone.pipelines.isolation import as_value, attempt

HELD_POLL_S = 0.001


class Answering:
    """Sends answers of requests that are under way, from one thread."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        """Take what says whether another request may begin; further ones are held back."""
        self._has_room = has_room
        self._outcomes: list[Outcome] = []
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._send_all, name="answers", daemon=True).start()

    def hold(self) -> None:
        """Wait until another request may begin."""
        while not self._has_room():
            time.sleep(HELD_POLL_S)

    def begin(self, request: Any, rows: int, worded: Callable[[Sequence[Any]], Any]) -> "Waiting":
        """A request that comes under way.

        Args:
            rows: results that it waits for.
            worded: makes an answer of them, or a `TritoneError`.
        """
        return Waiting(self, request.get_response_sender(), rows, worded)

    def later(self, send: Callable[[], Outcome]) -> None:
        """Have an answer sent."""
        self._queue.put(partial(self._sent, send))

    def take(self) -> list[Outcome]:
        """The outcomes since the last call of this method."""
        with self._lock:
            found, self._outcomes = self._outcomes, []
        return found

    def _sent(self, send: Callable[[], Outcome]) -> None:
        outcome: Outcome = "failed"
        try:
            outcome = send()
        except Exception as error:  # the client may be gone
            pb_utils.Logger.log_warn(f"an answer could not be sent: {error}")
        finally:
            with self._lock:
                self._outcomes.append(outcome)

    def _send_all(self) -> None:
        while True:
            self._queue.get()()


class Waiting:
    """One request under way, and the results of its rows so far."""

    def __init__(self, answering: Answering, sender: Any, rows: int, worded: Callable[[Sequence[Any]], Any]) -> None:
        self._answering, self._sender, self._worded = answering, sender, worded
        self._results: list[Any] = [None] * rows
        self._left = rows
        self._lock = threading.Lock()

    def done(self, row: int, result: Any) -> None:
        """A row has its result or error; after the last one the answer is sent."""
        with self._lock:
            self._results[row] = result
            self._left -= 1
            is_last = not self._left
        if is_last:
            self.answer(lambda: self._worded(self._results))

    def answer(self, make: Callable[[], Any]) -> None:
        """Have the request answered with what `make` returns or raises, an answer or a `TritoneError`."""

        def send() -> Outcome:
            try:
                answer = make()
            except Exception as error:
                answer = as_value(error)
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            self._sender.send(error_reply(answer) if isinstance(answer, TritoneError) else answer, flags=final)
            return outcome_of(answer)

        self._answering.later(send)

    def given_up(self) -> bool:
        """Whether its client waits no more."""
        found = attempt(lambda sender: sender.is_cancelled(), self._sender)
        return found is True
