"""Whisper: an encoder of windows of 30 seconds, and a decoder that writes their text, with times, in many languages."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.attending import AttendingKind, cross_tensors, decoder_tensors
from tritone.kinds.whisper.part import PARTS, WhisperPart
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Mode, Served, Specs
from tritone.pipelines.streams import DEFAULT_CAPACITY
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.wire import DETAILS
from tritone.runtime.graph import TensorSpec

if TYPE_CHECKING:
    from tritone.pipelines.whisper.pipeline import WhisperPipeline
    from tritone.pipelines.whisper.streams import WhisperStreams


class WhisperKind(AttendingKind):
    """Takes recordings of any length; text too unlikely is written again, as upstream's `transcribe` does."""

    name = "whisper"
    noun = "a Whisper model"
    does = "it decodes windows of a recording one after the other"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder", "streaming": "encoder"}
    stream_details = DETAILS

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

    def served(self, bundle: Bundle) -> Served:
        part = bundle.manifest.part(WhisperPart)
        timed = ("word_times",) if part.alignment_heads else ()
        many = ("detect", "translate") if part.languages else ()
        return Served(languages=tuple(part.languages), abilities=("transcribe", "prompt", *timed, *many))

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


KIND = WhisperKind()
