"""An event loop in a thread of its own, for those who talk to a server without waiting for it."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
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

    def submit(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run `work` in the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:  # an interrupt: nothing will await it, which Python would report at the end
            work.close()
            raise

    def close(self, farewell: Coroutine[Any, Any, None]) -> None:
        """Run `farewell`, then end loop and thread; nothing happens the second time.

        Raises:
            TimeoutError: `farewell` takes too long.
        """
        with self.lock:
            if self.closed:
                farewell.close()
                return
            self.closed = True
        self.submit(farewell).result(CLOSE_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self.loop.close()
