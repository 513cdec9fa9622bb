"""Connections to a server that does not wait until it is asked."""

import asyncio
from unittest.mock import Mock

import pytest

from tritone.net.http_client import _Connection


@pytest.mark.parametrize("closes", [False, True])
def test_what_came_before_a_request_was_sent_is_told_to_who_sends_one(closes: bool) -> None:
    """A gRPC port greets at once; nothing that it says later would end the wait for an answer."""

    async def ask() -> None:
        connection = _Connection(asyncio.get_running_loop())
        connection.connection_made(Mock())
        connection.data_received(b"\0\0\x12\4\0\0\0\0\0")
        if closes:
            connection.connection_lost(None)
        with pytest.raises(ConnectionError, match="Bad status line"):
            await asyncio.wait_for(connection.exchange([b"GET / HTTP/1.1\r\n\r\n"], None), 20)

    asyncio.run(ask())
