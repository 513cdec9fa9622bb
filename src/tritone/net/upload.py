"""The body of a request as it comes, held to a largest size, a least rate and a deadline.

upload = Upload(scope, receive, max_bytes=..., rate=LeastRate(...))
async for part in upload.parts(): ...           or upload.receive, as an ASGI application takes it
"""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from tritone.net.http_server import Connection, Receive, Scope
from tritone.net.limits import MEGABYTE, LeastRate
from tritone.net.refusal import TOO_LARGE, TOO_SLOW, RefusedError


class Upload:
    """One body. `is_whole`: nothing of it is to come, which is so from the begin where there is none."""

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int, rate: LeastRate) -> None:
        """Raises RefusedError for a length that is too large."""
        named = dict(scope["headers"])
        length = named.get(b"content-length", b"0")
        self.is_whole = b"transfer-encoding" not in named and not int(length)
        self._receive = receive
        self._connection: Connection = scope["state"]["connection"]
        self._max_bytes = max_bytes
        self._rate = rate
        self._started = asyncio.get_running_loop().time()
        self._counted = 0
        self._check(int(length))

    async def receive(self) -> MutableMapping[str, Any]:
        """The next message; after the last one, that the client has gone.

        Raises:
            RefusedError: the body is too large, or too slow.
        """
        if self.is_whole:
            return await self._receive()
        try:
            if self._connection.has_part:  # a timer would cost more than all else here
                message = await self._receive()
            else:
                async with asyncio.timeout_at(self._started + self._rate.allowed_s(self._counted)):
                    message = await self._receive()
        except TimeoutError as error:
            took_s = asyncio.get_running_loop().time() - self._started
            raise RefusedError(TOO_SLOW, self._rate.broken("the body", self._counted, took_s)) from error
        self._counted += len(message.get("body", b""))
        self._check(self._counted)
        self.is_whole = not message.get("more_body", False)
        return message

    async def parts(self) -> AsyncIterator[bytes]:
        """The bytes as they come.

        Raises:
            RefusedError: as `receive`.
            ConnectionError: the client has gone.
        """
        while not self.is_whole:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client has gone")
            yield message.get("body", b"")

    def _check(self, size: int) -> None:
        most = self._max_bytes
        if size > most:
            raise RefusedError(
                TOO_LARGE,
                f"the body has more than {most} bytes ({most / MEGABYTE:.3g} MB), the largest size. Send less at once.",
            )
