"""What every inference request passes, whatever its protocol: state of the server, checks, admission, its stream.

passage = await gate.enter(inference, owner)                    raises RefusedError
answer = await gate.carry(passage, upstream.request(...))       raises RefusedError when its deadline passes
"""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import Histogram, Metric

from tritone.net.connections import Connections
from tritone.net.prometheus import family
from tritone.net.refusal import BUSY, DEADLINE, DRAINING, LOCKED, RefusedError
from tritone.net.waits import Waits
from tritone.proxy.admission import Admission
from tritone.proxy.checks import ModelFacts, check_classification, check_inference
from tritone.proxy.inference import Inference
from tritone.proxy.models import Models
from tritone.proxy.options import ProxyOptions
from tritone.proxy.owners import Owner, Stream, Streams

# serving: all is taken. leaving: not ready, so balancers send nothing new, but what comes is taken all the same.
# draining: not ready, new requests and streams are refused. Open streams go on in all of them.
STATES = ("serving", "leaving", "draining")
TIMES = tuple(
    ms / 1000 for ms in (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10000, 60000)
)
UNANSWERED_S = 3600.0  # after its deadline a request that Triton has not answered counts no more

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class Passage:
    """A request on its way: its model, its audio, its stream, and until when its answer matters."""

    inference: Inference
    facts: ModelFacts
    audio_s: float
    stream: Stream | None
    started: float  # of time.monotonic()
    deadline: float  # of time.monotonic()
    over: bool = field(default=False)
    given_up: bool = field(default=False)  # nobody waits for the answer
    on_lost: Callable[[RefusedError], None] | None = field(default=None)  # called where its stream is lost meanwhile

    def encoded(self) -> Any:
        """The request as Triton gets it, under our name of its stream."""
        return self.inference.encoded(None if self.stream is None else self.stream.upstream_id)

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    def give_up(self) -> None:
        """Nobody waits for the answer any more, and nobody knows what the stream has received."""
        self.given_up = True
        if self.stream is not None:
            self.stream.broken = True

    def expired(self) -> RefusedError:
        """What its client gets when the deadline has passed."""
        return RefusedError(
            DEADLINE,
            f"the deadline of this request to '{self.facts.name}' has passed. Allow more time.",
            retry_after_s=1,
        )

    def in_client_terms(self, message: str) -> str:
        """Triton's message with the client's name of the stream in place of ours."""
        if self.stream is None:
            return message
        return message.replace(str(self.stream.upstream_id), str(self.stream.client_id))


