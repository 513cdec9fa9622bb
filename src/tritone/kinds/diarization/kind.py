"""Diarization: who speaks when, by a network that distinguishes speakers itself."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.activity import ActivityKind, with_states
from tritone.kinds.diarization.part import PARTS, DiarizationPart
from tritone.kinds.diarization.pipeline import (
    PARAMETERS,
    SIZES,
    DiarizationPipeline,
    DiarizationStreams,
    TurnOptions,
    speakers_of,
)
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Mode, Specs
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS, Tensor
from tritone.runtime.graph import TensorSpec


class DiarizationKind(ActivityKind):
    """A probability for each frame and speaker, and turns made of them by rule."""

    name = "diarization"
    noun = "a model that tells speakers apart"
    does = "it says who speaks when"
    in_process = "tritone.kinds.diarization.model:SpeakerDetector"
    answers = "diarization"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "streaming_encoder", "streaming": "streaming_encoder"}
    options = TurnOptions
    parameters = PARAMETERS

    def fault(self, manifest: Manifest) -> str | None:
        assert manifest.streaming is not None
        if not manifest.streaming.flexible:
            return f"kind is {self.name!r}, whose part `streaming` is flexible"
        part = manifest.part(DiarizationPart)
        steps = (part.recordings, *part.streams)
        if manifest.streaming.trained != {each.chunk_size: 0 for each in steps}:
            return (
                f"kind is {self.name!r}, whose `streaming.trained` has the chunk sizes of `diarization` and no others"
            )
        if manifest.encoder.tail_samples or manifest.streaming.flush_samples is not None:
            return f"kind is {self.name!r}, which judges the audio alone; it has no `tail_samples` or `flush_samples`"
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        number = TensorSpec(INT64, (None,))
        speakers = manifest.part(DiarizationPart).speakers
        inputs = {**WAVEFORMS, **dict.fromkeys(SIZES, number)}
        outputs = {"probabilities": TensorSpec(FLOAT32, (None, None, speakers)), "num_frames": number}
        return with_states(manifest, inputs, outputs)

    def open(self, bundle: Bundle, *, defaults: TurnOptions | None = None, **options: Any) -> DiarizationPipeline:
        return DiarizationPipeline(bundle, options=defaults, **options)

    def open_streaming(self, bundle: Bundle, **options: Any) -> DiarizationStreams:
        return DiarizationStreams(bundle, **options)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (
            Tensor(name=SEGMENTS, type="STRING", dims=(1,)),
            Tensor(name=PROBABILITIES, type="FP32", dims=(-1, speakers_of(bundle).speakers)),
        )


KIND = DiarizationKind()
