"""A gateway: what its protocols share. One per process, in one event loop.

gateway = Gateway(GatewayOptions(triton="http://localhost:8000"))
caller = await gateway.admit(headers, query, protocol="openai")
transcript = await gateway.speech.transcribe(data, Ask(), caller)
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Literal

from tritone.client.async_client import AsyncClient
from tritone.errors import TritoneError
from tritone.gateway.callers import Caller, Callers
from tritone.gateway.metrics import Metrics
from tritone.gateway.no_triton import NoTriton
from tritone.gateway.options import NO_TRITON, GatewayOptions
from tritone.gateway.refusal import READY_S, GatewayRefusal
from tritone.gateway.speech import Speech
from tritone.gateway.tracing import Traces
from tritone.gateway.visit import REQUEST_ID, VISIT
from tritone.net.tls import Certificates

LOG = logging.getLogger("tritone.gateway")
LOOK_S = 2.0

State = Literal["serving", "draining"]


class Gateway:
    """Callers, speech and state of one gateway.

    Raises:
        ValueError: the address of Triton, or a file, cannot be used.
    """

    def __init__(self, options: GatewayOptions) -> None:
        if options.triton == NO_TRITON and not options.upstreams:
            raise ValueError("there is no Triton to ask (url is none) and no upstream; one of them is needed")
        self.options = options
        # The client comes after what may be unfit, for it must be closed.
        self.certificates = _certificates(options)
        """Those of every port, for HTTP and gRPC; None where there is no TLS."""
        self.callers = Callers(options.keys)
        self.metrics = Metrics()
        self.traces = Traces(options.traces)
        timeout_s = options.limits.triton_timeout_s
        self.client = NoTriton() if options.triton == NO_TRITON else AsyncClient(options.triton, timeout_s=timeout_s)
        self.speech = Speech(self.client, options, self.metrics)
        self.state: State = "serving"

    async def admit(self, headers: Mapping[str, str], query: Mapping[str, str], *, protocol: str = "") -> Caller:
        """Who asks, by the headers (names in lower case) and query of a request or connection.

        Args:
            protocol: the protocol, for metrics and the log.

        Raises:
            GatewayRefusal: it may not ask, not now, or not so often.
        """
        visit = VISIT.get()
        if visit is not None:
            visit.protocol = protocol
        if self.state == "draining":
            raise GatewayRefusal(503, "this gateway is ending; connect again", 1.0, code="draining")
        account = await self.callers.account(headers, query)
        if visit is not None:
            visit.name = account.name
        own = {} if visit is None else {REQUEST_ID: visit.id}
        return Caller(account=account, protocol=protocol, headers=self.traces.outgoing(headers) | own)

    async def why_not_ready(self) -> str:
        """Why nothing can be asked now; "" if it can."""
        if self.state == "draining":
            return "this gateway is ending"
        if self.options.triton == NO_TRITON and all(each.circuit.wait_s for each in self.speech.upstreams.values()):
            return "no upstream answers"
        try:
            return "" if await self.client.is_ready(READY_S) else "Triton is not ready"
        except TritoneError as error:
            return str(error)

    async def watch(self) -> None:
        """Look at the files of certificates again and again, until this is cancelled; first of all at Triton."""
        if why := await self.why_not_ready():
            LOG.warning("nothing can be asked yet: %s", why)
        while True:
            await asyncio.sleep(LOOK_S)
            if self.certificates is not None:
                self.certificates.look()

    async def close(self) -> None:
        """Free the connections to Triton and upstreams, and send what is left of traces."""
        await self.speech.close()
        await self.client.close()
        await asyncio.to_thread(self.traces.close)


def _certificates(options: GatewayOptions) -> Certificates | None:
    if options.tls is None:
        return None
    try:
        return Certificates(options.tls)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"TLS: {options.tls.certificate} and {options.tls.key} cannot be used: {error}") from error
