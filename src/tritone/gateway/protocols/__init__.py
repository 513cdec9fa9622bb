"""The protocols: one module for each, which speaks it and asks `Gateway.speech`; nothing else.

A module has `routes(gateway) -> list of Starlette's routes`, or `serve(gateway, address) -> a server` with a port of
its own (`await server.stop(grace_s)`), or both. What has neither helps one that has, and is no protocol.
"""

import pkgutil
from importlib import import_module
from types import ModuleType


def all_protocols() -> dict[str, ModuleType]:
    """The protocols by name."""
    modules = {each.name: import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)}
    return {name: each for name, each in modules.items() if hasattr(each, "routes") or hasattr(each, "serve")}
