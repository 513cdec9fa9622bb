"""The model that Triton runs for whole utterances: one pipeline call for each ragged batch of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritone.backend.batch import BatchModel
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics
from tritone.backend.replies import reply
from tritone.backend.requests import Waveform, options_of, waveforms_of
from tritone.backend.wire import OFFLINE_AXES
from tritone.pipelines import open_offline
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript


@dataclass(frozen=True)
class Job:
    """One good request: its waveforms, and how to search in them."""

    rows: Sequence[Waveform]
    options: SearchOptions


class TritonPythonModel(BatchModel[Job, list[Transcript]]):
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._settings = instance.settings
        self._axes = OFFLINE_AXES[instance.bundle.manifest.kind]
        self._pipeline = open_offline(
            instance.bundle,
            placement=instance.placement,
            max_audio_s=instance.settings.max_audio_s,
            search=instance.search,
        )
        self._pipeline.warm_up()
        self._pipeline.work.take()  # nobody asked for that
        self._metrics = Metrics(args, streaming=False, warmups=instance.warmups)

    def parse(self, request: Any) -> Job:
        """See `BatchModel`."""
        options = options_of(request, self._pipeline.searching)
        rows = waveforms_of(request, sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s)
        for row in rows:
            self._pipeline.check(row)
        return Job(rows, options)

    def run(self, jobs: Sequence[Job]) -> list[list[Transcript]]:
        """See `BatchModel`."""
        waveforms = [waveform for job in jobs for waveform in job.rows]
        options = [job.options for job in jobs for _ in job.rows]
        transcripts = iter(self._pipeline.recognize(waveforms, options))
        return [[next(transcripts) for _ in job.rows] for job in jobs]

    def answer(self, request: Any, result: list[Transcript]) -> Any:
        """See `BatchModel`."""
        return reply(request, result, axes=self._axes)
