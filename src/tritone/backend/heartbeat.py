"""The heartbeat of a model's process, with a dead man's switch behind it.

    start(), batch()  ->  a thread ticks each `TICK_S`, and the kernel kills a process that has not for `LIMIT_S`

Triton's Python backend gives up on a process that shows no sign of life for a second, fails its batch, and sends it the
next one. If the process goes on after that, because it was only stopped, frozen or swapped out, its answers to the
first batch are taken for those to the second: clients get each other's texts. So a process that has paused must not go
on. It cannot see to that by itself, since it may pause at any instruction. A timer of the kernel runs while the process
does not, and SIGKILL arrives before the process executes another instruction. The timer has the clock of Triton's own
limit, so that a step of the system's time affects both.

Nothing is guarded before the first batch. Until then there are no answers that could be late, and while a machine loads
all its models at once, half a second without a processor is nothing unusual. Neither is a model that has had nothing to
do for `LINGER_S`: a machine that stalls or sleeps does not end all its models. But a batch that came while one stood
still may have been given up before it was read, so a process that gets one within `WARY_S` of its pause ends itself.

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
LINGER_S = 5.0  # after a batch, in which Triton reads its answer
WARY_S = 5.0  # after a pause, in which the model reads what Triton sent meanwhile
CLOCK_REALTIME = 0
TIMER_ABSTIME = 1
SIGEV_SIGNAL = 0
NANOSECONDS = 1_000_000_000

# What the thread executes, for ever. `setting` is a struct itimerspec of 64-bit integers, whose expiry is at byte 16;
# `state` the address of `_State`. Compiling this takes 0.1 s; numba would load the same loop from its cache in 0.9 s,
# and take 50 MB, in the process of every model.
LOOP = f"""
declare i32 @clock_gettime(i32, i64)
declare i32 @timer_settime(i64, i32, i64, i64)
declare i32 @usleep(i32)

