"""The first of the models that Triton runs for whole utterances in stages: waveforms to features.

WAV (rows, samples) float32 or PCM int16, WAV_LENS  ->  features (rows, frames, bins), num_samples (rows, 1)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tritone.audio.waveform import Samples
from tritone.backend.batch import BatchModel
from tritone.backend.metrics import Metrics
from tritone.backend.process import start_instance
from tritone.backend.replies import reply
from tritone.backend.requests import parameters_of, tensors_of
from tritone.errors import InputError, TritoneError
from tritone.kinds import kind_of
from tritone.later import load
from tritone.pipelines.audio_tensors import read_waveforms
from tritone.pipelines.stages import FeaturePipeline, Tensors


class TritonPythonModel(BatchModel[Sequence[Samples], Tensors]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        self._settings = instance.settings
        self._kind = kind_of(instance.bundle)
        self._pipeline = FeaturePipeline(
            instance.bundle,
            placement=instance.placement,
            max_audio_s=instance.settings.max_audio_s,
            min_padded_s=instance.settings.min_padded_s,
        )
        self._pipeline.warm_up()
        load(["filling_kernel"])  # large blocks, of which silence is none
        self._metrics = Metrics(args, warmups=instance.warmups)

    def parse(self, request: Any) -> Sequence[Samples]:
        rows = read_waveforms(
            tensors_of(request),
            sample_rate=self._settings.sample_rate,
            max_audio_s=self._settings.max_audio_s,
            names=self._settings.tensor_names,
        )
        for row in rows:
            self._pipeline.check(row)
        parameters = parameters_of(request, self._kind.parameters)
        if fault := self._kind.row_fault(self._pipeline.bundle, rows, parameters):
            raise InputError(fault)
        return rows

    def run(self, jobs: Sequence[Sequence[Samples]]) -> list[Tensors | TritoneError]:
        return self._pipeline.run(jobs)

    def answer(self, request: Any, result: Tensors) -> Any:
        return reply({"features": result["features"], "num_samples": result["num_samples"][:, None]})
