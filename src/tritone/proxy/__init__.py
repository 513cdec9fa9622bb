"""A reverse proxy in front of Triton, for networks that are not trusted."""

from tritone.proxy.options import Limits, ProxyOptions, Tls
from tritone.proxy.proxy import Proxy

__all__ = ["Limits", "Proxy", "ProxyOptions", "Tls"]
