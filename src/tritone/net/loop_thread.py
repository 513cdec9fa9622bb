"""An event loop in a thread of its own, for those who talk to a server without waiting for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

CLOSE_TIMEOUT_S = 5.0


class LoopThread:
    """A running event loop; work is handed to it from any thread until it is closed.

    `lock` keeps closing apart from handing work over: hold it while looking at `closed`.
    """

    def __init__(self, name: str) -> None:
        self.lock = threading.Lock()
        self.closed = False
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is in the loop's own thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> "Future[Result]":
        """Run the coroutine that `work` makes in the loop; cancelling what is returned cancels it.

        It is made there, too: an interrupt of this thread would leave one behind that nobody awaits, which Python
        reports at its end.
        """
        found: Future[Result] = Future()

        def begin() -> None:
            if not found.cancelled():
                task = self.loop.create_task(work())
                task.add_done_callback(finish)
                found.add_done_callback(
                    lambda _: self.loop.call_soon_threadsafe(task.cancel) if not task.done() else None
                )

        def finish(task: "asyncio.Task[Result]") -> None:
            with suppress(InvalidStateError):  # cancelled meanwhile
                if task.cancelled():
                    found.cancel()
                elif (error := task.exception()) is not None:
                    found.set_exception(error)
                else:
                    found.set_result(task.result())

        self.loop.call_soon_threadsafe(begin)
        return found

    def close(self, farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `farewell`, then end loop and thread; nothing happens the second time.

        Raises:
            TimeoutError: `farewell` takes too long.
        """
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.submit(farewell).result(CLOSE_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self.loop.close()
