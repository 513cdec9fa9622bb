"""HTTP to Triton: what it answers, or a refusal where it does not."""

from collections.abc import Callable, Mapping

from tritone.net.http_client import HttpAnswer as Answer
from tritone.net.http_client import HttpConnections
from tritone.net.refusal import DOWN, RefusedError

__all__ = ["Answer", "HttpUpstream"]

CONNECT_S = 5.0


class HttpUpstream:
    """Connections to Triton's HTTP service."""

    def __init__(self, address: str, retry_after_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._connections = HttpConnections(host.strip("[]"), int(port), connect_s=CONNECT_S)
        self._retry_after_s = retry_after_s

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        on_part: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Send a request. If the caller is cancelled, the connection is closed. `on_part` as of `HttpConnections`.

        Raises:
            RefusedError: Triton does not answer.
        """
        try:
            return await self._connections.request(method, path, headers, body, on_part=on_part)
        except (TimeoutError, OSError) as error:
            raise RefusedError(
                DOWN, "the server does not answer now; it may be restarting. Try again.", self._retry_after_s
            ) from error

    def close(self) -> None:
        self._connections.close()
