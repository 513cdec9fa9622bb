"""Talking to a Triton that serves Tritone's models."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.client.async_client import AsyncClient
    from tritone.client.client import Client
    from tritone.client.endpoint import Endpoint
    from tritone.client.models import ModelInfo

__all__ = [
    "AsyncClient",
    "Client",
    "Endpoint",
    "ModelInfo",
]

__getattr__ = attributes(
    __name__,
    {
        "Client": "tritone.client.client",
        "Endpoint": "tritone.client.endpoint",
        "ModelInfo": "tritone.client.models",
        "AsyncClient": "tritone.client.async_client",
    },
)
