"""Running Triton: find `tritonserver`, check what it needs, start it, stop it."""

from tritone.server.checks import Check, run_checks
from tritone.server.installation import Installation, find_installation, has_backends
from tritone.server.options import ServerOptions
from tritone.server.ports import free_ports
from tritone.server.process import TritonServer

__all__ = [
    "Check",
    "Installation",
    "ServerOptions",
    "TritonServer",
    "find_installation",
    "free_ports",
    "has_backends",
    "run_checks",
]
