"""A client's WebSocket, as the protocols that speak over one see it: its messages in order, and its end at once.

A reader takes messages while work for earlier ones goes on, so that a client that vanishes is noticed and its work is
cancelled. What waits is bounded; then nothing more is read, and the client has to wait.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.routing import Match, WebSocketRoute
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from tritone.errors import InputError
from tritone.gateway.callers import SCHEMES, Caller
from tritone.gateway.refusal import ErrorAnswer, answer_to
from tritone.gateway.visits import VISIT, close_code

MAX_WAITING_BYTES = 1 << 20  # of messages that were read and not worked on; a longer one comes alone
MAX_WAITING = 1 << 14  # messages: the end of a client that sent many small ones is noticed behind them
MAX_TEXT = 64 << 10  # characters of a message of text: options and hotwords, for audio is binary
MAX_DEPTH = 32  # of JSON
MAX_DIGITS = 20  # of a whole number
BREATH = 64  # messages after which the reader lets others go on, however fast they come
GOODBYE_S = 2.0  # to send a client why it is left
UNREAD_S = 30.0  # for a client to make room for a message, by reading earlier ones
DONE = 1000  # close code (RFC 6455, section 7.4.1)
SUBPROTOCOLS = ("tritone", *SCHEMES)  # that may be agreed on


class Socket:
    """The conversation with one client, for one task.

    `query`: parameters of the address, `items` with those that stand there several times. `caller`: who it is.
    """

    def __init__(self, websocket: WebSocket, caller: Caller) -> None:
        self.query: Mapping[str, str] = websocket.query_params
        self.items = websocket.query_params.multi_items()
        self.caller = caller
        self._websocket = websocket
        self._waiting: deque[str | bytes] = deque()
        self._num_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.stuck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the client has not read for too long."""

    async def receive(self) -> str | bytes:
        """The next message: text, or bytes of audio. `InputError` if it has more text than options need."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._waiting.popleft()
        self._num_bytes -= len(message)
        if self._num_bytes < MAX_WAITING_BYTES and len(self._waiting) < MAX_WAITING:
            self._room.set()
        if isinstance(message, str) and len(message) > MAX_TEXT:
            raise InputError(f"a message of text may have {MAX_TEXT:,} characters, got {len(message):,}")
        return message

    async def send(self, message: Mapping[str, Any] | str) -> None:
        """Send text, or an object as JSON; waits for a client that reads slowly."""
        timer = asyncio.get_running_loop().call_later(UNREAD_S, self._give_up)
        try:
            await self._websocket.send_text(message if isinstance(message, str) else as_json(message))
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        if not self.stuck.done():
            self.stuck.set_result(None)

    async def read(self) -> None:
        """Take messages until the client is gone."""
        count = 0
        with suppress(WebSocketDisconnect):
            while True:
                event = await self._websocket.receive()
                if event["type"] == "websocket.disconnect":
                    return
                data = event.get("bytes")
                message: str | bytes = event.get("text") or "" if data is None else data
                self._waiting.append(message)
                self._num_bytes += len(message)
                self._arrived.set()
                if self._num_bytes >= MAX_WAITING_BYTES or len(self._waiting) >= MAX_WAITING:
                    self._room.clear()
                    await self._room.wait()
                count += 1
                if not count % BREATH:
                    await asyncio.sleep(0)


class RouteOfSubprotocol(WebSocketRoute):
    """A route for clients that offer a subprotocol which begins with `prefix`; others find who else has its path."""

    def __init__(self, path: str, endpoint: Callable[..., Any], prefix: str) -> None:
        super().__init__(path, endpoint)
        self.prefix = prefix

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_ours = any(each.startswith(self.prefix) for each in scope.get("subprotocols", ()))
        return super().matches(scope) if is_ours else (Match.NONE, {})


Complain = Callable[[ErrorAnswer], Mapping[str, Any] | str]


async def attend(websocket: WebSocket, socket: Socket, conversation: Awaitable[None], complain: Complain) -> None:
    """Hold a conversation until it is over, of which its client gets word, or until the client is gone.

    Args:
        complain: words an error as the protocol has it; the message goes before the end of the connection.
    """
    reader = asyncio.ensure_future(socket.read())
    work = asyncio.ensure_future(conversation)
    try:
        await asyncio.wait((reader, work, socket.stuck), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return  # the client is gone, or might as well be
        error = work.exception()
        if error is None or isinstance(error, WebSocketDisconnect):
            code, reason = DONE, ""
        else:
            answer = answer_to(error)
            code, reason = close_code(answer), answer.code
            if (visit := VISIT.get()) is not None:
                visit.status, visit.code = answer.status, answer.code
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await socket.send(complain(answer))
        await websocket.close(code, reason)
    finally:
        for task in (work, reader):
            task.cancel()
        await asyncio.gather(work, reader, return_exceptions=True)


def agreed(websocket: WebSocket, own: str) -> str | None:
    """The subprotocol that is agreed on: none of those that carry a key."""
    offered = websocket.scope.get("subprotocols", [])
    return next((each for each in (own, *SUBPROTOCOLS) if each in offered), None)


def as_json(message: Mapping[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


def read_json(message: str | bytes, what: str = "a message of text") -> dict[str, Any]:
    """The object in a message of text, or whatever it is; `InputError` if there is none.

    Numbers are finite, whole ones have 64 bits, and nothing is nested deeply: nobody who reads it must think of those.
    """
    try:
        found = json.loads(message, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair could not be sent on
        _require_shallow(found)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} must be a JSON object, got {message[:80]!r} ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{what} must be a JSON object, got {message[:80]!r}")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} cannot be used, numbers are finite")
    return number


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise ValueError(f"{text[:40]} cannot be used, whole numbers have 64 bits")
    return number


def _require_shallow(found: Any) -> None:
    level = [found]
    for _ in range(MAX_DEPTH):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not (level := [value for values in inside for value in values]):
            return
    raise ValueError(f"it is nested more than {MAX_DEPTH} times")
