"""The gateway: protocols that applications speak, HTTP, WebSockets and gRPC, in front of a Triton.

What it needs beyond the client is the extra `gateway`; the options do without.
"""

from typing import TYPE_CHECKING, Any

from tritone.gateway.options import GatewayOptions
from tritone.net.limits import GatewayLimits

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

__all__ = ["Gateway", "GatewayLimits", "GatewayOptions"]


def __getattr__(name: str) -> Any:
    if name == "Gateway":
        from tritone.gateway.gateway import Gateway

        return Gateway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
