"""The model that Triton runs for whole inputs, whatever its kind: one pipeline call for each ragged batch of requests.

A pipeline that takes requests at any time (`submit`) answers each when it is done; see `continuous`.

What goes in and out is the kind's matter, see `tritone.kinds`: WAV to TRANSCRIPTS, or to EMBEDDINGS.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from tritone.backend import heartbeat
from tritone.backend.batch import BatchModel, of_one
from tritone.backend.continuous import Answering
from tritone.backend.metrics import Metrics
from tritone.backend.process import batch, ready, start_instance
from tritone.backend.replies import reply
from tritone.backend.requests import parameters_text, parsed_parameters, tensors_of
from tritone.errors import TritoneError
from tritone.kinds import kind_of
from tritone.pipelines.isolation import as_value
from tritone.preparing import timed

KEPT_OPTIONS = 64  # of requests that ask alike
KEPT_CHARACTERS = 4096  # of parameters; those with many hotwords are read again


class Job(NamedTuple):
    """One good request: what the pipeline takes for each of its rows, and the options of all of them."""

    rows: Sequence[Any]
    options: Any


class TritonPythonModel(BatchModel[Job, list[Any]]):
    """Triton's interface; the names are its own."""

    _answering: Answering | None = None  # of a pipeline that takes requests at any time

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        self._settings = instance.settings
        self._kind = kind_of(instance.bundle)
        with timed(instance.placement.preparing, "opening in all"):
            self._pipeline = self._kind.open(
                instance.bundle,
                placement=instance.placement,
                max_audio_s=instance.settings.max_audio_s,
                defaults=instance.defaults(self._kind),
                **instance.beside,
            )
        self._ahead = ready(self._pipeline, instance)
        if hasattr(self._pipeline, "submit"):
            self._answering = Answering(lambda: self._pipeline.has_room)
        self._metrics = Metrics(args, warmups=instance.warmups)

    def __init__(self) -> None:
        super().__init__()
        self._options_of = lru_cache(KEPT_OPTIONS)(self._options)

    def execute(self, requests: Sequence[Any]) -> Any:
        """Answer a batch; None where the answers come later."""
        if self._answering is None:
            return super().execute(requests)
        for request in requests:
            with heartbeat.waiting():
                self._answering.hold()
            with batch():
                self._begin(self._answering, request)
        self._count(self._answering)
        return None

    def finalize(self) -> None:
        """As `BatchModel.finalize`, with what was answered since the last batch."""
        if self._answering is not None:
            self._count(self._answering)
        super().finalize()

    def _count(self, answering: Answering) -> None:
        """Count what was answered; here, since Triton hangs when other threads tell it numbers."""
        work = self._pipeline.work.take()
        self._metrics.count(answering.take(), work, work.search_s)

    def _begin(self, answering: Answering, request: Any) -> None:
        try:
            job, wanted = self._parse(request), request.requested_output_names()
        except Exception as error:
            fault = as_value(error)
            answering.begin(request, 0, list).answer(lambda: fault)
            return

        def worded(results: Sequence[Any]) -> Any:
            found = of_one(results)
            return found if isinstance(found, TritoneError) else reply(self._kind.answer(found, wanted))

        waiting = answering.begin(request, len(job.rows), worded)
        for index, row in enumerate(job.rows):
            self._pipeline.submit(row, job.options, partial(waiting.done, index), waiting.given_up)

    def parse(self, request: Any) -> Job:
        parameters, wanted = parameters_text(request), frozenset(request.requested_output_names())
        options = (self._options_of if len(parameters) <= KEPT_CHARACTERS else self._options)(parameters, wanted)
        rows = self._kind.read(
            tensors_of(request), sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s
        )
        return Job(rows, options)

    def _options(self, parameters: str, wanted: Collection[str]) -> Any:
        return self._kind.read_options(self._pipeline, parsed_parameters(parameters, self._kind.parameters), wanted)

    def run(self, jobs: Sequence[Job]) -> list[list[Any] | TritoneError]:
        options = [job.options for job in jobs for _ in job.rows]
        results = iter(self._pipeline.run([row for job in jobs for row in job.rows], options))
        return [of_one([next(results) for _ in job.rows]) for job in jobs]

    def answer(self, request: Any, result: list[Any]) -> Any:
        return reply(self._kind.answer(result, request.requested_output_names()))
