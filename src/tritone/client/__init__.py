"""Talking to a Triton that serves Tritone's models."""

from tritone.client.client import Client
from tritone.client.endpoint import DEFAULT_URL, Endpoint
from tritone.client.models import ModelInfo
from tritone.client.stream import ClientStream
from tritone.result import EmbeddingResult, Result, TranscriptResult

__all__ = [
    "DEFAULT_URL",
    "Client",
    "ClientStream",
    "EmbeddingResult",
    "Endpoint",
    "ModelInfo",
    "Result",
    "TranscriptResult",
]
