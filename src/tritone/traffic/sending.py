"""What the senders of both protocols share: one event loop in a thread of its own, and nothing else that could wait.

A thread per request, or gRPC's threads per channel, would fight with each other for Python's interpreter lock; one loop
needs half the CPU time for small requests and answers in steady time.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod

from tritone.traffic.wire import Body, Done, Reply

CLOSE_TIMEOUT_S = 5.0


class LoopSender(ABC):
    """See `Sender`. `done` is called in the loop's thread, where `send` costs least."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tritone-bench-sender", daemon=True)
        self._thread.start()
        # Connections want to be born inside the loop that will use them.
        asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()

    def send(self, body: Body, timeout_s: float, done: Done) -> None:
        if threading.current_thread() is self._thread:
            self._launch(body, timeout_s, done)
            return
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._launch, body, timeout_s, done)
                return
        done(cancelled())

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(CLOSE_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._loop.close()

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        """Send a request and read its answer. Failures of the way are replies too, none is raised."""

    @abstractmethod
    async def _disconnect(self) -> None: ...

    def _launch(self, body: Body, timeout_s: float, done: Done) -> None:
        if self._closed:
            done(cancelled())
            return
        task = self._loop.create_task(self._run(body, timeout_s, done))
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
