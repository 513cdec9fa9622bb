"""The heartbeat of a model's process, with a dead man's switch behind it.

    start(), batch()  ->  a thread ticks each `TICK_S`, and the kernel kills a process that has not for `LIMIT_S`

Triton's Python backend gives up on a process that shows no sign of life for a second, fails its batch, and sends it the
next one. If the process goes on after that, because it was only stopped, frozen or swapped out, its answers to the
first batch are taken for those to the second: clients get each other's texts. So a process that has paused must not go
on. It cannot see to that by itself, since it may pause at any instruction. A timer of the kernel runs while the process
does not, and SIGKILL arrives before the process executes another instruction. The timer has the clock of Triton's own
limit, so that a step of the system's time affects both.

Nothing is guarded before the first batch. Until then there are no answers that could be late, and while a machine loads
all its models at once, half a second without a processor is nothing unusual.

The thread does not need the interpreter's lock, so work that holds the lock for seconds is no pause. But a batch that
never ends is: the thread stops for one that takes longer than `BATCH_LIMIT_S`.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import types

from tritone.errors import OperatorError
from tritone.runtime.graph import Array
from tritone.search.compiled.compiler import compiled

TICK_S = 0.05
LIMIT_S = 0.5  # Triton gives up 0.7 s after a pause began, at the earliest
BATCH_LIMIT_S = 600.0
CLOCK_REALTIME = 0
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0
NANOSECONDS = 1_000_000_000

# Functions of the C library; a pointer is an integer.
external: Any = types.ExternalFunction
clock_gettime = external("clock_gettime", types.int32(types.int32, types.uintp))
timer_settime = external("timer_settime", types.int32(types.uintp, types.int32, types.uintp, types.uintp))
usleep = external("usleep", types.int32(types.uint32))

_waiting: list[Callable[[], None]] = []  # what the first batch does before anything else
_batch = np.zeros(1, np.int64)  # when the batch under way began, in nanoseconds of the real-time clock; 0: none is


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


def start(batch_limit_s: float = BATCH_LIMIT_S) -> None:
    """Make the heartbeat of this process ready for the first batch, with which it begins; it never ends.

    Raises:
        OperatorError: the system gives no timer.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = _Event(signal=signal.SIGKILL, notify=SIGEV_SIGNAL)
    if libc.timer_create(CLOCK_REALTIME, ctypes.byref(event), ctypes.byref(timer)):
        raise OperatorError(f"this process cannot be guarded against pauses: {os.strerror(ctypes.get_errno())}")
    prepare()  # here, not in the thread: the model must not be ready before
    arguments = (timer.value or 0, _batch, int(batch_limit_s * NANOSECONDS))
    thread = threading.Thread(target=_beat, args=arguments, name="heartbeat", daemon=True)

    def begin() -> None:
        first = (ctypes.c_int64 * 4)(0, 0, *divmod(int(LIMIT_S * NANOSECONDS), NANOSECONDS))
        libc.timer_settime(timer, 0, first, None)  # until the thread has its turn
        thread.start()

    _waiting.append(begin)


def prepare() -> None:
    """Compile the heartbeat, or load it from the cache: once on a machine, before many processes want it at once."""
    _beat.compile((types.int64, types.int64[::1], types.int64))


@contextmanager
def batch() -> Iterator[None]:
    """Inside, a batch is computed, for which there is a time limit."""
    while _waiting:
        _waiting.pop()()
    _batch[0] = time.time_ns()
    try:
        yield
    finally:
        _batch[0] = 0


def _loop(timer: int, batch: Array, limit: int) -> None:
    setting = np.zeros(4, np.int64)  # interval and expiry, each in seconds and nanoseconds
    address: Any = setting.ctypes.data
    while True:
        clock_gettime(CLOCK_REALTIME, address + 16)
        began = batch[0]
        if began == 0 or setting[2] * NANOSECONDS + setting[3] - began < limit:
            setting[3] += int(LIMIT_S * NANOSECONDS)
            setting[2] += setting[3] // NANOSECONDS
            setting[3] %= NANOSECONDS
            timer_settime(timer, TIMER_ABSTIME, address, 0)
        usleep(int(TICK_S * 1_000_000))


_beat: Any = compiled(_loop)
