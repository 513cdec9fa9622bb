"""Pipelines: waveforms in, transcripts out, offline or streaming; or embeddings of whole utterances."""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.embedding import EmbeddingPipeline
from tritone.pipelines.kind import kind_of
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import StreamingPipeline
from tritone.pipelines.streams import Step
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

__all__ = [
    "EmbedOptions",
    "EmbeddingPipeline",
    "OfflinePipeline",
    "Step",
    "StreamingPipeline",
    "Transcript",
    "check_embeds",
    "check_writes",
    "open_offline",
    "open_streaming",
]


def open_offline(bundle: Bundle, **options: Any) -> OfflinePipeline:
    """Open the pipeline for whole utterances; options and errors as of `OfflinePipeline`."""
    check_writes(bundle)
    return OfflinePipeline(bundle, **options)


def open_streaming(bundle: Bundle, **options: Any) -> StreamingPipeline:
    """Open the pipeline for streams; options and errors as of `StreamingPipeline`."""
    check_writes(bundle)
    return StreamingPipeline(bundle, **options)


def check_writes(bundle: Bundle) -> None:
    """Make sure that a bundle's model writes text; raises `BundleError` that says what it does instead."""
    if (kind := kind_of(bundle)).options is not SearchOptions:
        raise kind.unsearched(bundle)


def check_embeds(bundle: Bundle) -> None:
    """Make sure that a bundle's model makes embeddings; raises `BundleError` that says what it does instead."""
    kind = kind_of(bundle)
    if kind.options is not EmbedOptions:
        raise BundleError(
            f"{bundle.path} is of kind {kind.name!r}: {kind.does} and makes no embeddings. {kind.usage}, or take a "
            "bundle of a speaker model."
        )
