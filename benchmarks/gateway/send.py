"""Live streams at the speed of speech, through the gateway's WebSocket or by gRPC directly; prints latencies as JSON.

    python -m benchmarks.gateway.send ws|grpc HOST:PORT STREAMS SECONDS CHUNK_MS CORE

A latency is from the moment a chunk is sent to its answer. A hundred streams begin in a second, and chunks count from
a second after the last one has begun: streams under way are measured, not handshakes. The WebSocket client is
as small as one can be, so that it costs little of the cores that everything shares.
"""

import asyncio
import json
import os
import struct
import sys
import time
from typing import Any

import numpy as np
import uvloop

from benchmarks.gateway.model import STREAMING
from tritone.client.async_client import AsyncClient

SAMPLE_RATE = 16000
BEGUN_PER_S = 100
SETTLED_S = 1.0  # after the last stream has begun
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # of RFC 6455; any would do


class Socket(asyncio.Protocol):
    """A WebSocket that sends whole messages and counts those that come. Its masks are zeros, which changes nothing."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = b""
        self._open = False
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        path = f"/v1/stream?model={STREAMING}&sample_rate={SAMPLE_RATE}"
        headers = f"Host: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        headers += f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        transport.write(f"GET {path} HTTP/1.1\r\n{headers}".encode())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._open:
            head, found, self._buffer = self._buffer.partition(b"\r\n\r\n")
            if not found:
                self._buffer = head
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._open = True
        while len(self._buffer) >= 2:
            size, start = self._buffer[1], 2
            if size == 126:
                if len(self._buffer) < 4:
                    return
                size, start = struct.unpack_from("!H", self._buffer, 2)[0], 4
            if len(self._buffer) < start + size:
                return
            if self._buffer[0] & 0x0F in (1, 2):
                self.messages.put_nowait(self._buffer[start : start + size])
            self._buffer = self._buffer[start + size :]

    def send(self, payload: bytes, opcode: int = 2) -> None:
        """Send a message of 126 to 65535 bytes, or a shorter one."""
        size = len(payload)
        head = (
            struct.pack("!BB", 0x80 | opcode, 0x80 | size)
            if size < 126
            else struct.pack("!BBH", 0x80 | opcode, 254, size)
        )
        self._transport.write(head + b"\0\0\0\0" + payload)

    def close(self) -> None:
        self._transport.close()


async def by_websocket(
    address: str, chunk: bytes, starts: float, times: list[float], counted_s: float, period_s: float
) -> list[float]:
    """One stream; `times`: when its chunks are due, from `starts`; those from `counted_s` on are counted."""
    host, port = address.rsplit(":", 1)
    _, socket = await asyncio.get_running_loop().create_connection(lambda: Socket(address), host, int(port))
    took = []
    try:
        for due in times:
            await asyncio.sleep(max(0.0, starts + due - time.perf_counter()))
            sent = time.perf_counter()
            socket.send(chunk)
            while b'"partial"' not in (message := await asyncio.wait_for(socket.messages.get(), 60)):
                if b'"error"' in message:
                    raise SystemExit(f"the gateway refused: {message.decode()}")
            if starts + due >= counted_s:
                took.append(time.perf_counter() - sent)
        socket.send(b'{"type":"end"}', 1)
        while b'"end"' not in await asyncio.wait_for(socket.messages.get(), 60):
            pass
    finally:
        socket.close()
    return took


async def by_grpc(
    client: AsyncClient, chunk: bytes, starts: float, times: list[float], counted_s: float, period_s: float
) -> list[float]:
    """The same stream without a gateway."""
    took, samples = [], np.frombuffer(chunk, np.int16)
    async with await client.stream(STREAMING, details=True, chunk_ms=1000 * period_s) as stream:
        for index, due in enumerate(times):
            await asyncio.sleep(max(0.0, starts + due - time.perf_counter()))
            sent = time.perf_counter()
            assert (await stream.accept(samples)).text == f"chunk {index + 1}"
            if starts + due >= counted_s:
                took.append(time.perf_counter() - sent)
        await stream.finish()
    return took


async def main() -> None:
    how, address, streams, seconds, chunk_ms, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    period_s, count = float(chunk_ms) / 1000, int(streams)
    chunk = np.zeros(round(period_s * SAMPLE_RATE), np.int16).tobytes()
    async with AsyncClient(address if how == "grpc" else "127.0.0.1:9") as client:
        begins = time.perf_counter() + 1.0
        beginning_s = max(period_s, count / BEGUN_PER_S)
        counted_s = begins + beginning_s + SETTLED_S
        times = [index * period_s for index in range(round((beginning_s + SETTLED_S + float(seconds)) / period_s))]
        work = []
        for index in range(count):
            starts = begins + index * beginning_s / count
            if how == "grpc":
                work.append(by_grpc(client, chunk, starts, times, counted_s, period_s))
            else:
                work.append(by_websocket(address, chunk, starts, times, counted_s, period_s))
        cpu, begun = time.process_time(), time.perf_counter()
        found = [each for stream in await asyncio.gather(*work) for each in stream]
        used, wall_s = time.process_time() - cpu, time.perf_counter() - begun
    counts = {"sent": count * len(times), "cpu_s": used, "wall_s": wall_s}
    print(json.dumps({"latencies": [round(each, 6) for each in found]} | counts))


if __name__ == "__main__":
    uvloop.run(main())
