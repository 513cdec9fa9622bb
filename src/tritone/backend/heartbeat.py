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
from functools import cache
from typing import Any

from tritone.errors import OperatorError

TICK_S = 0.05
LIMIT_S = 0.5  # Triton gives up 0.7 s after a pause began, at the earliest
BATCH_LIMIT_S = 600.0
CLOCK_REALTIME = 0
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0
NANOSECONDS = 1_000_000_000

# What the thread executes, for ever. `setting` is a struct itimerspec of 64-bit integers, whose expiry is at byte 16;
# `batch` is the address of when the batch under way began, in nanoseconds. Compiling this takes 0.1 s; numba would load
# the same loop from its cache in 0.9 s, and take 50 MB, in the process of every model.
LOOP = f"""
declare i32 @clock_gettime(i32, i64)
declare i32 @timer_settime(i64, i32, i64, i64)
declare i32 @usleep(i32)

define void @beat(i64 %timer, i64 %setting, i64 %batch, i64 %limit) {{
start:
  %expiry = add i64 %setting, 16
  %fraction = add i64 %setting, 24
  %seconds.at = inttoptr i64 %expiry to ptr
  %nanoseconds.at = inttoptr i64 %fraction to ptr
  %batch.at = inttoptr i64 %batch to ptr
  br label %tick

tick:
  call i32 @clock_gettime(i32 {CLOCK_REALTIME}, i64 %expiry)
  %seconds = load i64, ptr %seconds.at
  %nanoseconds = load i64, ptr %nanoseconds.at
  %whole = mul i64 %seconds, {NANOSECONDS}
  %now = add i64 %whole, %nanoseconds
  %began = load atomic i64, ptr %batch.at monotonic, align 8
  %idle = icmp eq i64 %began, 0
  %taken = sub i64 %now, %began
  %within = icmp slt i64 %taken, %limit
  %alive = or i1 %idle, %within
  br i1 %alive, label %postpone, label %sleep

postpone:
  %end = add i64 %now, {int(LIMIT_S * NANOSECONDS)}
  %end.seconds = sdiv i64 %end, {NANOSECONDS}
  %end.nanoseconds = srem i64 %end, {NANOSECONDS}
  store i64 %end.seconds, ptr %seconds.at
  store i64 %end.nanoseconds, ptr %nanoseconds.at
  call i32 @timer_settime(i64 %timer, i32 {TIMER_ABSTIME}, i64 %setting, i64 0)
  br label %sleep

sleep:
  call i32 @usleep(i32 {int(TICK_S * 1_000_000)})
  br label %tick
}}
"""

_waiting: list[Callable[[], None]] = []  # what the first batch does before anything else
_batch = ctypes.c_int64()  # when the batch under way began, in nanoseconds of the real-time clock; 0: none is


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
    setting = (ctypes.c_int64 * 4)()  # interval and expiry, each in seconds and nanoseconds
    beat = _compiled()  # here, not in the thread: the model must not be ready before
    arguments = (timer.value or 0, setting, ctypes.addressof(_batch), int(batch_limit_s * NANOSECONDS))
    thread = threading.Thread(target=beat, args=arguments, name="heartbeat", daemon=True)

    def begin() -> None:
        first = (ctypes.c_int64 * 4)(0, 0, *divmod(int(LIMIT_S * NANOSECONDS), NANOSECONDS))
        libc.timer_settime(timer, 0, first, None)  # until the thread has its turn
        thread.start()

    _waiting.append(begin)


@contextmanager
def batch() -> Iterator[None]:
    """Inside, a batch is computed, for which there is a time limit."""
    while _waiting:
        _waiting.pop()()
    _batch.value = time.time_ns()
    try:
        yield
    finally:
        _batch.value = 0


@cache  # the engine owns the machine code
def _engine() -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(LOOP), machine)
    engine.finalize_object()
    return engine


def _compiled() -> Callable[..., None]:
    """The loop; called through ctypes, it runs without the interpreter's lock."""
    integer = ctypes.c_int64
    signature = ctypes.CFUNCTYPE(None, integer, ctypes.c_void_p, integer, integer)
    return signature(_engine().get_function_address("beat"))
