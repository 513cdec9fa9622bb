"""Work done ahead in a thread of its own: a recording is decoded and cut while a model computes.

iterator, room  ->  the same items
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")
CLOSE_S = 5.0  # for the thread to notice that nobody wants more; one that waits for a pipe may never


def ahead(items: Iterable[Item], room: int, close: Callable[[], object]) -> Generator[Item, None, None]:
    """Take items before they are asked for, up to `room` of them.

    Args:
        items: taken in another thread; what it raises is raised here, in its place.
        close: called in that thread once no more are taken, at the end, after an error, or when this is closed.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(room)
    unwanted = threading.Event()

    def take() -> None:
        failure: BaseException | None = None
        try:
            try:
                for item in items:
                    ready.put((item, None))
                    if unwanted.is_set():
                        return
            finally:
                close()
        except BaseException as error:
            failure = error
        ready.put((None, failure))

    thread = threading.Thread(target=take, name="cutting", daemon=True)
    thread.start()
    try:
        while True:
            item, failure = ready.get()
            if failure is not None:
                raise failure
            if item is None:
                return
            yield item
            del item  # the caller alone holds it while the next one is waited for
    finally:
        unwanted.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.01)  # which makes room for what it wants to put
            except queue.Empty:
                thread.join(CLOSE_S)
                break
