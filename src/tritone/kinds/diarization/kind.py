"""Diarization: who speaks when, by a network that distinguishes speakers itself."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.activity import SpeechActivity
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.activity import activity_tensors
from tritone.kinds.diarization.part import PARTS, DiarizationPart
from tritone.kinds.diarization.pipeline import (
    PARAMETERS,
    SIZES,
    DiarizationPipeline,
    DiarizationStreams,
    TurnOptions,
    speakers_of,
)
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Kind, Mode, Specs
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS, Tensor
from tritone.runtime.graph import Array, TensorSpec


class DiarizationKind(Kind):
    """A probability for each frame and speaker, and turns made of them by rule. Silence has a result too."""

    name = "diarization"
    noun = "a model that tells speakers apart"
    does = "it says who speaks when"
    usage = "Load it with tritone.load"
    in_process = "tritone.kinds.diarization.model:SpeakerDetector"
    answers = "diarization"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "streaming_encoder", "streaming": "streaming_encoder"}
    options = TurnOptions
    parameters = PARAMETERS
    takes_pcm = True
    checks_levels = True
    stream_details = PROBABILITIES

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
        assert manifest.streaming is not None
        number = TensorSpec(INT64, (None,))
        speakers = manifest.part(DiarizationPart).speakers
        inputs = {**WAVEFORMS, **dict.fromkeys(SIZES, number)}
        outputs = {"probabilities": TensorSpec(FLOAT32, (None, None, speakers)), "num_frames": number}
        for state in manifest.streaming.states:
            inputs[state.name] = outputs[f"next_{state.name}"] = TensorSpec(
                np.dtype(state.dtype), (None, *state.sizes(0))
            )
        return inputs, outputs

    def open(self, bundle: Bundle, *, defaults: TurnOptions | None = None, **options: Any) -> DiarizationPipeline:
        return DiarizationPipeline(bundle, options=defaults, **options)

    def open_streaming(self, bundle: Bundle, **options: Any) -> DiarizationStreams:
        return DiarizationStreams(bundle, **options)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (
            Tensor(name=SEGMENTS, type="STRING", dims=(1,)),
            Tensor(name=PROBABILITIES, type="FP32", dims=(-1, speakers_of(bundle).speakers)),
        )

    def read_options(
        self, pipeline: DiarizationPipeline, parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> TurnOptions:
        return pipeline.options.changed(parameters) if parameters else pipeline.options

    def answer(self, results: Sequence[SpeechActivity], wanted: Collection[str]) -> dict[str, Array]:
        """Turns as JSON, (rows, 1), and probabilities (rows, frames, speakers), where short rows end with zeros."""
        return activity_tensors(results, wanted)

    def stream_answer(self, result: SpeechActivity, *, details: bool) -> dict[str, Array]:
        return self.answer([result], (SEGMENTS, PROBABILITIES) if details else (SEGMENTS,))


KIND = DiarizationKind()
