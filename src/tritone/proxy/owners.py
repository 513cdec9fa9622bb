"""Streams and who owns them: the sequence ids of clients, mapped to ids that nobody can guess.

Triton has one space of ids for all clients of a model, so two who count alike would be mixed. Here each owner has a
space of its own. An owner is a gRPC connection, or for HTTP, where a client may use several connections for one
stream, the client's address; a client that sends the header `tritone-client` (metadata for gRPC) is distinguished from
others at its address by that value, over all of its connections. A stream with a routing key (`tritone.net.routing`) is
owned by who knows the key: balancers use any of their connections for any client.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tritone.net.limits import Limits
from tritone.net.refusal import BAD_REQUEST, BUSY, CONFLICT, DOWN, ELSEWHERE, RefusedError
from tritone.net.routing import MAX_STREAM_KEY, STREAM_HEADER
from tritone.proxy.inference import Inference, StreamId
from tritone.proxy.protobuf_message import end_of

CLIENT_HEADER = "tritone-client"
MAX_CLIENT_LENGTH = 256
FORWARDED = ("x-forwarded-for", "forwarded", "via")  # somebody stands between the client and us
LOSS_REPORTED_S = 120.0  # for how long after a loss an unknown stream is reported as lost


@dataclass(frozen=True, slots=True)
class Owner:
    """Who sends: address, and the connection's port or the value of the client's own header, or nothing.

    Of a stream with a routing key it is the key alone. `through`: the connection that the stream uses now, if that is
    the client's own; it ends with it too.
    """

    host: str
    mark: str = ""
    connection: tuple[str, int] | None = None  # the stream ends with it
    route: str = ""
    through: tuple[str, int] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, headers: Mapping[str, str], peer: tuple[str, int], *, connected: bool) -> "Owner":
        """The owner of a request's stream.

        Args:
            headers: HTTP headers, or gRPC metadata.
            connected: whether a client sends all of a stream through one connection, as gRPC's do.

        Raises:
            RefusedError: a header is too long, or the routing key cannot be one.
        """
        route, mark = headers.get(STREAM_HEADER, ""), headers.get(CLIENT_HEADER, "")
        if len(mark) > MAX_CLIENT_LENGTH:
            raise RefusedError(BAD_REQUEST, f"{CLIENT_HEADER} has {len(mark)} characters, at most {MAX_CLIENT_LENGTH}")
        if len(route) > MAX_STREAM_KEY or not (route.isascii() and route.isprintable()):
            raise RefusedError(
                BAD_REQUEST, f"{STREAM_HEADER} must be at most {MAX_STREAM_KEY} printable ASCII characters"
            )
        if route:
            own = connected and not any(name in headers for name in FORWARDED)
            return cls("", route=route, through=peer if own else None)
        if mark or not connected:
            return cls(peer[0], mark)
        return cls(peer[0], connection=peer)


@dataclass(eq=False, slots=True)
class Stream:
    """An open stream. `goodbye`: the gRPC message that ends it upstream."""

    owner: Owner
    model: str
    client_id: StreamId
    upstream_id: StreamId
    goodbye: bytes
    idle_s: float = math.inf  # after so long without a chunk it is over
    at: float = field(default_factory=time.monotonic)
    busy: int = 0
    ending: bool = False  # END was sent
    broken: bool = False  # a chunk failed or was cancelled: the client may begin again

    @property
    def key(self) -> tuple[Owner, str, StreamId]:
        return self.owner, self.model, self.client_id


class Streams:
    """The open streams of all clients.

    Args:
        release: ends a stream upstream that its client will not end.
    """

    def __init__(self, limits: Limits, retry_after_s: float, release: Callable[[Stream], None]) -> None:
        self._limits = limits
        self._retry_after_s = retry_after_s
        self._release = release
        self._open: dict[tuple[Owner, str, StreamId], Stream] = {}
        self._lost_at = -LOSS_REPORTED_S
        self._lost_why = ""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._open.values()))

    def take(self, owner: Owner, inference: Inference, idle_s: float | None = None) -> Stream:
        """The stream of a request, opened if it has START. `done` must follow.

        Args:
            idle_s: after so long without a chunk the model ends a stream; the limit of all streams holds too.

        Raises:
            RefusedError: no such stream is open, or one is and shall be opened again, or there are too many.
        """
        assert inference.stream is not None
        found = self._open.get((owner, inference.model, inference.stream))
        if found is not None and found.ending:
            found = None  # its END is on the way, and the id is free again
        if inference.starts:
            if found is not None:
                if not found.broken:
                    raise RefusedError(
                        CONFLICT,
                        f"stream {inference.stream} on '{inference.model}' is open already. Another client may use the "
                        f"same id: take a random one, or send a header '{CLIENT_HEADER}' of your own.",
                    )
                self.end(found)
            if len(self._open) >= self._limits.max_streams:
                raise RefusedError(
                    BUSY,
                    f"{len(self._open)} streams are open, the most that are taken. Try again.",
                    self._retry_after_s,
                )
            unguessable = secrets.randbits(62) + 1 if isinstance(inference.stream, int) else secrets.token_hex(16)
            goodbye = end_of(inference, unguessable)
            found = Stream(owner, inference.model, inference.stream, unguessable, goodbye)
            found.idle_s = min(self._limits.stream_idle_s, idle_s or math.inf)
            self._open[found.key] = found
        elif found is None:
            if time.monotonic() - self._lost_at < LOSS_REPORTED_S:
                raise self.lost(inference.stream, inference.model)
            raise RefusedError(
                ELSEWHERE if owner.route else BAD_REQUEST,
                f"stream {inference.stream} on '{inference.model}' is not open: its first request must have "
                "sequence_start (START), and after END or a long pause it is over. Start it again.",
            )
        found.owner = owner
        found.ending |= inference.ends
        found.busy += 1
        return found

    def done(self, stream: Stream, inference: Inference, *, failed: bool) -> None:
        """A request of the stream was answered, or given up."""
        stream.busy -= 1
        stream.at = time.monotonic()
        stream.broken |= failed
        if failed and inference.starts:  # it was not opened, but Triton may keep a place for it
            self.end(stream)
        elif stream.ending and not stream.busy:
            if stream.broken:
                self.end(stream)  # END may not have arrived
            else:
                self._forget(stream)

    def end(self, stream: Stream) -> None:
        """Forget a stream and end it upstream."""
        if self._forget(stream):
            self._release(stream)

    def expire(self, alive: Callable[[tuple[str, int]], bool]) -> int:
        """End streams that nobody continues: idle for too long, or of a connection that is gone."""
        now, ended = time.monotonic(), 0
        for each in self:
            connection = each.owner.connection or each.owner.through
            gone = connection is not None and not alive(connection)
            if not each.busy and (gone or now - each.at > each.idle_s):
                self.end(each)
                ended += 1
        return ended

    def lose(self, model: str | None, why: str) -> None:
        """Forget the streams of a model, or all: its process is gone, and they with it."""
        for each in self:
            if model in (None, each.model):
                self._forget(each)
        self._lost_at, self._lost_why = time.monotonic(), why

    def lost(self, stream: StreamId, model: str) -> RefusedError:
        """What the client of a lost stream gets."""
        message = f"stream {stream} on '{model}' was lost: {self._lost_why}. Start it again."
        return RefusedError(DOWN, message, self._retry_after_s)

    def _forget(self, stream: Stream) -> bool:
        if self._open.get(stream.key) is stream:
            del self._open[stream.key]
            return True
        return False
