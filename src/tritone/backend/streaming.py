"""The model that Triton runs for streams: one pipeline step for the chunks of many streams.

A chunk that cannot be used gets an error and is ignored, as if it had not been sent: its stream stays open and goes on
with the next chunk. START opens and END closes the stream even on such a chunk. Search options come with START; where
they cannot be met, the stream is not opened. A chunk that its client has given up before it was computed ends the
stream.

Two clients may send the same stream id. START on an open stream is refused, and the stream goes on. Chunks that the
second client has sent after its START all the same have the first one's id; they are refused where their request id
is that of the refused START.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from tritone.backend.given_up import GivenUpError, Patience
from tritone.backend.metrics import Metrics, Outcome, outcome_of
from tritone.backend.process import batch, ready, start_instance
from tritone.backend.replies import StepError, error_reply, reply
from tritone.backend.requests import parameters_of, tensors_of
from tritone.backend.settings import DRAINING
from tritone.backend.streams import StreamId, StreamTable
from tritone.errors import AudioError, InputError, ServerBusyError, StreamError, TritoneError
from tritone.kinds import kind_of
from tritone.pipelines import Step
from tritone.pipelines.audio_tensors import read_chunk
from tritone.pipelines.isolation import UnexpectedError, as_value, attempt

# Bits of a request's flags in a sequence, as in TRITONSERVER_RequestFlag.
SEQUENCE_START = 1
SEQUENCE_END = 2


MAX_RIVALS = 16  # refused STARTs that are remembered of an open stream


class Chunk(NamedTuple):
    """A request with what says whose it is."""

    request: Any
    stream: StreamId
    start: bool
    final: bool


@dataclass(slots=True)
class OpenStream:
    """A stream's slot in the pipeline, and its options.

    `request_id`: of its START, empty where the client gives none. `rivals`: other request ids that came with START
    while it was open.
    """

    slot: int
    options: Any
    request_id: str = ""
    rivals: set[str] = field(default_factory=set)


class TritonPythonModel:
    """Triton's interface; the names are its own."""

    _draining: Path | None = None  # while this file exists no stream may begin

    def __init__(self) -> None:
        self._patience = Patience()

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the bundle, make the slots and warm up. An error here is why the model does not load."""
        instance = start_instance(args)
        self._settings = instance.settings
        self._kind = kind_of(instance.bundle)
        self._pipeline = self._kind.open_streaming(
            instance.bundle,
            placement=instance.placement,
            capacity=instance.settings.max_streams,
            max_batch=instance.max_batch,
            **instance.stream_options(self._kind),
        )
        self._ahead = ready(self._pipeline, instance, in_steps=True)
        self._metrics = Metrics(args, slots=instance.settings.max_streams, warmups=instance.warmups)
        self._outcomes: list[Outcome] = []  # of the batch under way
        self._streams = StreamTable(
            self._open,
            self._close,
            capacity=instance.settings.max_streams,
            idle_timeout_s=instance.settings.idle_timeout_s,
        )
        if DRAINING in os.environ:
            self._draining = Path(os.environ[DRAINING])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch of chunks, each of its own stream."""
        start = time.perf_counter()
        chunks = [attempt(_chunk, request) for request in requests]
        if self._streams.has_idle:
            # Whose chunk waited here while an earlier step took its time was not idle.
            waited = {each.stream for each in chunks if isinstance(each, Chunk) and not each.start}
            if expired := self._streams.expire(keep=waited):
                pb_utils.Logger.log_info(f"closed idle streams: {', '.join(map(str, expired))}")
        self._patience.begin()
        with batch():
            answers = [answer for wave in _waves(chunks) for answer in self._advance(wave)]
        outcomes, self._outcomes = self._outcomes, []
        work = self._pipeline.work.take()
        self._metrics.count(outcomes, work, time.perf_counter() - start, len(self._streams))
        self._patience.end()
        return answers

    def finalize(self) -> None:
        """Tell the last numbers; the streams end with the model."""
        if self._ahead is not None:
            self._ahead.close()
        self._metrics.report()

    def _advance(self, chunks: Sequence[Chunk | TritoneError]) -> list[Any]:
        steps = [each if isinstance(each, TritoneError) else attempt(self._parse, each) for each in chunks]
        results = iter(self._step([each for each in steps if isinstance(each, Step)]))
        answers = []
        for chunk, step in zip(chunks, steps, strict=True):
            outcome = next(results) if isinstance(step, Step) else step
            if isinstance(chunk, Chunk):
                outcome = self._finish(chunk, step, outcome)
            self._outcomes.append(outcome_of(outcome))
            answers.append(error_reply(outcome) if isinstance(outcome, TritoneError) else outcome)
        return answers

    def _finish(self, chunk: Chunk, step: Step | TritoneError, outcome: Any) -> Any:
        """The answer to a chunk or its error, after closing its stream where it has ended."""
        if isinstance(outcome, TritoneError):
            # After END Triton lets no chunk of the id through, not even to a stream that END was not meant for.
            if chunk.final or isinstance(outcome, StepError) or (isinstance(outcome, GivenUpError) and not chunk.start):
                self._streams.close(chunk.stream)
            return outcome
        if chunk.final:
            self._streams.forget(chunk.stream)
        details = isinstance(step, Step) and step.details
        return attempt(lambda answer: reply(self._kind.stream_answer(answer, details=details)), outcome)

    def _step(self, steps: Sequence[Step]) -> Sequence[Any]:
        try:
            return self._pipeline.advance(steps) if steps else []
        except Exception as error:
            failure = as_value(error)
            report = f"\n{failure.report}" if isinstance(failure, UnexpectedError) else ""
            pb_utils.Logger.log_error(f"a step of {len(steps)} streams failed: {failure}{report}")
            message = f"the step failed ({type(error).__name__}); the server's log says why. Start the stream again."
            return [StepError(message)] * len(steps)

    def _open(self, options: Any, request_id: str) -> OpenStream:
        return OpenStream(self._pipeline.open(options), options, request_id)

    def _close(self, stream: OpenStream) -> None:
        failure = attempt(self._pipeline.close, stream.slot)
        if isinstance(failure, TritoneError):
            pb_utils.Logger.log_error(f"a stream could not be closed: {failure}")

    def _parse(self, chunk: Chunk) -> Step:
        request = chunk.request
        if chunk.start:
            self._patience.check(request)
        opened = self._start(chunk) if chunk.start else self._continue(chunk)
        if not chunk.start:
            self._patience.check(request)
        try:
            if not chunk.start:
                self._check_unchanged(request, opened.options)
            samples = read_chunk(
                tensors_of(request), sample_rate=self._settings.sample_rate, max_audio_s=self._settings.max_audio_s
            )
            details = self._kind.stream_details in request.requested_output_names()
        except InputError as error:
            after = "END closed the stream" if chunk.final else "the stream goes on without it"
            kind = AudioError if isinstance(error, AudioError) else InputError
            reason = str(error).rstrip(".")
            raise kind(f"stream {chunk.stream}: {reason}. The chunk was ignored; {after}.") from error
        return Step(opened.slot, samples, chunk.final, details)

    def _start(self, chunk: Chunk) -> OpenStream:
        opened, request_id = self._streams.get(chunk.stream), _request_id(chunk.request)
        if opened is not None and request_id not in ("", opened.request_id) and len(opened.rivals) < MAX_RIVALS:
            opened.rivals.add(request_id)
        try:
            options = self._pipeline.changed(parameters_of(chunk.request, self._kind.parameters))
        except InputError as error:
            raise InputError(f"stream {chunk.stream}: {str(error).rstrip('.')}. The stream was not opened.") from error
        except ServerBusyError as error:  # its search is being compiled
            raise error.saying(f"stream {chunk.stream}: {error}. The stream was not opened.") from error
        if self._draining is not None and self._draining.exists():
            raise ServerBusyError(
                f"stream {chunk.stream}: this server is ending. Start the stream again at another one."
            )
        return self._streams.start(chunk.stream, options, request_id)

    def _continue(self, chunk: Chunk) -> OpenStream:
        opened = self._streams.get(chunk.stream)
        if opened is not None and opened.rivals and (request_id := _request_id(chunk.request)) in opened.rivals:
            raise StreamError(
                f"stream {chunk.stream} belongs to another client: the START with this chunk's request id "
                f"({request_id[:80]}) was refused. The chunk was ignored. Start a stream with another id."
            )
        return self._streams.touch(chunk.stream)

    def _check_unchanged(self, request: Any, options: Any) -> None:
        parameters = parameters_of(request, self._kind.parameters)
        try:
            same = self._pipeline.changed(parameters, options) == options
        except ServerBusyError:  # of another search: that of an open stream is compiled
            same = False
        if not same:
            asked = ", ".join(f"{name}={value}" for name, value in parameters.items())
            raise InputError(
                f"options are given with START and cannot change later, but this chunk asks for {asked[:200]}. "
                "Leave them out, or repeat those of START"
            )


def _chunk(request: Any) -> Chunk:
    """Raises `InputError` where the id of a stream cannot be read, which is when Python cannot make text of it."""
    try:
        stream = request.correlation_id()
    except UnicodeDecodeError as error:
        raise InputError("the sequence id is not UTF-8; send text or a number above 0") from error
    # Triton refuses id 0 from clients; its own warm-up comes with it, and without flags.
    flags = int(request.flags()) if stream != 0 else SEQUENCE_START | SEQUENCE_END
    return Chunk(request, stream, bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END))


def _request_id(request: Any) -> str:
    """Empty where the client gives none."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError as error:
        raise InputError("the request id is not UTF-8; send text") from error


def _waves(chunks: Sequence[Chunk | TritoneError]) -> Iterator[list[Chunk | TritoneError]]:
    """Cut a batch where a stream comes a second time, as when it was restarted while a chunk was still queued."""
    wave: list[Chunk | TritoneError] = []
    seen: set[StreamId] = set()
    for chunk in chunks:
        if isinstance(chunk, Chunk):
            if chunk.stream in seen:
                yield wave
                wave, seen = [], set()
            seen.add(chunk.stream)
        wave.append(chunk)
    if wave:
        yield wave
