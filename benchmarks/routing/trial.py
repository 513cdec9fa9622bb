"""Live streams through a balancer while one server is added, one ends and one dies.

    try_streams(balancer, servers, audio, ...)  ->  Trial: what became of each stream, and why

Streams run in real time. The texts that the same audio has alone, from one server without a balancer, are what counts
as right. What a stream lost, or was begun anew for, is the last event before.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.routing.fleet import Balancer, Replica
from tritone.audio.waveform import Waveform
from tritone.client import Client
from tritone.errors import TritoneError

Event = Literal["", "add", "drain", "kill"]
CHUNK_MS = 500.0
STREAMS_OF_A_CLIENT = 10
TIMEOUT_S = 60.0


@dataclass
class Live:
    """A stream, and what became of it. Times are of `time.monotonic`."""

    protocol: str
    resume: bool
    audio: int  # index
    late: bool = False  # begun after a server had been told to end
    text: str | None = None
    error: TritoneError | None = None
    lost: list[tuple[float, float]] = field(default_factory=list)  # begin and end of the requests that were lost
    speaking: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)  # while a chunk is sent


@dataclass(frozen=True)
class Loss:
    """A lost stream: why, and after how many seconds its caller had an error, or the answer of a new stream."""

    event: Event
    stream: Live
    told_s: float  # from the event
    waited_s: float  # of the caller, in the call


@dataclass
class Trial:
    """What was seen. `held`: open streams of a server when it was told to end, or killed."""

    streams: list[Live]
    losses: list[Loss]
    held: dict[str, int]
    wrong: list[Live]
    drained: bool  # whether the server that was told to end did so by itself, with exit code 0
    taken: bool  # whether it took new streams meanwhile

    def count(self, event: Event, *, protocol: str | None = None, resumed: bool | None = None) -> int:
        """How many streams an event took."""
        return sum(
            each.event == event
            and protocol in (None, each.stream.protocol)
            and resumed in (None, each.stream.error is None)
            for each in self.losses
        )


def alone(server: Replica, audio: Sequence[Waveform], sample_rate: int, chunk_ms: float = CHUNK_MS) -> list[str]:
    """The text of each recording as a stream to one server, one after the other."""
    texts = []
    with Client(f"grpc://127.0.0.1:{server.grpc}", timeout_s=TIMEOUT_S) as client:
        for each in audio:
            with client.stream(sample_rate=sample_rate, chunk_ms=chunk_ms) as stream:
                stream.accept(each)
                texts.append(stream.finish().text)
    return texts


class Players:
    """Streams that are played in threads. They keep their last chunk until they may end, on slow machines, too."""

    def __init__(self, balancer: Balancer, audio: Sequence[Waveform], sample_rate: int, chunk_ms: float) -> None:
        self.streams: list[Live] = []
        self._balancer, self._audio, self._rate, self._chunk_ms = balancer, audio, sample_rate, chunk_ms
        self._threads: list[threading.Thread] = []
        self._open = ExitStack()
        self._begun = threading.Semaphore(0)
        self._may_end = threading.Event()

    def start(self, streams: Sequence[Live], over_s: float) -> None:
        """Begin streams, spread over some time, and return when each has had an answer."""
        clients: dict[str, list[Client]] = {"http": [], "grpc": []}
        for protocol, made in clients.items():
            count = sum(each.protocol == protocol for each in streams)
            for _ in range(-(-count // STREAMS_OF_A_CLIENT)):
                made.append(self._open.enter_context(Client(self._balancer.url(protocol), timeout_s=TIMEOUT_S)))
                made[-1].model(kind="streaming")
        for index, each in enumerate(streams):
            made = clients[each.protocol]
            thread = threading.Thread(target=self._play, args=(each, made[index // 2 % len(made)]), daemon=True)
            self._threads.append(thread)
            thread.start()
            time.sleep(over_s / len(streams))
        self.streams += streams
        for _ in streams:
            if not self._begun.acquire(timeout=2 * TIMEOUT_S):
                raise RuntimeError("not all streams have begun")

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Have no stream send anything while the block runs."""
        with ExitStack() as held:
            for each in self.streams:
                held.enter_context(each.speaking)
            yield

    def wait(self) -> None:
        """Let the streams end, and return when they have."""
        self._may_end.set()
        for each in self._threads:
            each.join(20 * TIMEOUT_S)
        self._open.close()

    def _play(self, live: Live, client: Client) -> None:
        audio, size = self._audio[live.audio], round(self._chunk_ms / 1000 * self._rate)
        begun = time.monotonic()
        is_new = True
        asked = begun
        try:
            with client.stream(sample_rate=self._rate, chunk_ms=self._chunk_ms, resume=live.resume) as stream:
                for start in range(0, len(audio), size):
                    chunk = audio[start : start + size]
                    time.sleep(max(0.0, begun + (start + len(chunk)) / self._rate - time.monotonic()))
                    if start + size >= len(audio):
                        self._may_end.wait(TIMEOUT_S)
                    asked, before = time.monotonic(), stream.resumed
                    with live.speaking:
                        stream.accept(chunk)
                    if stream.resumed > before:
                        live.lost.append((asked, time.monotonic()))
                    if is_new:
                        self._begun.release()
                        is_new = False
                asked, before = time.monotonic(), stream.resumed
                live.text = stream.finish().text
                if stream.resumed > before:
                    live.lost.append((asked, time.monotonic()))
        except TritoneError as error:
            live.error = error
            live.lost.append((asked, time.monotonic()))
        finally:
            if is_new:
                self._begun.release()


