"""What kinds of models that write text have in common.

waveforms  ->  encoder, offline or streaming  ->  search  ->  transcripts
"""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import LEFT_FRAMES, Manifest, Role
from tritone.later import later
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Kind, Mode, Served, Specs, Stage, kind_of
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.wire import DETAILS, TRANSCRIPTS, Tensor
from tritone.runtime.graph import Array, TensorSpec
from tritone.search.options import PARAMETERS, SearchOptions
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.pipelines import streaming
else:
    streaming = later("streaming")

TEXT_OUTPUTS = tuple(Tensor(name=name, type="STRING", dims=(1,)) for name in (TRANSCRIPTS, DETAILS))


class Searches(Protocol):
    """What searches: `options` where a request asks for nothing else, and a check of what it asks for."""

    @property
    def options(self) -> SearchOptions: ...

    def check(self, options: SearchOptions) -> SearchOptions: ...


class SpeechKind(Kind):
    """A kind whose models write text."""

    does = "it writes text"
    usage = "Load it with tritone.load"
    in_process = "tritone.pipelines.recognizer:Recognizer"
    answers = "transcripts"
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder", "streaming": "streaming_encoder"}
    stages: ClassVar[tuple[Stage, ...]] = ("features", "acoustic", "decoder")
    options = SearchOptions
    parameters = tuple(PARAMETERS)
    takes_pcm = True
    checks_levels = True
    stream_details = DETAILS
    searching: ClassVar[type[Searching]]  # what its models are searched with
    axes: ClassVar[int] = 1  # of outputs for whole utterances, see `transcript_tensors`

    @abstractmethod
    def frame_outputs(self, manifest: Manifest) -> Specs:
        """The outputs of an encoder that have a vector for each frame."""

    def obstacle(self, bundle: Bundle, mode: str) -> str | None:
        """Why a model cannot search in a mode, with the way out; None if it can."""
        return self.searching.obstacle(bundle, mode)

    def served(self, bundle: Bundle) -> Served:
        return Served(
            searches=tuple(mode for mode in self.modes if self.obstacle(bundle, mode) is None),
            languages=tuple(bundle.manifest.encoder.languages),
        )

    def roles(self, mode: str) -> tuple[Role, ...]:
        return self.searching.roles(mode)

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        streaming = manifest.streaming if role == "streaming_encoder" else None
        window = streaming.window_samples if streaming and not streaming.flexible else None
        features = TensorSpec(FLOAT32, (None, None, manifest.features.num_mel_bins))
        inputs = {**WAVEFORMS, "waveform": TensorSpec(FLOAT32, (None, window))}
        if role in ("encoder", "streaming_encoder"):
            inputs |= dict.fromkeys(manifest.encoder.asked(), TensorSpec(INT64, (None,)))
        if role == "features":
            return inputs, {"features": features}
        if role == "acoustic":
            inputs = {"features": features, "num_samples": inputs["num_samples"]}
        outputs = self.frame_outputs(manifest) | {"num_frames": TensorSpec(INT64, (None,))}
        if role == "encoder" and manifest.encoder.tags:
            outputs["tags"] = TensorSpec(INT64, (None, len(manifest.encoder.tags)))
        for state in streaming.states if streaming else ():
            inputs[state.name] = outputs[f"next_{state.name}"] = TensorSpec(
                np.dtype(state.dtype), (None, *(None if axis == LEFT_FRAMES else axis for axis in state.shape))
            )
        return inputs, outputs

    def open(self, bundle: Bundle, *, defaults: SearchSettings | None = None, **options: Any) -> OfflinePipeline:
        return OfflinePipeline(bundle, search=defaults, **options)

    def open_streaming(self, bundle: Bundle, **options: Any) -> "streaming.StreamingPipeline":
        return streaming.StreamingPipeline(bundle, **options)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return TEXT_OUTPUTS

    def read_options(
        self, pipeline: OfflinePipeline, parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> SearchOptions:
        return options_of(pipeline.searching, parameters, wanted)

    def answer(self, results: Sequence[Transcript], wanted: Collection[str]) -> dict[str, Array]:
        return transcript_tensors(results, wanted, axes=self.axes)

    def stream_answer(self, result: Transcript, *, details: bool) -> dict[str, Array]:
        return stream_tensors(result, details=details)


def speech_kind(bundle: Bundle) -> SpeechKind:
    """The kind of a bundle whose model writes text.

    Raises:
        BundleError: it does something else; says what.
    """
    kind = kind_of(bundle)
    if not isinstance(kind, SpeechKind):
        raise kind.unsearched(bundle)
    return kind


def options_of(searching: Searches, parameters: Mapping[str, Any], wanted: Collection[str]) -> SearchOptions:
    """How to search in the audio of a request: the usual way, with what the request asks for, checked.

    A request that does not take details gets no times, which nobody would see.

    Raises:
        InputError: it asks for what the model does not have.
    """
    options = searching.check(searching.options.changed(parameters)) if parameters else searching.options
    return _untimed(options) if options.timestamps and DETAILS not in wanted else options


@lru_cache(64)
def _untimed(options: SearchOptions) -> SearchOptions:
    """The same options without times; one object for all requests that ask alike."""
    return replace(options, timestamps=False)


def stream_tensors(result: Transcript, *, details: bool) -> dict[str, Array]:
    """The transcript of a stream so far as output tensors."""
    if details:
        return transcript_tensors([result], (TRANSCRIPTS, DETAILS))
    text = np.empty(1, dtype=object)  # thousands of them go out in a second
    text[0] = result.whole_text.encode()
    return {TRANSCRIPTS: text}


def transcript_tensors(
    transcripts: Sequence[Transcript], wanted: Collection[str], *, axes: int = 1
) -> dict[str, Array]:
    """Transcripts as output tensors, `DETAILS` only if it is wanted.

    Args:
        axes: of the outputs, 1 or 2: (rows,) or (rows, 1).
    """
    # Of a stream with endpoints the text of all segments: no client should lose text because it reads nothing else.
    texts = {TRANSCRIPTS: [each.whole_text for each in transcripts]}
    if DETAILS in wanted:
        texts[DETAILS] = [json.dumps(each.to_dict(), ensure_ascii=False) for each in transcripts]
    return {
        # Triton sends the shape as it is, whatever is declared.
        name: np.array([text.encode() for text in column], dtype=object).reshape(len(column), *[1] * (axes - 1))
        for name, column in texts.items()
    }
