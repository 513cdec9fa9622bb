"""Talking to a Triton that serves Tritone's models."""

from tritone.client.client import Client
from tritone.client.endpoint import Endpoint
from tritone.client.models import ModelInfo

__all__ = [
    "Client",
    "Endpoint",
    "ModelInfo",
]
