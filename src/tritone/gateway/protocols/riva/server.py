"""Where the protocol for Riva's clients listens."""

from typing import TYPE_CHECKING, Any

import grpc

from tritone.errors import ServerSetupError
from tritone.gateway.protocols.riva.service import RivaService

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

LARGEST_MESSAGE = 2**31 - 1  # bytes; gRPC's own limit is such a number
SPARE = 64  # calls beyond those of the limits, so that health is answered when they are reached
HANDSHAKE_S = 10


class RivaServer:
    """A gRPC server in the running event loop. `port`: where it listens."""

    def __init__(self, server: Any, port: int) -> None:
        self._server = server
        self.port = port

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, and end those that are still open after `grace_s` seconds."""
        await self._server.stop(grace_s)


async def serve(gateway: "Gateway", address: str) -> RivaServer:
    """Listen on an address, host:port; port 0 is any that is free.

    Raises:
        ServerSetupError: the address cannot be listened on.
    """
    limits, certificates = gateway.options.limits, gateway.certificates
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", min(limits.max_body_bytes, LARGEST_MESSAGE)),
            ("grpc.max_send_message_length", -1),
            ("grpc.per_message_decompression", 0),  # it knows no limit
            ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_S),
            ("grpc.keepalive_time_ms", 10_000),  # finds clients that are gone without a word
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.max_concurrent_streams", 1024),  # of one connection
            ("grpc.so_reuseport", 0),  # a second server on the port is an error
        ],
        maximum_concurrent_rpcs=limits.max_requests + limits.max_streams + SPARE,
    )
    server.add_generic_rpc_handlers((RivaService(gateway),))
    try:
        port = (
            server.add_insecure_port(address)
            if certificates is None
            else server.add_secure_port(address, certificates.credentials())
        )
    except RuntimeError as error:
        port = 0
        reason = f": {error}"
    else:
        reason = ""
    if not port:
        raise ServerSetupError(
            f"the gateway cannot listen on {address} for Riva's clients{reason}. Choose another with "
            "--riva-port or --host."
        )
    await server.start()
    return RivaServer(server, port)