def try_streams(
    balancer: Balancer,
    serving: Sequence[Replica],
    added: Replica,
    audio: Sequence[Waveform],
    texts: Sequence[str],
    *,
    sample_rate: int,
    streams: int,
    late: int,
    pause_s: float,
    chunk_ms: float = CHUNK_MS,
    silent: bool = False,
) -> Trial:
    """Play streams, half of them by HTTP and half by gRPC, of each half those that resume and those that do not.

    Args:
        balancer: in front of `serving`; of these, the first is told to end, and the one of the others that has most
            streams is killed.
        added: put behind the balancer before that.
        audio: waveforms of two chunks and more; stream after stream takes the next one.
        texts: of each waveform, alone.
        streams: how many are live from the start.
        late: how many begin after a server was told to end; all of these resume.
        pause_s: between events.
        silent: whether no stream speaks while the balancer is loaded again, until its old processes have ended. Those
            that speak in the moment in which one ends may be lost by it.
    """
    ending, *others = serving
    players = Players(balancer, audio, sample_rate, chunk_ms)
    plan = [
        Live("http" if index % 2 == 0 else "grpc", index // 2 % 2 == 0, index % len(audio))
        for index in range(streams + late)
    ]
    events: list[tuple[float, Event]] = []
    players.start(plan[:streams], pause_s / 2)
    time.sleep(pause_s / 2)
    events.append((time.monotonic(), "add"))
    with players.silence() if silent else nullcontext():
        balancer.reload([*serving, added], ends=silent)
    time.sleep(pause_s)
    held = {"drain": ending.open_streams}
    events.append((time.monotonic(), "drain"))
    ending.drain()
    time.sleep(pause_s)
    before = ending.open_streams
    for each in plan[streams:]:
        each.resume, each.late = True, True
    players.start(plan[streams:], pause_s / 4)
    taken = ending.open_streams > before
    # A balancer that has moved streams leaves some behind that nobody plays any more.
    dying = max(others, key=lambda each: each.open_streams)
    held["kill"] = dying.open_streams
    events.append((time.monotonic(), "kill"))
    dying.kill()
    players.wait()
    drained = ending.process.wait(3 * TIMEOUT_S) == 0
    losses = []
    for each in players.streams:
        for asked, told in each.lost:
            # A call that was under way when it happened was lost by it, too.
            at, event = max(((at, event) for at, event in events if at <= told), default=(asked, ""))
            losses.append(Loss(event, each, told - at, told - asked))
    wrong = [each for each in players.streams if each.text is not None and each.text != texts[each.audio]]
    return Trial(players.streams, losses, held, wrong, drained, taken)


def summary(trial: Trial, kind: str) -> list[dict[str, str | int | float]]:
    """A row for each protocol and event."""
    rows: list[dict[str, str | int | float]] = []
    for protocol in ("http", "grpc"):
        own = [each for each in trial.streams if each.protocol == protocol]
        for event in ("add", "drain", "kill"):
            losses = [each for each in trial.losses if each.event == event and each.stream.protocol == protocol]
            told = [each.told_s for each in losses if each.stream.error is not None]
            again = [each.told_s for each in losses if each.stream.error is None]
            rows.append(
                {
                    "balancer": kind,
                    "protocol": protocol,
                    "event": event,
                    "streams": len(own),
                    "begun anew": len(again),
                    "answered again after s, at most": round(max(again, default=0.0), 2),
                    "told lost": len(told),
                    "told after s, at most": round(max(told, default=0.0), 2),
                    "texts": len([each for each in own if each.text is not None]),
                    "wrong texts": sum(each.protocol == protocol for each in trial.wrong),
                }
            )
    return rows


def errors(trial: Trial) -> Counter[str]:
    """The kinds of errors, and how many streams had each."""
    return Counter(type(each.error).__name__ for each in trial.streams if each.error is not None)
