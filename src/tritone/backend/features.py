"""The first of three models that Triton runs for whole utterances: waveforms to features.

WAV (rows, samples) float32, WAV_LENS (rows, 1) int32  ->  features (rows, frames, bins), num_samples (rows, 1)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend.batch import BatchModel
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics
from tritone.backend.requests import Waveform, parameters_of, waveforms_of
from tritone.errors import InputError
from tritone.pipelines.stages import FeaturePipeline
from tritone.runtime.graph import Array


class TritonPythonModel(BatchModel[list[Waveform], dict[str, Array]]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._settings = instance.settings
        self._pipeline = FeaturePipeline(
            instance.bundle,
            placement=instance.placement,
            max_audio_s=instance.settings.max_audio_s,
            min_padded_s=instance.settings.min_padded_s,
        )
        self._pipeline.warm_up()
        self._metrics = Metrics(args, streaming=False, warmups=instance.warmups)

    def parse(self, request: Any) -> list[Waveform]:
        """See `BatchModel`."""
        rows = waveforms_of(request, sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s)
        for row in rows:
            self._pipeline.check(row)
        manifest = self._pipeline.bundle.manifest
        if manifest.kind == "embedding":
            if parameters := parameters_of(request):
                raise InputError(
                    f"this model takes no request parameters, got {', '.join(parameters)}; windows are for speaker "
                    "models of the usual layout (--layout fused)"
                )
            if manifest.encoder.equal_lengths and len({len(row) for row in rows}) > 1:
                raise InputError("all rows of a request to this model must be of one length; send one row each")
        return rows

    def run(self, jobs: Sequence[list[Waveform]]) -> list[dict[str, Array]]:
        """See `BatchModel`."""
        return self._pipeline.extract(jobs)

    def answer(self, request: Any, result: dict[str, Array]) -> Any:
        """See `BatchModel`."""
        tensors = [
            pb_utils.Tensor("features", result["features"]),
            pb_utils.Tensor("num_samples", result["num_samples"][:, None]),
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)
