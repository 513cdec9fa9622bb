"""The model that Triton runs for whole utterances: one pipeline call for each ragged batch of requests."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend.metrics import Metrics, outcome_of
from tritone.backend.placement import placement
from tritone.backend.replies import error_reply, reply
from tritone.backend.requests import Waveform, waveforms_of
from tritone.errors import TritoneError
from tritone.pipelines import open_offline
from tritone.transcript import Transcript


class TritonPythonModel:
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        place = placement(args)
        self._settings = place.settings
        self._pipeline = open_offline(
            place.bundle,
            device=place.device,
            threads=place.threads,
            runtime=place.settings.runtime or None,
            precision=place.settings.precision or None,
            max_audio_s=place.settings.max_audio_s,
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
            error_reply(outcome) if isinstance(outcome, Exception) else reply(request, outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        told = [outcome_of(outcome) for outcome in outcomes]
        self._metrics.count(told, self._pipeline.work.take(), time.perf_counter() - start)
        return answers

    def finalize(self) -> None:
        """Tell the last numbers."""
        self._metrics.tell()

    def _parse(self, request: Any) -> list[Waveform] | TritoneError:
        try:
            return waveforms_of(request, sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s)
        except TritoneError as error:
            return error

    def _recognize(self, items: Sequence[list[Waveform]]) -> list[list[Transcript] | Exception]:
        if not items:
            return []
        try:
            transcripts = iter(self._pipeline.recognize([waveform for rows in items for waveform in rows]))
            return [[next(transcripts) for _ in rows] for rows in items]
        except Exception as error:
            pb_utils.Logger.log_error(f"a batch of {len(items)} requests failed: {type(error).__name__}: {error}")
            if len(items) == 1:
                return [error]
        # Whoever broke the batch shall break only its own request.
        return [outcome for item in items for outcome in self._recognize([item])]
