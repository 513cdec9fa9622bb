"""Pipelines: waveforms in, transcripts out, offline or streaming; or embeddings of whole utterances."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.pipelines.embed_options import EmbedOptions
    from tritone.pipelines.embedding import EmbeddingPipeline
    from tritone.pipelines.offline import OfflinePipeline
    from tritone.pipelines.opening import check_writes, open_offline, open_streaming
    from tritone.pipelines.streaming import StreamingPipeline
    from tritone.pipelines.streams import Step
    from tritone.transcript import Transcript

__all__ = [
    "EmbedOptions",
    "EmbeddingPipeline",
    "OfflinePipeline",
    "Step",
    "StreamingPipeline",
    "Transcript",
    "check_writes",
    "open_offline",
    "open_streaming",
]

__getattr__ = attributes(
    __name__,
    {
        "EmbedOptions": "tritone.pipelines.embed_options",
        "EmbeddingPipeline": "tritone.pipelines.embedding",
        "OfflinePipeline": "tritone.pipelines.offline",
        "Step": "tritone.pipelines.streams",
        "StreamingPipeline": "tritone.pipelines.streaming",
        "Transcript": "tritone.transcript",
        **dict.fromkeys(("check_writes", "open_offline", "open_streaming"), "tritone.pipelines.opening"),
    },
)