class Gate:
    """The rules for one server, and what is counted."""

    def __init__(
        self, options: ProxyOptions, models: Models, connections: Connections, release: Callable[[Stream], None]
    ) -> None:
        self.options = options
        self.models = models
        self.connections = connections
        self.admission = Admission(options.limits, options.retry_after_s)
        self.streams = Streams(options.limits, options.retry_after_s, release)
        self.waits = Waits(options.limits, connections, options.retry_after_s)
        self.state = "serving"  # of STATES
        self.not_ready: str | None = None  # why
        self.buffered_bytes = 0
        self.outcomes: Counter[tuple[str, str]] = Counter()  # protocol, outcome -> requests
        about = "Time of requests and of chunks of streams that Triton answered, from their end to its answer."
        self._seconds = Histogram(
            "tritone_proxy_request_seconds", about, ["model", "kind"], buckets=TIMES, registry=None
        )
        self._changed = asyncio.Event()
        self._carried: set[asyncio.Task[Any]] = set()
        self._inside: set[Passage] = set()

    @property
    def why_not_ready(self) -> str | None:
        return self.not_ready if self.state == "serving" else f"the server is {self.state}"

    @property
    def in_flight(self) -> int:
        return self.admission.requests

    def has_key(self, shown: str | None) -> bool:
        """Whether a client has shown the key of locked APIs."""
        key = self.options.key
        return bool(key) and shown is not None and hmac.compare_digest(shown.encode("utf-8", "replace"), key.encode())

    def require_key(self, api: str, shown: str | None) -> None:
        """Refuse a client that has not shown the key, unless the API is open."""
        if api not in self.options.open_apis and not self.has_key(shown):
            raise RefusedError(LOCKED, "this API is locked: it needs the key that the operator of the server has")

    def may_share_memory(self, shown: str | None) -> bool:
        """Whether the tensors of a client's request may lie in shared memory."""
        return "shared-memory" in self.options.open_apis or self.has_key(shown)

    async def enter(
        self,
        inference: Inference,
        owner: Owner,
        *,
        trusted: bool = False,
        tail_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> Passage:
        """Let a request pass.

        Args:
            trusted: its client has shown the key.
            tail_bytes: see `check_inference`.
            timeout_s: the client's own time limit, beside the request's `timeout` in microseconds.

        Raises:
            RefusedError: it may not.
        """
        limits = self.options.limits
        started = time.monotonic()
        check_inference(inference, limits, trusted=trusted, tail_bytes=tail_bytes)
        goes_on = inference.stream is not None and not inference.starts
        if self.state == "draining" and not goes_on:
            raise RefusedError(DRAINING, "the server is ending. Try again later.", self.options.drain_hint_s)
        allowed_s = [limits.request_s if timeout_s is None else min(timeout_s, limits.request_s)]
        if timeout := inference.parameters.get("timeout", 0):
            allowed_s.append(timeout / 1e6)
        facts = await self.models.facts(inference.model)
        check_classification(inference, facts)
        audio_s = facts.audio_s(inference)
        self.admission.enter(facts, audio_s, always=goes_on)
        try:
            stream = None if inference.stream is None else self.streams.take(owner, inference, facts.idle_s)
        except BaseException:
            self._left(facts, audio_s)
            raise
        passage = Passage(inference, facts, audio_s, stream, started, started + min(allowed_s))
        self._inside.add(passage)
        if passage.remaining_s() <= 0:
            self.leave(passage, failed=True)
            raise passage.expired()
        return passage

    async def carry(
        self,
        passage: Passage,
        asking: "Coroutine[Any, Any, Answer] | asyncio.Future[Answer]",
        is_good: Callable[[Answer], bool] = lambda answer: True,
    ) -> Answer:
        """The answer of Triton to a request that has passed; the request leaves by itself.

        Where the deadline passes, or the client goes, nobody waits any more, but Triton is left to answer, and until
        then the request is in flight, as it takes its room there. Triton 2.51 crashes now and then when a call is
        cancelled that it is about to answer (github.com/triton-inference-server/server/issues/7368).

        Args:
            asking: asks Triton.
            is_good: whether an answer is none about a failure.

        Raises:
            RefusedError: the deadline has passed, or the stream is lost.
        """
        task = asyncio.ensure_future(asking)
        self._carried.add(task)
        unanswered = asyncio.get_running_loop().call_later(passage.remaining_s() + UNANSWERED_S, task.cancel)
        lost: asyncio.Future[RefusedError] = asyncio.get_running_loop().create_future()
        passage.on_lost = lambda refusal: None if lost.done() else lost.set_result(refusal)

        def answered(done: "asyncio.Task[Answer]") -> None:
            self._carried.discard(done)
            unanswered.cancel()
            good = not done.cancelled() and done.exception() is None and is_good(done.result())
            self.leave(passage, failed=passage.given_up or not good)

        task.add_done_callback(answered)
        try:
            await asyncio.wait((task, lost), timeout=passage.remaining_s(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                passage.give_up()
        if task.done():
            return task.result()
        raise lost.result() if lost.done() else passage.expired()

    def lose(self, model: str | None, why: str) -> None:
        """Forget the streams of a model, or of all, whose process is gone; requests of theirs are answered at once.

        Triton answers them one after the other, each after a second in which it hopes for the process.
        """
        self.streams.lose(model, why)
        self.models.forget()
        for each in list(self._inside):
            if each.stream is not None and model in (None, each.facts.name) and each.on_lost is not None:
                each.on_lost(self.streams.lost(each.stream.client_id, each.facts.name))

    async def close(self) -> None:
        """Give up what Triton has not answered."""
        for each in self._carried:
            each.cancel()
        if self._carried:
            await asyncio.wait(self._carried)

    def leave(self, passage: Passage, *, failed: bool) -> None:
        """The request was answered, or refused by Triton; the second call does nothing."""
        if passage.over:
            return
        passage.over = True
        self._inside.discard(passage)
        if passage.stream is not None:
            self.streams.done(passage.stream, passage.inference, failed=failed)
        if not failed:
            kind = "request" if passage.stream is None else "chunk"
            self._seconds.labels(passage.facts.name, kind).observe(time.monotonic() - passage.started)
        self._left(passage.facts, passage.audio_s)

    def buffer(self, num_bytes: int) -> None:
        """Count bytes of a body that is being read.

        Raises:
            RefusedError: all bodies together are too large.
        """
        self.buffered_bytes += num_bytes
        if num_bytes > 0 and self.buffered_bytes > self.options.limits.max_buffered_bytes:
            raise RefusedError(
                BUSY,
                f"{self.buffered_bytes >> 20} MB of requests are being received, the most that are taken. Try again.",
                self.options.retry_after_s,
            )

    def tick(self) -> None:
        """What must happen now and then."""
        self.connections.sweep()
        self.waits.expire()
        self.streams.expire(self.connections.is_open)
        self._changed.set()

    async def idle(self) -> None:
        """Return when nothing is in flight and no stream is open."""
        while self.admission.requests or len(self.streams):
            self._changed.clear()
            await self._changed.wait()

    def metrics(self) -> list[Metric]:
        """What is counted, and what is now."""
        requests = [
            ({"protocol": protocol, "outcome": outcome}, count) for (protocol, outcome), count in self.outcomes.items()
        ]
        audio = [({"model": model}, load.in_flight_s) for model, load in self.admission.loads.items()]
        buffered = self.buffered_bytes + self.connections.held_bytes
        return [
            family("counter", "tritone_proxy_requests_total", "Requests by how they ended.", requests),
            family("gauge", "tritone_proxy_requests_in_flight", "Inferences at Triton.", self.admission.requests),
            family("gauge", "tritone_proxy_open_streams", "Streams that have not ended.", len(self.streams)),
            family("gauge", "tritone_proxy_connections", "Connections to all ports.", self.connections.open),
            family("gauge", "tritone_proxy_connections_limit", "The most of each port.", self.connections.limit),
            family("gauge", "tritone_proxy_buffered_bytes", "Of requests that are being received.", buffered),
            family("gauge", "tritone_proxy_calls_waiting", "gRPC calls without a message.", self.waits.count),
            family("gauge", "tritone_proxy_ready", "Whether it is ready.", self.why_not_ready is None),
            family("gauge", "tritone_proxy_draining", "Whether it is about to end.", self.state != "serving"),
            family("counter", "tritone_proxy_connections_closed_total", "Closed by us.", self.connections.closed),
            family("gauge", "tritone_proxy_audio_seconds_in_flight", "Audio at Triton.", audio),
            *self._seconds.collect(),
        ]

    def _left(self, facts: ModelFacts, audio_s: float) -> None:
        self.admission.leave(facts, audio_s)
        self._changed.set()
