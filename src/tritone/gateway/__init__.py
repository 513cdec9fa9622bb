"""The gateway: protocols that applications speak, HTTP, WebSockets and gRPC, in front of a Triton."""

from tritone.gateway.gateway import Gateway
from tritone.gateway.options import GatewayLimits, GatewayOptions

__all__ = ["Gateway", "GatewayLimits", "GatewayOptions"]
