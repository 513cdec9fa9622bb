"""Sending again what the server could not take: which errors, when, how often.

Whole utterances and questions about models may be sent again, for they change nothing on the server. Chunks of a stream
may not: after a lost answer nobody knows what the server has received (`ClientStream` starts a stream again itself).
"""

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tritone.client.transport import AroundTransport, Call, Transport
from tritone.errors import ServerBusyError, ServerUnreachableError, TritoneError
from tritone.net.loop_thread import LoopThread

if TYPE_CHECKING:
    pass

Answer = TypeVar("Answer")

FIRST_S = 0.25  # before the second attempt, about; doubled before each further one
LONGEST_S = 10.0
JITTER = 0.5  # the share of a wait that is random, so that clients refused together do not come back together


@dataclass(frozen=True)
class Retries:
    """How often a request may be sent again; 0 is never."""

    limit: int = 0

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"retries must be at least 0, got {self.limit}")

    def wait_s(
        self, error: BaseException | None, attempts: int, deadline: float, *, hinted: bool = True
    ) -> float | None:
        """How long to wait before another attempt, in seconds; None if there must be none.

        Args:
            error: of the last attempt.
            attempts: how many were made.
            deadline: when all must be over, by `time.monotonic`.
            hinted: whether to wait as long as the server asks for.
        """
        if attempts > self.limit or not isinstance(error, ServerBusyError | ServerUnreachableError):
            return None
        wait_s = min(FIRST_S * 2 ** (attempts - 1), LONGEST_S)
        wait_s *= 1 - JITTER * random.random()
        if hinted and error.retry_after_s is not None:  # never before the server expects to have room
            wait_s = max(error.retry_after_s, wait_s) * (1 + JITTER * random.random())
        # An attempt with no time left would end as a timeout, which says less than this error does.
        return wait_s if time.monotonic() + wait_s < deadline else None


NO_RETRIES = Retries()


def with_attempts(error: TritoneError, attempts: int) -> TritoneError:
    """The error, saying how often it was tried if that was more than once."""
    if attempts < 2:
        return error
    longer = error.saying(f"{str(error).rstrip('.')}. Tried {attempts} times.")
    longer.__cause__ = error
    return longer


class _Pending(Future[Answer]):
    current: "Future[Answer] | Future[None] | None" = None  # the attempt under way, or the wait for it

    def cancel(self) -> bool:
        done = super().cancel()
        if self.current is not None:
            self.current.cancel()
        return done


class RetryingTransport(AroundTransport):
    """A transport that sends again; see `Transport`. The limit of a call holds over all attempts together."""

    def __init__(self, transport: Transport, retries: Retries) -> None:
        super().__init__(transport)
        self._retries = retries
        self._waits = LoopThread("tritone-retries")

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        if call.sequence_id:
            return self._transport.infer(call)
        pending: _Pending[Answer] = _Pending()
        pending.current = first = self._transport.infer(call)  # raises if this client is closed
        deadline = time.monotonic() + call.timeout_s
        first.add_done_callback(lambda done: self._finish(done, call, pending, 1, deadline))
        return pending

    def _finish(
        self, done: Future[Answer], call: Call[Answer], pending: _Pending[Answer], attempts: int, deadline: float
    ) -> None:
        if done.cancelled() or pending.cancelled():
            pending.cancel()
            return
        error = done.exception()
        if error is None:
            _settle(pending, value=done.result())
            return
        wait_s = self._retries.wait_s(error, attempts, deadline)
        if wait_s is not None:
            with self._waits.lock:
                if not self._waits.closed:
                    pending.current = waiting = self._waits.submit(
                        lambda: self._again(wait_s, call, pending, attempts + 1, deadline)
                    )
                    waiting.add_done_callback(lambda wait: pending.cancel() if wait.cancelled() else None)
                    return
        _settle(pending, error=with_attempts(error, attempts) if isinstance(error, TritoneError) else error)

    async def _again(
        self, wait_s: float, call: Call[Answer], pending: _Pending[Answer], attempts: int, deadline: float
    ) -> None:
        await asyncio.sleep(wait_s)
        if pending.cancelled():
            return
        try:
            attempt = self._transport.infer(replace(call, timeout_s=max(0.001, deadline - time.monotonic())))
        except TritoneError as error:  # closed meanwhile
            _settle(pending, error=error)
            return
        pending.current = attempt
        if pending.cancelled():
            attempt.cancel()
        attempt.add_done_callback(lambda done: self._finish(done, call, pending, attempts, deadline))

    def _ask(self, ask: Callable[[float], Answer], timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        attempts = 0
        while True:
            attempts += 1
            try:
                return ask(max(0.001, deadline - time.monotonic()))
            except TritoneError as error:
                wait_s = self._retries.wait_s(error, attempts, deadline)
                if wait_s is None:
                    raise with_attempts(error, attempts) from error.__cause__
                time.sleep(wait_s)

    def close(self) -> None:
        self._waits.close(_end_waits)
        self._transport.close()


async def _end_waits() -> None:
    waits = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def _settle(pending: Future[Answer], *, value: Any = None, error: BaseException | None = None) -> None:
    """Give a future its end, unless it was cancelled."""
    if not pending.set_running_or_notify_cancel():
        return
    if error is None:
        pending.set_result(value)
    else:
        pending.set_exception(error)
