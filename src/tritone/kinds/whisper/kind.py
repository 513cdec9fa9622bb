"""Whisper: an encoder of windows of 30 seconds, and a decoder that writes their text, with times, in many languages."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tritone.bundle.attending import AttendingPart
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.speech import TEXT_OUTPUTS, stream_tensors, transcript_tensors
from tritone.kinds.whisper.part import PARTS, WhisperPart
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Kind, Mode, Specs
from tritone.pipelines.streams import DEFAULT_CAPACITY
from tritone.pipelines.whisper.options import PARAMETERS, DecodingOptions
from tritone.pipelines.wire import DETAILS, Tensor
from tritone.runtime.graph import Array, TensorSpec
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.pipelines.whisper.pipeline import WhisperPipeline
    from tritone.pipelines.whisper.streams import WhisperStreams


class WhisperKind(Kind):
    """Takes recordings of any length; text too unlikely is written again, as upstream's `transcribe` does."""

    name = "whisper"
    noun = "a Whisper model"
    does = "it decodes windows of a recording one after the other"
    writes_text = True
    usage = "Load it with tritone.load"
    in_process = "tritone.pipelines.whisper.transcriber:Transcriber"
    answers = "transcripts"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder", "streaming": "encoder"}
    options = DecodingOptions
    parameters = PARAMETERS
    takes_pcm = True
    checks_levels = True
    stream_details = DETAILS

    def fault(self, manifest: Manifest) -> str | None:
        if (largest := max(manifest.part(AttendingPart).special_ids)) >= manifest.tokens.size:
            return (
                f"{self.parts.own[0].key} names the token id {largest}, but the largest is {manifest.tokens.size - 1}"
            )
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        special, bins = manifest.part(WhisperPart), manifest.features.num_mel_bins
        if role == "features":
            features = TensorSpec(FLOAT32, (None, None, bins))
            return dict(WAVEFORMS), {"features": features, "num_frames": TensorSpec(INT64, (None,))}
        positions = special.window_frames // 2
        cross = cross_tensors(special, positions)
        if role == "encoder":
            found = TensorSpec(FLOAT32, (None, positions, manifest.encoder.output_dim))
            window = TensorSpec(FLOAT32, (None, special.window_frames, bins))
            return {"features": window}, {"encoder_out": found, **cross}
        inputs, outputs = decoder_tensors(special, cross, manifest.tokens.size)
        if special.alignment_heads:
            heads = len(special.alignment_heads)
            outputs["alignment"] = TensorSpec(FLOAT32, (None, heads, None, positions))
        return inputs, outputs

    def languages(self, bundle: Bundle) -> tuple[str, ...]:
        return tuple(bundle.manifest.part(WhisperPart).languages)

    def abilities(self, bundle: Bundle) -> tuple[str, ...]:
        timed = ("word_times",) if bundle.manifest.part(WhisperPart).alignment_heads else ()
        return ("transcribe", "prompt", *timed, *(("detect", "translate") if self.languages(bundle) else ()))

    def roles(self, mode: str) -> tuple[Role, ...]:
        return ("features", "decoder")

    def open(self, bundle: Bundle, *, defaults: DecodingOptions | None = None, **options: Any) -> "WhisperPipeline":
        from tritone.pipelines.whisper.pipeline import WhisperPipeline

        return WhisperPipeline(bundle, options=defaults, **options)

    def open_streaming(
        self, bundle: Bundle, *, capacity: int = DEFAULT_CAPACITY, max_batch: int = 1, **options: Any
    ) -> "WhisperStreams":
        """Streams of whatever `open` opens with the options; as many as are due are looked at together."""
        from tritone.pipelines.whisper.streams import WhisperStreams

        return WhisperStreams(self.open(bundle, **options), capacity=capacity)

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


KIND = WhisperKind()
