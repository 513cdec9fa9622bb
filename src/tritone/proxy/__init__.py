"""A reverse proxy in front of Triton, for networks that are not trusted."""

from tritone.net.limits import Limits, Tls
from tritone.proxy.options import ProxyOptions
from tritone.proxy.proxy import Proxy

__all__ = ["Limits", "Proxy", "ProxyOptions", "Tls"]
