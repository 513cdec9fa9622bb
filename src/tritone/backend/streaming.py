"""The model that Triton runs for streams: one pipeline step for the chunks of many streams.

A chunk that cannot be used gets an error and is ignored, as if it had not been sent: its stream stays open and goes on
with the next chunk. START opens and END closes the stream even on such a chunk. How to search is said with START; where
that cannot be done, the stream is not opened.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend import heartbeat
from tritone.backend.instance import read_instance
from tritone.backend.metrics import Metrics, Outcome, outcome_of
from tritone.backend.replies import error_reply, reply
from tritone.backend.requests import parameters_of, tensors_of
from tritone.backend.settings import DRAINING
from tritone.backend.streams import StreamId, StreamTable
from tritone.errors import AudioError, InputError, OperatorError, ServerBusyError, TritoneError
from tritone.pipelines import Step, Transcript
from tritone.pipelines.isolation import as_value
from tritone.pipelines.kinds import kind_of
from tritone.pipelines.kinds.audio import read_waveforms
from tritone.pipelines.kinds.speech import transcript_tensors
from tritone.search.options import SearchOptions

# Bits of a request's flags in a sequence, as in TRITONSERVER_RequestFlag.
SEQUENCE_START = 1
SEQUENCE_END = 2


class StepError(OperatorError):
    """The pipeline failed for no reason that a request gave; nobody knows the state of its streams any more."""


@dataclass(frozen=True)
class OpenStream:
    """A stream's slot in the pipeline, and how it is searched."""

    slot: int
    options: SearchOptions


class TritonPythonModel:
    """Triton's interface; the names are its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle, make the slots and warm up. An error here is why the model does not load."""
        instance = read_instance(args)
        self._settings = instance.settings
        self._kind = kind_of(instance.bundle)
        self._pipeline = self._kind.open_streaming(
            instance.bundle,
            placement=instance.placement,
            capacity=instance.settings.max_streams,
            max_batch=instance.max_batch,
            search=instance.search,
            endpoints=instance.settings.endpoint_rules(),
            **instance.settings.chunking(),
        )
        self._pipeline.warm_up()
        self._metrics = Metrics(args, streaming=True, warmups=instance.warmups)
        self._outcomes: list[Outcome] = []  # of the batch under way
        self._streams = StreamTable(
            self._open,
            lambda stream: self._pipeline.close(stream.slot),
            capacity=instance.settings.max_streams,
            idle_timeout_s=instance.settings.idle_timeout_s,
        )
        draining = os.environ.get(DRAINING)
        self._draining = Path(draining) if draining else None

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch of chunks, each of its own stream."""
        start = time.perf_counter()
        # Whose chunk waited here while an earlier step took its time was not idle.
        if expired := self._streams.expire(keep={request.correlation_id() for request in requests}):
            pb_utils.Logger.log_info(f"closed idle streams: {', '.join(map(str, expired))}")
        answers: list[Any] = []
        with heartbeat.batch():
            for wave in _waves(requests):
                answers += self._advance(wave)
        outcomes, self._outcomes = self._outcomes, []
        work = self._pipeline.work.take()
        self._metrics.count(outcomes, work, time.perf_counter() - start, len(self._streams))
        return answers

    def finalize(self) -> None:
        """Tell the last numbers; the streams end with the model."""
        self._metrics.tell()

    def _advance(self, requests: Sequence[Any]) -> list[Any]:
        parsed = [self._parse(request) for request in requests]
        results = iter(self._step([item for item in parsed if not isinstance(item, TritoneError)]))
        answers = []
        for request, item in zip(requests, parsed, strict=True):
            stream, final = request.correlation_id(), bool(_flags(request) & SEQUENCE_END)
            outcome = item if isinstance(item, TritoneError) else next(results)
            self._outcomes.append(outcome_of(outcome))
            if isinstance(outcome, Transcript):
                if final:
                    self._streams.forget(stream)
                answers.append(reply(transcript_tensors([outcome], request.requested_output_names())))
            else:
                if final or isinstance(outcome, StepError):
                    self._streams.close(stream)
                answers.append(error_reply(outcome))
        return answers

    def _step(self, steps: Sequence[Step]) -> Sequence[Transcript | TritoneError]:
        try:
            return self._pipeline.advance(steps) if steps else []
        except Exception as error:
            pb_utils.Logger.log_error(f"a step of {len(steps)} streams failed: {type(error).__name__}: {error}")
            return [StepError(f"the step failed ({type(error).__name__}: {error}). Start the stream again.")] * len(
                steps
            )

    def _open(self, options: SearchOptions) -> OpenStream:
        return OpenStream(self._pipeline.open(options), options)

    def _parse(self, request: Any) -> Step | TritoneError:
        stream, flags = request.correlation_id(), _flags(request)
        final = bool(flags & SEQUENCE_END)
        try:
            opened = self._start(request) if flags & SEQUENCE_START else self._streams.touch(stream)
        except TritoneError as error:
            return as_value(error)
        try:
            if not flags & SEQUENCE_START:
                self._check_unchanged(request, opened.options)
            (waveform,) = read_waveforms(
                tensors_of(request),
                sample_rate=self._settings.sample_rate,
                max_audio_s=self._settings.max_audio_s,
                allow_empty=True,  # END may come on a chunk without samples
            )
        except TritoneError as error:
            after = "END closed the stream" if final else "the stream goes on without it"
            kind = AudioError if isinstance(error, AudioError) else InputError
            return as_value(kind(f"stream {stream}: {str(error).rstrip('.')}. The chunk was ignored; {after}."))
        return Step(opened.slot, waveform, final)

    def _start(self, request: Any) -> OpenStream:
        stream, searching = request.correlation_id(), self._pipeline.searching
        try:
            options = searching.options
            if parameters := parameters_of(request, self._kind.parameters):
                options = searching.check(options.changed(parameters))
        except InputError as error:
            self._streams.close(stream)  # START ended what was there before
            raise InputError(f"stream {stream}: {str(error).rstrip('.')}. The stream was not opened.") from error
        if self._draining is not None and self._draining.exists():
            raise ServerBusyError(f"stream {stream}: this server is ending. Start the stream again at another one.")
        return self._streams.start(stream, options)

    def _check_unchanged(self, request: Any, options: SearchOptions) -> None:
        parameters = parameters_of(request, self._kind.parameters)
        if parameters and self._pipeline.searching.check(options.changed(parameters)) != options:
            asked = ", ".join(f"{name}={value}" for name, value in parameters.items())
            raise InputError(
                f"how to search is said with START and cannot change later, but this chunk asks for {asked[:200]}. "
                "Leave the parameters out, or repeat those of START"
            )


def _flags(request: Any) -> int:
    # Triton refuses id 0 from clients; its own warm-up comes with it, and without flags.
    return int(request.flags()) if request.correlation_id() != 0 else SEQUENCE_START | SEQUENCE_END


def _waves(requests: Sequence[Any]) -> Iterator[list[Any]]:
    """Cut a batch where a stream comes a second time, as when it was restarted while a chunk was still queued."""
    wave: list[Any] = []
    seen: set[StreamId] = set()
    for request in requests:
        stream = request.correlation_id()
        if stream in seen:
            yield wave
            wave, seen = [], set()
        wave.append(request)
        seen.add(stream)
    if wave:
        yield wave
