"""Voice activity: where recordings and streams have speech."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.activity import SpeechActivity
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.activity import activity_tensors
from tritone.kinds.voice_activity.part import PARTS
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Kind, Mode, Specs
from tritone.pipelines.voice_activity import VoiceActivityPipeline, VoiceActivityStreams
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS, Tensor
from tritone.runtime.graph import Array, TensorSpec
from tritone.search.activity import PARAMETERS, ActivityOptions


class VoiceActivityKind(Kind):
    """A probability of speech for each frame, and segments made of them by rule. Silence has a result too."""

    name = "voice-activity"
    noun = "a voice activity detector"
    does = "it finds speech"
    usage = "Load it with tritone.load"
    in_process = "tritone.pipelines.detector:Detector"
    answers = "activity"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder", "streaming": "streaming_encoder"}
    options = ActivityOptions
    parameters = PARAMETERS
    takes_pcm = True
    checks_levels = True
    stream_details = PROBABILITIES

    def fault(self, manifest: Manifest) -> str | None:
        assert manifest.streaming is not None
        if not manifest.streaming.flexible or manifest.streaming.flush_samples is None:
            return f"kind is {self.name!r}, whose part `streaming` is flexible and has `flush_samples`"
        if manifest.encoder.tail_samples:
            return f"kind is {self.name!r}, whose probabilities are of the audio alone; it has no `tail_samples`"
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        inputs = dict(WAVEFORMS)
        outputs = {"probabilities": TensorSpec(FLOAT32, (None, None)), "num_frames": TensorSpec(INT64, (None,))}
        states = manifest.streaming.states if manifest.streaming and role == "streaming_encoder" else ()
        for state in states:
            inputs[state.name] = outputs[f"next_{state.name}"] = TensorSpec(
                np.dtype(state.dtype), (None, *state.sizes(0))
            )
        return inputs, outputs

    def open(self, bundle: Bundle, *, defaults: ActivityOptions | None = None, **options: Any) -> VoiceActivityPipeline:
        return VoiceActivityPipeline(bundle, options=defaults, **options)

    def open_streaming(self, bundle: Bundle, **options: Any) -> VoiceActivityStreams:
        return VoiceActivityStreams(bundle, **options)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=SEGMENTS, type="STRING", dims=(1,)), Tensor(name=PROBABILITIES, type="FP32", dims=(-1,)))

    def read_options(
        self, pipeline: VoiceActivityPipeline, parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> ActivityOptions:
        return pipeline.options.changed(parameters) if parameters else pipeline.options

    def answer(self, results: Sequence[SpeechActivity], wanted: Collection[str]) -> dict[str, Array]:
        """Segments as JSON, (rows, 1), and probabilities (rows, frames), where short rows end with zeros."""
        return activity_tensors(results, wanted)

    def stream_answer(self, result: SpeechActivity, *, details: bool) -> dict[str, Array]:
        return self.answer([result], (SEGMENTS, PROBABILITIES) if details else (SEGMENTS,))


KIND = VoiceActivityKind()
