"""Recognition pipelines: waveforms in, transcripts out, offline or streaming."""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines.ctc import CtcPipeline
from tritone.pipelines.streaming import Step, StreamingCtcPipeline
from tritone.transcript import Span, Transcript

__all__ = [
    "CtcPipeline",
    "Span",
    "Step",
    "StreamingCtcPipeline",
    "Transcript",
    "open_offline",
    "open_streaming",
]

OFFLINE = {"ctc": CtcPipeline}
STREAMING = {"ctc": StreamingCtcPipeline}


def open_offline(bundle: Bundle, **options: Any) -> CtcPipeline:
    """Open the offline pipeline for a bundle's kind; options and errors as of that pipeline."""
    pipeline: CtcPipeline = _for_kind(OFFLINE, bundle)(bundle, **options)
    return pipeline


def open_streaming(bundle: Bundle, **options: Any) -> StreamingCtcPipeline:
    """Open the streaming pipeline for a bundle's kind; options and errors as of that pipeline."""
    pipeline: StreamingCtcPipeline = _for_kind(STREAMING, bundle)(bundle, **options)
    return pipeline


def _for_kind(pipelines: dict[str, Any], bundle: Bundle) -> Any:
    kind = bundle.manifest.kind
    if kind not in pipelines:
        raise BundleError(f"{bundle.path} is of kind {kind!r}; this pipeline exists for {', '.join(pipelines)}")
    return pipelines[kind]
