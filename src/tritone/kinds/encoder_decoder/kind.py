"""Encoder-decoders without windows of one length: Moonshine's and Canary's, decoded as Whisper is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tritone.bundle.attending import NUM_FRAMES
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.attending import AttendingKind, cross_tensors, decoder_tensors
from tritone.kinds.encoder_decoder.part import PARTS, EncoderDecoderPart
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Mode, Served, Specs
from tritone.pipelines.whisper.options import ENGLISH, DecodingOptions
from tritone.runtime.graph import TensorSpec

if TYPE_CHECKING:
    from tritone.pipelines.whisper.attended import AttendedPipeline


class EncoderDecoderKind(AttendingKind):
    """Takes recordings of any length; one that is longer than the model takes at once is cut at pauses."""

    name = "encoder-decoder"
    noun = "an encoder-decoder"
    does = "its decoder writes the text of a recording, or of parts of it"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder"}

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        special = manifest.part(EncoderDecoderPart)
        encoded = {NUM_FRAMES: TensorSpec(INT64, (None,)), **cross_tensors(special, None)}
        if role == "encoder":
            found = TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim))
            return dict(WAVEFORMS), {"encoder_out": found, **encoded}
        return decoder_tensors(special, encoded, manifest.tokens.size)

    def served(self, bundle: Bundle) -> Served:
        part = bundle.manifest.part(EncoderDecoderPart)
        able = {"word_times": part.word_times is not None, "translate": ENGLISH in part.languages}
        abilities = ("transcribe", *(name for name, is_able in able.items() if is_able))
        return Served(languages=tuple(part.languages), abilities=abilities)

    def roles(self, mode: str) -> tuple[Role, ...]:
        return ("decoder",)

    def open(self, bundle: Bundle, *, defaults: DecodingOptions | None = None, **options: Any) -> "AttendedPipeline":
        from tritone.pipelines.whisper.attended import AttendedPipeline

        return AttendedPipeline(bundle, options=defaults, **options)


KIND = EncoderDecoderKind()
