"""A sender of requests: one event loop in a thread of its own, and nothing else that could wait.

A thread per request, or gRPC's threads per channel, would fight with each other for Python's interpreter lock; one loop
needs half the CPU time for small requests and answers in steady time.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from tritone.loadtest.senders.wire import Body, Reply
from tritone.net.loop_thread import LoopThread

Done = Callable[[Reply], None]


class Sender(ABC):
    """Open connections to one server, over one protocol. Nothing is sent before the first request."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("tritone-bench-sender")
        # Connections want to be born inside the loop that will use them.
        self._thread.submit(self._connect).result()

    def send(self, body: Body, timeout_s: float, done: Done) -> None:
        """Send a request and return at once; `done` is called exactly once, with an error if need be.

        It is called in the loop's thread, or in `send` itself when the sender is closed. It must not block and may
        call `send` again, which costs less there than in other threads.
        """
        if self._thread.is_current:
            self._launch(body, timeout_s, done)
            return
        with self._thread.lock:
            if not self._thread.closed:
                self._thread.loop.call_soon_threadsafe(self._launch, body, timeout_s, done)
                return
        done(cancelled())

    def close(self) -> None:
        """Close the connections. Requests in flight are answered with an error before this returns."""
        self._thread.close(self._shut)

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        """Send a request and read its answer; every failure is a reply too, none is raised."""

    @abstractmethod
    async def _disconnect(self) -> None: ...

    def _launch(self, body: Body, timeout_s: float, done: Done) -> None:
        if self._thread.closed:
            done(cancelled())
            return
        task = self._thread.loop.create_task(self._run(body, timeout_s, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, body: Body, timeout_s: float, done: Done) -> None:
        sent = time.perf_counter()
        try:
            reply = await self._ask(body, timeout_s)
        except asyncio.CancelledError:
            reply = cancelled()
        reply.sent = sent
        done(reply)

    async def _shut(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._disconnect()


def cancelled() -> Reply:
    """The answer to what was still in flight when its sender was closed."""
    return Reply(error=CANCELLED, received=time.perf_counter())


def too_late(timeout_s: float) -> Reply:
    """The answer to what took longer than its time limit."""
    return Reply(error=f"timeout: no answer within {timeout_s:g} s", received=time.perf_counter())


CANCELLED = "cancelled: the connection was closed before the answer came"
