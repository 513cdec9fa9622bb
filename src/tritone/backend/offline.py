"""The model that Triton runs for whole utterances: one pipeline call for each ragged batch of requests."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend.metrics import Metrics, outcome_of
from tritone.backend.placement import placement
from tritone.backend.replies import error_reply, reply
from tritone.backend.requests import Waveform, parameters_of, waveforms_of
from tritone.backend.wire import OFFLINE_AXES
from tritone.errors import TritoneError
from tritone.pipelines import open_offline
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript


@dataclass(frozen=True)
class Job:
    """One good request: its waveforms, and how to search in them."""

    rows: Sequence[Waveform]
    options: SearchOptions


class TritonPythonModel:
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        place = placement(args)
        self._settings = place.settings
        self._axes = OFFLINE_AXES[place.bundle.manifest.kind]
        self._pipeline = open_offline(
            place.bundle,
            device=place.device,
            threads=place.threads,
            runtime=place.settings.runtime or None,
            precision=place.settings.precision or None,
            max_audio_s=place.settings.max_audio_s,
            search=place.search,
        )
        self._pipeline.warm_up()
        self._pipeline.work.take()  # nobody asked for that
        self._metrics = Metrics(args, streaming=False, warmups=place.warmups)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch: good requests share one pipeline call, bad ones get an error each."""
        start = time.perf_counter()
        parsed = [self._parse(request) for request in requests]
        good = [item for item in parsed if not isinstance(item, TritoneError)]
        results = iter(self._recognize(good))
        outcomes = [item if isinstance(item, TritoneError) else next(results) for item in parsed]
        answers = [
            error_reply(outcome) if isinstance(outcome, Exception) else reply(request, outcome, axes=self._axes)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        told = [outcome_of(outcome) for outcome in outcomes]
        self._metrics.count(told, self._pipeline.work.take(), time.perf_counter() - start)
        return answers

    def finalize(self) -> None:
        """Tell the last numbers."""
        self._metrics.tell()

    def _parse(self, request: Any) -> Job | TritoneError:
        try:
            searching = self._pipeline.searching
            options = searching.options
            if parameters := parameters_of(request):
                options = searching.check(options.changed(parameters))
            rows = waveforms_of(request, sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s)
        except TritoneError as error:
            return error
        return Job(rows, options)

    def _recognize(self, jobs: Sequence[Job]) -> list[list[Transcript] | Exception]:
        if not jobs:
            return []
        try:
            waveforms = [waveform for job in jobs for waveform in job.rows]
            options = [job.options for job in jobs for _ in job.rows]
            transcripts = iter(self._pipeline.recognize(waveforms, options))
            return [[next(transcripts) for _ in job.rows] for job in jobs]
        except Exception as error:
            pb_utils.Logger.log_error(f"a batch of {len(jobs)} requests failed: {type(error).__name__}: {error}")
            if len(jobs) == 1:
                return [error]
        # Whoever broke the batch shall break only its own request.
        return [outcome for job in jobs for outcome in self._recognize([job])]
