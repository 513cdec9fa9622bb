"""Opening the pipeline of a bundle whose model writes text: for whole utterances, or for streams."""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.pipelines.kind import kind_of
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import StreamingPipeline
from tritone.search.options import SearchOptions


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
