"""Work that is handed to a loop in a thread: results, errors and cancelling."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tritone.net.loop_thread import LoopThread


async def nothing() -> None: ...


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    found = LoopThread("test")
    yield found
    found.close(nothing)


def test_results_and_errors_come_back(thread: LoopThread) -> None:
    async def half(number: int) -> float:
        if not number:
            raise ValueError("nothing to halve")
        return number / 2

    assert thread.submit(lambda: half(3)).result(10) == 1.5
    with pytest.raises(ValueError, match="nothing to halve"):
        thread.submit(lambda: half(0)).result(10)


def test_what_is_cancelled_ends_in_the_loop(thread: LoopThread) -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    found = thread.submit(wait)
    assert began.wait(60)
    assert found.cancel()
    assert ended.wait(60)
    with pytest.raises(CancelledError):
        found.result(10)


def test_what_is_cancelled_before_it_begins_is_never_made(thread: LoopThread) -> None:
    made: list[str] = []
    held = threading.Event()

    def make() -> Coroutine[Any, Any, None]:
        made.append("work")
        return nothing()

    thread.loop.call_soon_threadsafe(held.wait, 10)  # the loop is busy
    found = thread.submit(make)
    assert found.cancel()
    held.set()
    assert thread.submit(lambda: asyncio.sleep(0, "after it")).result(10) == "after it"
    assert made == []


def test_closing_twice_says_farewell_once(thread: LoopThread) -> None:
    said: list[str] = []

    async def farewell() -> None:
        said.append("farewell")

    thread.close(farewell)
    thread.close(farewell)
    assert said == ["farewell"]
