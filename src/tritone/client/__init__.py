"""Talking to a Triton that serves Tritone's models."""

from typing import TYPE_CHECKING, Any

from tritone.client.client import Client
from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo

if TYPE_CHECKING:
    from tritone.client.async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "Client",
    "Endpoint",
    "ModelInfo",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":  # it needs gRPC at once, which not everybody does
        from tritone.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
