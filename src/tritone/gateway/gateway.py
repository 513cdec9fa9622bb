"""A gateway: what its doors share. One per process, in one event loop.

gateway = Gateway(GatewayOptions(triton="localhost:8001"))
caller = await gateway.admit(headers, query, door="openai")
transcript = await gateway.speech.transcribe(data, Ask(), caller)
"""

from collections.abc import Mapping
from typing import Literal

from tritone.client.async_client import AsyncClient
from tritone.errors import TritoneError
from tritone.gateway.callers import Caller, Callers
from tritone.gateway.options import GatewayOptions
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.speech import Speech

READY_S = 5.0  # Triton's time to say that it is ready

State = Literal["serving", "draining"]


class Gateway:
    """Callers, speech and state of one gateway.

    Raises:
        ValueError: the address of Triton, or a file, cannot be used.
    """

    def __init__(self, options: GatewayOptions) -> None:
        self.options = options
        self.client = AsyncClient(options.triton, timeout_s=options.limits.triton_s)
        self.speech = Speech(self.client, options)
        self.callers = Callers()
        self.state: State = "serving"

    async def admit(self, headers: Mapping[str, str], query: Mapping[str, str], *, door: str = "") -> Caller:
        """Who asks, by the headers (names in lower case) and query of a request or connection.

        Args:
            door: the protocol, for metrics and the log.

        Raises:
            GatewayRefusal: it may not ask, not now, or not so often.
        """
        if self.state == "draining":
            raise GatewayRefusal(503, "this gateway is ending; connect again", 1.0, code="draining")
        return self.callers.admitted(headers, query, door)

    async def why_not_ready(self) -> str:
        """Why nothing can be asked now; "" if it can."""
        if self.state == "draining":
            return "this gateway is ending"
        try:
            return "" if await self.client.is_ready(READY_S) else "Triton is not ready"
        except TritoneError as error:
            return str(error)

    async def close(self) -> None:
        """Free the connection to Triton."""
        await self.client.close()
