"""Speaker models: one vector for each utterance."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.errors import AudioError
from tritone.kinds.embedding.part import PARTS
from tritone.pipelines.embed_options import PARAMETERS, EmbedOptions
from tritone.pipelines.embedding import EMBEDDINGS as EMBEDDINGS_OF_GRAPH
from tritone.pipelines.embedding import NOT_FINITE, EmbeddingPipeline
from tritone.pipelines.kind import FLOAT32, WAVEFORMS, Kind, Mode, Specs, Stage
from tritone.pipelines.wire import EMBEDDINGS, Tensor, audio_inputs
from tritone.runtime.graph import Array, TensorSpec


class EmbeddingKind(Kind):
    """Nothing is searched, and an utterance that is too short is an error, since it has no embedding."""

    name = "embedding"
    noun = "a speaker model"
    does = "it makes embeddings"
    usage = "Use it with `tritone embed` or tritone.load"
    in_process = "tritone.pipelines.embedder:Embedder"
    answers = "embeddings"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"embedding": "encoder"}
    stages: ClassVar[tuple[Stage, ...]] = ("features", "acoustic")
    options = EmbedOptions
    parameters = PARAMETERS
    whole_outputs = EMBEDDINGS_OF_GRAPH
    allows_silence = False
    takes_pcm = True

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        features = {"features": TensorSpec(FLOAT32, (None, None, manifest.features.num_mel_bins))}
        if role == "features":
            return dict(WAVEFORMS), features
        inputs = {**features, "num_samples": WAVEFORMS["num_samples"]} if role == "acoustic" else dict(WAVEFORMS)
        return inputs, {"embeddings": TensorSpec(FLOAT32, (None, manifest.encoder.output_dim))}

    def open(self, bundle: Bundle, *, defaults: EmbedOptions | None = None, **options: Any) -> EmbeddingPipeline:
        return EmbeddingPipeline(bundle, options=defaults, **options)

    def inputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return audio_inputs(lens_optional=True)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=EMBEDDINGS, type="FP32", dims=(bundle.manifest.encoder.output_dim,)),)

    def read_options(
        self, pipeline: EmbeddingPipeline, parameters: Mapping[str, Any], wanted: Collection[str]
    ) -> EmbedOptions:
        return pipeline.check_options(pipeline.options.changed(parameters)) if parameters else pipeline.options

    def answer(self, results: Sequence[Array], wanted: Collection[str]) -> dict[str, Array]:
        return {EMBEDDINGS: np.stack(results) if len(results) > 1 else results[0][None]}  # one alone is not copied

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        return EMBEDDINGS_OF_GRAPH

    def row_fault(self, bundle: Bundle, rows: Sequence[Samples], parameters: Mapping[str, Any]) -> str | None:
        if parameters:
            return (
                f"this model takes no request parameters, got {', '.join(parameters)}; windows are for speaker "
                "models of the usual layout (--layout fused)"
            )
        if bundle.manifest.encoder.equal_lengths and len({len(row) for row in rows}) > 1:
            return "all rows of a request to this model must be of one length; send one row each"
        return None

    def checked(self, outputs: Mapping[str, Array]) -> Mapping[str, Array] | AudioError:
        return outputs if np.isfinite(outputs["embeddings"]).all() else AudioError(NOT_FINITE)


KIND = EmbeddingKind()
