"""A worker's share of the streams: it plays them and reports what it sees.

StreamJob  --worker.py-->  Player  ->  StreamTick every half second, and one more when all is over
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Waveform
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.processes.worker import Link
from tritone.loadtest.senders.open import open_sender
from tritone.loadtest.senders.shared_audio import open_shared_audio
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.streams.pacing import NEVER, Player
from tritone.loadtest.workload.script import ROOM_BYTES, Script


@dataclass(frozen=True, kw_only=True)
class StreamTick:
    """Everything a process saw since its last tick. Times are `perf_counter` seconds."""

    begin: float
    end: float
    rows: npt.NDArray[np.float64]  # (chunks, `pacing.Column`); their errors are indices of `messages`
    messages: Sequence[str] = ()
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)  # (utterance, text) -> streams that ended with it
    cpu_s: float = 0.0  # CPU time
    ended: float | None = None  # when the process gave up by itself; `notes` say why
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StreamJob:
    """A share of the streams."""

    target: Target
    utterances: Sequence[tuple[int, Waveform]]  # with their indices in the pool
    order: Sequence[int]  # in which they are played one after the other, as indices of `utterances`
    starts: Sequence[float]  # in seconds after the begin, one for each stream that is kept open
    score_after_s: float  # texts count from that time on
    options: LoadOptions
    seed: int = 0

    def run(self, link: Link) -> None:
        """Play until the link is stopping."""
        waveforms = [waveform for _, waveform in self.utterances]
        size = min(ROOM_BYTES, sum(map(len, waveforms)) * self.target.bytes_per_sample)
        blocks = sum(int(len(each) / self.target.sample_rate / self.options.chunk_s) + 1 for each in waveforms)
        shared = open_shared_audio(self.target, size, blocks)
        place = None if shared is None else shared.place
        script = Script(self.target, waveforms, chunk_s=self.options.chunk_s, order=self.order, place=place)
        script.warm(2 * len(self.starts))
        sender = open_sender(self.target.endpoint)
        try:
            player = Player(script, sender, self.options, rng=np.random.default_rng(self.seed))
            begin = link.ready()
            since, cpu_s = begin, time.process_time()

            def report(ended: float | None = None) -> None:
                nonlocal since, cpu_s
                before, used = since, cpu_s
                since, cpu_s = time.perf_counter(), time.process_time()
                link.report(self._tick(player, before, since, cpu_s - used, ended))

            def look(now: float) -> float:
                if now >= since + self.options.tick_s:
                    report()
                return now if link.stopping.is_set() else NEVER

            player.play([begin + start for start in self.starts], look, score_from=begin + self.score_after_s)
            report(player.gave_up)
            link.stopping.wait()
        finally:
            sender.close()
            if shared is not None:
                shared.close()

    def _tick(self, player: Player, begin: float, end: float, cpu_s: float, ended: float | None) -> StreamTick:
        log = player.log
        texts = {(self.utterances[index][0], text): times for (index, text), times in log.texts.items()}
        log.texts.clear()
        return StreamTick(
            begin=begin,
            end=end,
            rows=log.take_rows(),
            messages=list(log.messages),
            texts=Counter(texts),
            cpu_s=cpu_s,
            ended=ended,
            notes=list(log.notes),
        )
