"""Many recordings together on the host: windows are encoded one after the other, texts join and leave at every step.

courses  ->  windows, first come first served  ->  texts, a step of all of them at a time  ->  transcripts

The next window of a long recording stands behind what came before it, so a short one never waits for all of it: where
all places are taken, until a window's text ends, and else for what a round takes: a call of the encoder, one for words'
times, and a step of each kind of texts. What a recording gives does not depend on those beside it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np

from tritone.errors import TritoneError
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import as_value
from tritone.pipelines.whisper.course import Align, Aligned, Ask, Detect, Detected, Encode, Write
from tritone.pipelines.whisper.driving import Driver, RecordingUnderWay
from tritone.pipelines.whisper.network import Network, Windows
from tritone.runtime.graph import Array
from tritone.search.whisper.alignment import token_starts
from tritone.search.whisper.decoding import Job, Writing, Written, log_softmax
from tritone.search.whisper.guessing import Draft

Some = Sequence[RecordingUnderWay]


class Group(NamedTuple):
    """Which texts take their steps together: `alone` is the window of one that does in no company, else -1."""

    with_beam: bool
    is_greedy: bool
    width: int
    alone: int

    @classmethod
    def of(cls, recording: RecordingUnderWay) -> "Group":
        """That of the text which a recording asks for."""
        job: Job = recording.ask.job
        with_beam = job.temperature == 0 and job.beam > 1
        alone = recording.slot if recording.is_alone and recording.slot is not None else -1
        return cls(with_beam, job.temperature == 0 and job.beam == 1, job.width, alone)


class Together(Driver):
    """Answers what courses ask, with the search on the host."""

    def __init__(
        self, network: Network, work: WorkLog, frame_shift: int, max_windows: int, draft: Network | None = None
    ) -> None:
        """Take the graphs, where work is counted, samples of a frame, and how many windows there may be at once.

        Args:
            draft: those of a smaller model that guesses how greedy texts go on.
        """
        self._network, self._work, self._draft = network, work, draft
        self._special = network.special
        self._frame_shift, self._max_windows = frame_shift, max_windows
        self._names = count()  # of windows
        super().__init__(max_windows)

    def _forget(self) -> None:
        super()._forget()
        self._waiting: deque[RecordingUnderWay] = deque()  # for their windows to be encoded
        self._asked: deque[tuple[RecordingUnderWay, Ask]] = deque()
        self._windows, self._draft_windows = Windows(self._max_windows), Windows(self._max_windows)
        self._owners: dict[int, RecordingUnderWay] = {}  # of windows
        self._texts: dict[Group, Writing] = {}
        self._encoded_s = 0.0  # since work was counted

    def warm_up(self) -> None:
        """Nothing is to be done before the first call."""

    def _round(self) -> None:
        while self._ready:
            self._answer(*self._ready.popleft())
        if some := self._next_windows():
            self._each(some, self._encode)
        asked, self._asked = self._asked, deque()
        self._each([each for each, ask in asked if isinstance(ask, Detect)], self._detect)
        aligning = [(each, ask) for each, ask in asked if isinstance(ask, Align)]
        self._asked.extend(aligning[1:])  # one a round, which is as long as some steps
        self._each([each for each, _ in aligning[:1]], self._align)
        self._begin([each for each, ask in asked if isinstance(ask, Write)])
        for group in [*self._texts]:
            self._step(group)
        self._look()

    def _each(self, some: Some, work: Callable[[Some], None]) -> None:
        """Do something for recordings together, or each alone if that fails; who fails alone has an error."""
        if not some:
            return
        try:
            work(some)
        except Exception as error:  # runtimes raise what they like
            if len(some) == 1:
                self._fail(some[0], as_value(error))
            else:
                for each in some:
                    self._each([each], work)

    def _fail(self, recording: RecordingUnderWay, fault: TritoneError) -> None:
        self._drop(recording)
        self._leave(recording)
        self._close(recording, fault)

    def _take(self, recording: RecordingUnderWay, ask: Ask) -> None:
        recording.ask = ask
        if isinstance(ask, Encode):
            self._leave(recording)
            self._waiting.append(recording)
        else:
            self._asked.append((recording, ask))

    def _next_windows(self) -> Some:
        """Those whose windows are encoded next."""
        room = min(self._max_windows - len(self._windows), self._network.together, len(self._waiting))
        some = [self._waiting.popleft() for _ in range(room)]
        for each in some:
            self._mark_started(each)
        return some

    def _encode(self, some: Some) -> None:
        start = time.perf_counter()
        memory = self._network.encode([each.ask.features for each in some])
        names = [next(self._names) for _ in some]
        self._windows.put(names, memory)
        for name, each in zip(names, some, strict=True):
            each.slot, each.window = name, each.ask.features
            self._owners[name] = each
            self._ready.append((each, None))
        self._encoded_s += time.perf_counter() - start

    def _leave(self, recording: RecordingUnderWay) -> None:
        if recording.slot is None:
            return
        for windows in (self._windows, self._draft_windows):
            if recording.slot in windows:
                windows.drop(recording.slot)
        del self._owners[recording.slot]
        frames, now = len(recording.window), time.perf_counter()
        audio, padding = frames * self._frame_shift, self._special.missing(frames) * self._frame_shift
        spent, encoded = now - self._counted, self._encoded_s
        self._work.add([CallWork(audio, padding, encoded, max(0.0, spent - encoded), spent)], spent)
        recording.slot, recording.window = None, None
        self._counted, self._encoded_s = now, 0.0

    def _drop(self, recording: RecordingUnderWay) -> bool:
        if recording in self._waiting:
            self._waiting.remove(recording)
        self._asked = deque(each for each in self._asked if each[0] is not recording)
        if recording.slot is not None:
            for writing in self._texts.values():
                writing.leave(recording.slot)
        return True

    def _detect(self, some: Some) -> None:
        prompts, first = [[self._special.sot]] * len(some), [[0]] * len(some)
        logits = self._network.decoder_of(self._windows).begin(slots(some), prompts, first)[:, 0]
        for each, row in zip(some, logits, strict=True):
            self._ready.append((each, self._likeliest(each.ask.languages or tuple(self._special.languages), row)))

    def _likeliest(self, codes: Sequence[str], logits: Array) -> Detected:
        log_probs = log_softmax(logits[[self._special.languages[code] for code in codes]])
        best, silence = int(log_probs.argmax()), self._special.no_speech
        quiet = 0.0 if silence is None else float(np.exp(log_softmax(logits)[silence]))
        return Detected(codes[best], float(np.exp(log_probs[best])), quiet)

    def _align(self, some: Some) -> None:
        self._ready += [(each, self._aligned(each.ask, slots([each])[0])) for each in some]

    def _aligned(self, ask: Align, window: int) -> Aligned:
        """Another call of the decoder, which reads the whole text at once."""
        special, text, before = self._special, ask.text, [*ask.start, self._special.no_timestamps, *ask.before]
        first = len(before) - 1
        places = range(first, first + len(text))
        decoder = self._network.decoder_of(self._windows)
        scores, logits = decoder.align(window, [*before, *text, special.eot], places)
        chosen = log_softmax(logits[:, : special.eot])[np.arange(len(text)), text]
        starts = ask.first + token_starts(scores[:, :, ask.first : ask.positions], first)
        return Aligned(starts, np.exp(chosen))

    def _begin(self, some: Some) -> None:
        """Have the texts of some recordings written."""
        groups: dict[Group, list[RecordingUnderWay]] = {}
        for each in some:
            groups.setdefault(Group.of(each), []).append(each)
        for group, those in groups.items():
            self._each(those, partial(self._join, group))

    def _join(self, group: Group, some: Some) -> None:
        if group.is_greedy and self._draft is not None:
            for each in some:
                if each.slot is not None and each.slot not in self._draft_windows:
                    self._draft_windows.put([each.slot], self._draft.encode([each.window]))
        if group not in self._texts:
            self._texts[group] = self._writing(group)
        jobs: list[Job] = [each.ask.job for each in some]
        self._take_written(self._texts[group].join(slots(some), jobs))

    def _writing(self, group: Group) -> Writing:
        decoder = self._network.decoder_of(self._windows)
        if not group.is_greedy or self._draft is None:
            return Writing(decoder)
        return Writing(decoder, Draft(self._draft.decoder_of(self._draft_windows), self._special.text_context))

    def _step(self, group: Group) -> None:
        """Go on with the texts of a group by one token; where that fails, each begins again, alone."""
        writing = self._texts[group]
        there = [self._owners[window] for window in writing.windows]
        try:
            if there:
                self._take_written(writing.step())
        except Exception as error:  # what the decoder has of them is not known any more
            del self._texts[group]
            if len(there) == 1:
                self._fail(there[0], as_value(error))
                return
            for each in there:
                each.is_alone = True
                self._asked.append((each, each.ask))
        else:
            if not len(writing):
                del self._texts[group]

    def _take_written(self, ended: Sequence[tuple[int, Written]]) -> None:
        self._ready += [(self._owners[window], written) for window, written in ended]


def slots(some: Some) -> list[int]:
    """The windows of recordings that have one."""
    return [each.slot for each in some if each.slot is not None]
