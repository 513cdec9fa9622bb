"""Voice activity: where recordings and streams have speech."""

from collections.abc import Mapping
from typing import Any, ClassVar

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.activity import ActivityKind, with_states
from tritone.kinds.voice_activity.part import PARTS
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Mode, Specs
from tritone.pipelines.voice_activity import VoiceActivityPipeline, VoiceActivityStreams
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS, Tensor
from tritone.runtime.graph import TensorSpec
from tritone.search.activity import PARAMETERS, ActivityOptions


class VoiceActivityKind(ActivityKind):
    """A probability of speech for each frame, and segments made of them by rule."""

    name = "voice-activity"
    noun = "a voice activity detector"
    does = "it finds speech"
    in_process = "tritone.pipelines.detector:Detector"
    answers = "activity"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder", "streaming": "streaming_encoder"}
    options = ActivityOptions
    parameters = PARAMETERS

    def fault(self, manifest: Manifest) -> str | None:
        assert manifest.streaming is not None
        if not manifest.streaming.flexible or manifest.streaming.flush_samples is None:
            return f"kind is {self.name!r}, whose part `streaming` is flexible and has `flush_samples`"
        if manifest.encoder.tail_samples:
            return f"kind is {self.name!r}, whose probabilities are of the audio alone; it has no `tail_samples`"
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        outputs = {"probabilities": TensorSpec(FLOAT32, (None, None)), "num_frames": TensorSpec(INT64, (None,))}
        return with_states(manifest, WAVEFORMS, outputs) if role == "streaming_encoder" else (dict(WAVEFORMS), outputs)

    def open(self, bundle: Bundle, *, defaults: ActivityOptions | None = None, **options: Any) -> VoiceActivityPipeline:
        return VoiceActivityPipeline(bundle, options=defaults, **options)

    def open_streaming(self, bundle: Bundle, **options: Any) -> VoiceActivityStreams:
        return VoiceActivityStreams(bundle, **options)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=SEGMENTS, type="STRING", dims=(1,)), Tensor(name=PROBABILITIES, type="FP32", dims=(-1,)))


KIND = VoiceActivityKind()
