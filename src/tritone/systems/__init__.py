"""Whatever transcribes or embeds: a served model or a bundle in this process, behind one interface."""

from tritone.systems.bundled import BundleSystem
from tritone.systems.embedding import EmbeddingOutcome, EmbeddingSystem
from tritone.systems.embedding_bundled import BundleEmbedding
from tritone.systems.embedding_served import ServedEmbedding
from tritone.systems.embedding_spec import open_embedder_system
from tritone.systems.outcome import Outcome, Partial, PartialListener, Playback, System
from tritone.systems.served import ServedSystem
from tritone.systems.spec import Spec, open_system, parse_spec

__all__ = [
    "BundleEmbedding",
    "BundleSystem",
    "EmbeddingOutcome",
    "EmbeddingSystem",
    "Outcome",
    "Partial",
    "PartialListener",
    "Playback",
    "ServedEmbedding",
    "ServedSystem",
    "Spec",
    "System",
    "open_embedder_system",
    "open_system",
    "parse_spec",
]
