"""What one process of a streaming load test does: play its share of the streams and tell what it sees.

StreamJob  --worker.py-->  Player  ->  StreamTick every half second, and one more when all is over
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Waveform
from tritone.loadtest.processes.worker import Link
from tritone.loadtest.senders.wire import Target, open_sender
from tritone.loadtest.streams.pacing import NEVER, Pace, Player
from tritone.loadtest.workload.script import Script


@dataclass(frozen=True, kw_only=True)
class StreamTick:
    """What a process saw since its last tick.

    `rows` are (chunks, `pacing.Column`), their errors count in `messages`. `texts`: (utterance, text) -> streams that
    ended with it. `cpu_s`: CPU time between `begin` and `end`, in `perf_counter` seconds. `ended`: when the process
    gave up by itself; `notes` say why.
    """

    begin: float
    end: float
    rows: npt.NDArray[np.float64]
    messages: Sequence[str] = ()
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)
    cpu_s: float = 0.0
    ended: float | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StreamJob:
    """A share of the streams.

    `utterances`: (number, waveform) pairs, and `order` the places in it of what is played one after the other. `starts`
    in seconds after the begin, one for each stream that is kept open; `score_after_s`: texts count from that time on.
    """

    target: Target
    utterances: Sequence[tuple[int, Waveform]]
    order: Sequence[int]
    starts: Sequence[float]
    score_after_s: float
    pace: Pace
    tick_s: float = 0.5
    connections: int = 1
    seed: int = 0

    def run(self, link: Link) -> None:
        """See `worker.Job`."""
        waveforms = [waveform for _, waveform in self.utterances]
        script = Script(self.target, waveforms, chunk_s=self.pace.chunk_s, order=self.order)
        script.warm(2 * len(self.starts))
        sender = open_sender(self.target.endpoint, connections=self.connections)
        try:
            player = Player(script, sender, self.pace, rng=np.random.default_rng(self.seed))
            begin = link.ready()
            diary = _Diary(self, link, player, begin)
            player.play([begin + start for start in self.starts], diary.look, score_from=begin + self.score_after_s)
            diary.tell(ended=player.gave_up)
            link.stopping.wait()
        finally:
            sender.close()


class _Diary:
    """Tells what the player saw, and the player when to end."""

    def __init__(self, job: StreamJob, link: Link, player: Player, begin: float) -> None:
        self._job, self._link, self._player = job, link, player
        self._begin, self._cpu_s = begin, time.process_time()
        self._next = begin + job.tick_s

    def look(self, now: float) -> float:
        if now >= self._next:
            self._next += self._job.tick_s
            self.tell()
        return now if self._link.stopping.is_set() else NEVER

    def tell(self, *, ended: float | None = None) -> None:
        now, cpu_s, log = time.perf_counter(), time.process_time(), self._player.log
        numbers = [number for number, _ in self._job.utterances]
        texts = Counter({(numbers[place], text): times for (place, text), times in log.texts.items()})
        log.texts.clear()
        self._link.tell(
            StreamTick(
                begin=self._begin,
                end=now,
                rows=log.take_rows(),
                messages=list(log.messages),
                texts=texts,
                cpu_s=cpu_s - self._cpu_s,
                ended=ended,
                notes=list(log.notes),
            )
        )
        self._begin, self._cpu_s = now, cpu_s
