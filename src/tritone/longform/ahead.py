"""Work done ahead in a thread of its own: a recording is decoded and cut while a model computes.

    iterator, room  ->  the same items
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")
CLOSE_S = 5.0  # for the thread to notice that nobody wants more; one that waits for a pipe may never


def ahead(
    items: Iterable[Item], room: float, weight: Callable[[Item], float], close: Callable[[], object]
) -> Generator[Item, None, None]:
    """Take items before they are asked for, as long as those that wait weigh less than `room`.

    Args:
        items: taken in another thread; what it raises is raised here, in its place.
        close: called in that thread once no more are taken, at the end, after an error, or when this is closed.
    """
    change = threading.Condition()
    ready: deque[Item] = deque()
    waiting = 0.0
    is_over = is_unwanted = False
    failure: BaseException | None = None

    def take() -> None:
        nonlocal waiting, is_over, failure
        try:
            try:
                for item in items:
                    with change:
                        ready.append(item)
                        waiting += weight(item)
                        del item
                        change.notify_all()
                        change.wait_for(lambda: is_unwanted or waiting < room)
                        if is_unwanted:
                            break
            finally:
                close()
        except BaseException as error:
            failure = error
        with change:
            is_over = True
            change.notify_all()

    thread = threading.Thread(target=take, name="cutting", daemon=True)
    thread.start()
    try:
        while True:
            with change:
                change.wait_for(lambda: ready or is_over)
                if not ready:
                    if failure is not None:
                        raise failure
                    return
                item = ready.popleft()
                waiting -= weight(item)
                change.notify_all()
            yield item
            del item  # the caller alone holds it while the next one is waited for
    finally:
        with change:
            is_unwanted = True
            ready.clear()
            change.notify_all()
        thread.join(CLOSE_S)
