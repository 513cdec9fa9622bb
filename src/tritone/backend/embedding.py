"""The model that Triton runs for embeddings of whole utterances: one pipeline call for each ragged batch of requests.

WAV (rows, samples) float32, perhaps WAV_LENS (rows, 1) int32  ->  EMBEDDINGS (rows, dim) float32
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tritone.backend.batch import BatchModel
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics
from tritone.backend.requests import Waveform, parameters_of, waveforms_of
from tritone.backend.wire import EMBEDDINGS
from tritone.errors import InputError
from tritone.pipelines import EmbeddingPipeline, EmbedOptions
from tritone.runtime.graph import Array


@dataclass(frozen=True)
class Job:
    """One good request: its waveforms, and how to embed them."""

    rows: Sequence[Waveform]
    options: EmbedOptions


class TritonPythonModel(BatchModel[Job, Array | InputError]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._settings = instance.settings
        self._pipeline = EmbeddingPipeline(
            instance.bundle,
            placement=instance.placement,
            max_audio_s=instance.settings.max_audio_s,
            options=instance.settings.embed_options(),
        )
        self._pipeline.warm_up()
        self._metrics = Metrics(args, streaming=False, warmups=instance.warmups)

    def parse(self, request: Any) -> Job:
        """See `BatchModel`."""
        options = self._pipeline.options
        if parameters := parameters_of(request):
            options = self._pipeline.check_options(options.changed(parameters))
        rows = waveforms_of(request, sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s)
        return Job(rows, options)

    def run(self, jobs: Sequence[Job]) -> list[Array | InputError]:
        """See `BatchModel`. One row that has no embedding is an error of its request alone."""
        waveforms = [waveform for job in jobs for waveform in job.rows]
        options = [job.options for job in jobs for _ in job.rows]
        found = iter(self._pipeline.embed_each(waveforms, options))
        return [_together([next(found) for _ in job.rows]) for job in jobs]

    def answer(self, request: Any, result: Array | InputError) -> Any:
        """See `BatchModel`."""
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(EMBEDDINGS, result)])


def _together(rows: Sequence[Array | InputError]) -> Array | InputError:
    for index, row in enumerate(rows):
        if isinstance(row, InputError):
            return row if len(rows) == 1 else type(row)(f"row {index}: {row}")
    return np.stack(rows) if len(rows) > 1 else rows[0][None]  # type: ignore[arg-type,index]  # no errors are left
