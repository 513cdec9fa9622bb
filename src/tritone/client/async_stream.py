"""A stream on a server, used from an event loop; its steps are those of `stream_steps.py`."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.client.async_transport import AsyncTransport
from tritone.client.models import ModelInfo
from tritone.client.stream_steps import (
    ActivitySteps,
    Answer,
    Leave,
    Pause,
    Steps,
    StreamSteps,
    TranscriptSteps,
    Value,
)
from tritone.client.transport import Call
from tritone.errors import TritoneError
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing import Self

_leaving: set["asyncio.Task[None]"] = set()  # a loop keeps no task alive by itself


class AsyncServedStream(StreamSteps[Answer]):
    """A stream whose methods are awaited, one after the other. See `StreamSteps`, and `ServedStream` for the methods.

    Cancelling one of them ends the stream: the server is asked to free its slot, without waiting for the answer.
    """

    def __init__(self, transport: AsyncTransport, model: ModelInfo, **options: Any) -> None:
        super().__init__(model, **options)
        self._transport = transport

    def _leaving_lost(self) -> Steps[None]:
        for step in self.closing():  # Triton may take its time over it, and many streams are lost at once
            yield Leave(step) if isinstance(step, Call) else step

    async def accept(self, samples: npt.NDArray[Any]) -> Answer:
        """Send audio of any length and return the answer to it; as of `ServedStream`."""
        return await self._perform(self.accepting(samples))

    async def finish(self) -> Answer:
        """Send what is left, end the stream and return its last answer."""
        return await self._perform(self.finishing())

    async def close(self) -> None:
        """Free the stream's slot on the server if `finish()` has not, without waiting for the answer."""
        await self._perform(self.closing(), leaving=True)

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _perform(self, steps: Steps[Value], *, leaving: bool = False) -> Value:
        """Perform the steps; `leaving`: nobody waits for the answers."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._answer(Leave(step) if leaving and isinstance(step, Call) else step)
                except BaseException as error:
                    # A task that is cancelled must not wait for a server.
                    leaving = leaving or not isinstance(error, Exception)
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            value: Value = end.value
            return value

    async def _answer(self, step: Call[Any] | Leave | Pause) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Leave):
            task = asyncio.ensure_future(_sent(self._transport, step.call))
            _leaving.add(task)
            task.add_done_callback(_leaving.discard)
            return None
        return await self._transport.infer(step)


async def left(timeout_s: float) -> None:
    """Wait until the servers know of the streams that were left, at most so long."""
    if _leaving:
        await asyncio.wait(set(_leaving), timeout=timeout_s)


async def _sent(transport: AsyncTransport, call: Call[Any]) -> None:
    with suppress(TritoneError):
        await transport.infer(call)


class AsyncClientStream(TranscriptSteps, AsyncServedStream[Transcript]):
    """One utterance being recognised while it is spoken. Made by `AsyncClient.stream`; answers as of `ClientStream`."""


class AsyncActivityStream(ActivitySteps, AsyncServedStream[SpeechActivity]):
    """Speech being found while it is spoken. Made by `AsyncClient.detect_stream`; answers as of `ActivityStream`."""
