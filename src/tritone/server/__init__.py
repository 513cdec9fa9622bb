"""Running Triton: find `tritonserver`, check what it needs, start it, stop it."""

from tritone.server.checks import run_checks
from tritone.server.installation import find_installation
from tritone.server.options import ServerOptions
from tritone.server.ports import free_ports
from tritone.server.process import TritonServer
from tritone.server.supervisor import Supervisor

__all__ = [
    "ServerOptions",
    "Supervisor",
    "TritonServer",
    "find_installation",
    "free_ports",
    "run_checks",
]
