"""The protocols: one module for each, which speaks it and asks `Gateway.speech`; nothing else.

A module has `routes(gateway) -> list of Starlette's routes`, or `serve(gateway, address) -> a server` with a port of
its own (`await server.stop(grace_s)`), or both. Every module in this folder is one.
"""

import pkgutil
from importlib import import_module
from types import ModuleType


def all_protocols() -> dict[str, ModuleType]:
    """The protocols by name."""
    return {each.name: import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)}