define void @beat(i64 %timer, i64 %setting, ptr %state, i64 %limit, i64 %linger) {{
start:
  %expiry = add i64 %setting, 16
  %fraction = add i64 %setting, 24
  %seconds.at = inttoptr i64 %expiry to ptr
  %nanoseconds.at = inttoptr i64 %fraction to ptr
  %idle.at = getelementptr i64, ptr %state, i64 1
  %ticked.at = getelementptr i64, ptr %state, i64 2
  %paused.at = getelementptr i64, ptr %state, i64 3
  %resting.at = getelementptr i64, ptr %state, i64 4
  br label %tick

tick:
  call i32 @clock_gettime(i32 {CLOCK_REALTIME}, i64 %expiry)
  %seconds = load i64, ptr %seconds.at
  %nanoseconds = load i64, ptr %nanoseconds.at
  %whole = mul i64 %seconds, {NANOSECONDS}
  %now = add i64 %whole, %nanoseconds
  %ticked = load atomic i64, ptr %ticked.at seq_cst, align 8
  %gap = sub i64 %now, %ticked
  %late = icmp sgt i64 %gap, {int(LIMIT_S * NANOSECONDS)}
  br i1 %late, label %pause, label %look

pause:
  store atomic i64 %now, ptr %paused.at seq_cst, align 8
  br label %look

look:
  store atomic i64 %now, ptr %ticked.at seq_cst, align 8
  %idle = load atomic i64, ptr %idle.at seq_cst, align 8
  %busy = icmp eq i64 %idle, 0
  %rested = sub i64 %now, %idle
  %lingers = icmp slt i64 %rested, %linger
  %guarded = or i1 %busy, %lingers
  br i1 %guarded, label %guard, label %rest

rest:
  store atomic i64 1, ptr %resting.at seq_cst, align 8
  %still = load atomic i64, ptr %idle.at seq_cst, align 8
  %begun = icmp eq i64 %still, 0
  br i1 %begun, label %rouse, label %disarm

disarm:
  store i64 0, ptr %seconds.at
  store i64 0, ptr %nanoseconds.at
  call i32 @timer_settime(i64 %timer, i32 {TIMER_ABSTIME}, i64 %setting, i64 0)
  store atomic i64 0, ptr %resting.at seq_cst, align 8
  br label %sleep

rouse:
  store atomic i64 0, ptr %resting.at seq_cst, align 8
  br label %guard

guard:
  %began = load atomic i64, ptr %state seq_cst, align 8
  %none = icmp eq i64 %began, 0
  %taken = sub i64 %now, %began
  %within = icmp slt i64 %taken, %limit
  %alive = or i1 %none, %within
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


class _State(ctypes.Structure):
    """What the thread and the batches know of each other; times in nanoseconds of the real-time clock, 0 is never."""

    _fields_ = (
        ("batch", ctypes.c_int64),  # when the batch under way began
        ("idle", ctypes.c_int64),  # since when there has been nothing to do; 0: there is
        ("ticked", ctypes.c_int64),  # when the thread did last
        ("paused", ctypes.c_int64),  # when the last pause ended
        ("resting", ctypes.c_int64),  # 1: the thread is about to stop the timer
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


def start(batch_limit_s: float = BATCH_LIMIT_S, linger_s: float = LINGER_S, wary_s: float = WARY_S) -> None:
    """Make the heartbeat of this process ready for the first batch, with which it begins; it never ends.

    Raises:
        OperatorError: the system gives no timer.
    """
    global _guard
    _guard = _Guard(batch_limit_s, linger_s, wary_s)


@contextmanager
def batch() -> Iterator[None]:
    """Inside, a batch is computed, for which there is a time limit."""
    with waiting():
        _state.batch = time.time_ns()
        try:
            yield
        finally:
            _state.batch = 0


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, Triton waits for this process, however long that takes."""
    _state.idle = 0
    if _guard is not None:
        _guard.enter()
    try:
        yield
    finally:
        _state.idle = time.time_ns()


class _Guard:
    """The timer of this process, and the thread that postpones it."""

    def __init__(self, batch_limit_s: float, linger_s: float, wary_s: float) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(signal=signal.SIGKILL, notify=SIGEV_SIGNAL)
        if self._libc.timer_create(CLOCK_REALTIME, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OperatorError(f"this process cannot be guarded against pauses: {os.strerror(ctypes.get_errno())}")
        beat = _compiled()  # here, not in the thread: the model must not be ready before
        self._setting = (ctypes.c_int64 * 4)()  # of the thread: interval and expiry, each in seconds and nanoseconds
        self._first = (ctypes.c_int64 * 4)(0, 0, *divmod(int(LIMIT_S * NANOSECONDS), NANOSECONDS))
        limits = (int(batch_limit_s * NANOSECONDS), int(linger_s * NANOSECONDS))
        self._wary_ns = int(wary_s * NANOSECONDS)
        arguments = (self._timer.value or 0, self._setting, ctypes.addressof(_state), *limits)
        self._thread = threading.Thread(target=beat, args=arguments, name="heartbeat", daemon=True)

    def enter(self) -> None:
        """Guard this process from here on; ends it where Triton may not wait for what it is about to do."""
        is_first = self._thread.ident is None
        if is_first:
            _state.ticked = time.time_ns()
        self._arm()
        if is_first:
            self._thread.start()
        # A thread that did not see that there is something to do may stop the timer after it was started here.
        while _state.resting:
            time.sleep(0)
        self._arm()
        now = time.time_ns()
        if now - _state.ticked > LIMIT_S * NANOSECONDS or now - _state.paused < self._wary_ns:
            os.kill(os.getpid(), signal.SIGKILL)

    def _arm(self) -> None:
        self._libc.timer_settime(self._timer, 0, self._first, None)  # until the thread has its turn


_state = _State()
_guard: _Guard | None = None


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
    signature = ctypes.CFUNCTYPE(None, integer, ctypes.c_void_p, ctypes.c_void_p, integer, integer)
    return signature(_engine().get_function_address("beat"))
