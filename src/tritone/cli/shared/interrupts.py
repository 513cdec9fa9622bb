"""Signals that end a long command: Ctrl-C, SIGTERM and a closed terminal are one and the same."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # exit code after Ctrl-C
PATIENCE_S = 1.0  # in which a repeated signal is the same wish


@contextmanager
def interrupts() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt: there is a partial report, and no server is left.

    Another one within a second is ignored, because the first is being obeyed: an impatient second Ctrl-C would lose the
    report, and a terminal that closes may send several. A signal that is ignored, as under `nohup`, stays ignored.
    """
    last = -PATIENCE_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE_S:
            last = time.monotonic()
            raise KeyboardInterrupt

    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
