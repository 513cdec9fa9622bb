"""Kinds of models whose decoder attends to audio: Whisper, and encoder-decoders without windows of one length."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritone.bundle.attending import AttendingPart
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest
from tritone.kinds.speech import TEXT_OUTPUTS, stream_tensors, transcript_tensors
from tritone.pipelines.kind import FLOAT32, INT64, Kind, Specs
from tritone.pipelines.whisper.options import PARAMETERS, DecodingOptions
from tritone.pipelines.wire import Tensor
from tritone.runtime.graph import Array, TensorSpec
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.pipelines.whisper.pipeline import WhisperPipeline


class AttendingKind(Kind):
    """Takes recordings of any length, decoded by one pipeline or another, and options of decoding."""

    writes_text = True
    usage = "Load it with tritone.load"
    in_process = "tritone.pipelines.whisper.transcriber:Transcriber"
    answers = "transcripts"
    options = DecodingOptions
    parameters = PARAMETERS
    takes_pcm = True
    checks_levels = True

    def fault(self, manifest: Manifest) -> str | None:
        part = manifest.part(AttendingPart)
        if (largest := max(part.special_ids)) >= manifest.tokens.size:
            return f"{part.key} names the token id {largest}, but the largest is {manifest.tokens.size - 1}"
        return None

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return TEXT_OUTPUTS

    def read_options(
        self, pipeline: "WhisperPipeline", parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> DecodingOptions:
        return pipeline.check_options(pipeline.options.changed(parameters)) if parameters else pipeline.options

    def answer(self, results: Sequence[Transcript], wanted: Collection[str]) -> dict[str, Array]:
        return transcript_tensors(results, wanted)

    def stream_answer(self, result: Transcript, *, details: bool) -> dict[str, Array]:
        return stream_tensors(result, details=details)


def cross_tensors(special: AttendingPart, positions: int | None) -> Specs:
    """Keys and values of the audio of a decoder; `positions` None: any number of them."""
    key = TensorSpec(FLOAT32, (None, special.heads, special.head_dim, positions))
    value = TensorSpec(FLOAT32, (None, special.heads, positions, special.head_dim))
    return {name: key if "_key_" in name else value for name in special.cross_names}


def decoder_tensors(special: AttendingPart, encoded: Specs, vocab: int) -> tuple[Specs, Specs]:
    """The inputs and outputs of a decoder; `encoded`: what it takes of the encoder."""
    cache = TensorSpec(FLOAT32, (None, special.heads, None, special.head_dim))
    caches = dict.fromkeys(special.self_names, cache)
    plane = TensorSpec(INT64, (None, None))
    inputs = {"tokens": plane, "padding": TensorSpec(INT64, (None,)), "places": plane, **encoded, **caches}
    outputs = {"logits": TensorSpec(FLOAT32, (None, None, vocab))}
    return inputs, outputs | {f"next_{name}": cache for name in caches}
