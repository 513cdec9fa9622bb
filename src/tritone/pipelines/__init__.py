"""Recognition pipelines: waveforms in, transcripts out, offline or streaming."""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import Step, StreamingPipeline
from tritone.transcript import Span, Transcript

__all__ = [
    "OfflinePipeline",
    "Span",
    "Step",
    "StreamingPipeline",
    "Transcript",
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


def _for_kind(pipelines: dict[str, Any], bundle: Bundle) -> Any:
    kind = bundle.manifest.kind
    if kind not in pipelines:
        raise BundleError(f"{bundle.path} is of kind {kind!r}; this pipeline exists for {', '.join(pipelines)}")
    return pipelines[kind]
