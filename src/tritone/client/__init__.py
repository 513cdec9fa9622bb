"""Talking to a Triton that serves Tritone's models."""

from tritone.client.client import Client
from tritone.client.endpoint import DEFAULT_URL, Endpoint
from tritone.client.models import ModelInfo
from tritone.client.result import EmbeddingResult, TranscriptResult
from tritone.client.stream import ClientStream

__all__ = ["DEFAULT_URL", "Client", "ClientStream", "EmbeddingResult", "Endpoint", "ModelInfo", "TranscriptResult"]
