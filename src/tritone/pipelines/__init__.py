"""Pipelines: waveforms in, transcripts out, offline or streaming; or embeddings of whole utterances."""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.embedding import EmbeddingPipeline
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import Step, StreamingPipeline
from tritone.transcript import Span, Transcript

__all__ = [
    "EmbedOptions",
    "EmbeddingPipeline",
    "OfflinePipeline",
    "Span",
    "Step",
    "StreamingPipeline",
    "Transcript",
    "check_writes",
    "open_offline",
    "open_streaming",
]

OFFLINE = dict.fromkeys(("ctc", "transducer"), OfflinePipeline)
STREAMING = dict.fromkeys(("ctc", "transducer"), StreamingPipeline)


def open_offline(bundle: Bundle, **options: Any) -> OfflinePipeline:
    """Open the offline pipeline for a bundle's kind; options and errors as of that pipeline."""
    pipeline: OfflinePipeline = _for_kind(OFFLINE, bundle)(bundle, **options)
    return pipeline


def open_streaming(bundle: Bundle, **options: Any) -> StreamingPipeline:
    """Open the streaming pipeline for a bundle's kind; options and errors as of that pipeline."""
    pipeline: StreamingPipeline = _for_kind(STREAMING, bundle)(bundle, **options)
    return pipeline


def check_writes(bundle: Bundle) -> None:
    """Make sure that a bundle's model writes text; raises `BundleError` that says what it does instead."""
    if bundle.manifest.kind == "embedding":
        raise BundleError(
            f"{bundle.path} is a speaker model: it makes embeddings and writes no text. Use it with `tritone "
            "embed` or tritone.load_embedder, or take a bundle that recognises speech."
        )


def _for_kind(pipelines: dict[str, Any], bundle: Bundle) -> Any:
    check_writes(bundle)
    kind = bundle.manifest.kind
    if kind not in pipelines:
        raise BundleError(f"{bundle.path} is of kind {kind!r}; this pipeline exists for {', '.join(pipelines)}")
    return pipelines[kind]
