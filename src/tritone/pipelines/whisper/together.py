"""Many recordings together on the host: a window of each at a time, all of them in common calls.

courses  ->  transcripts
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.whisper.course import Align, Aligned, Ask, Course, Detect, Detected, Encode, Write
from tritone.pipelines.whisper.network import Heard, Network
from tritone.runtime.graph import Array
from tritone.search.whisper.alignment import token_starts
from tritone.search.whisper.decoding import decode, log_softmax
from tritone.transcript import Transcript


class Together:
    """Answers what courses ask, with the search on the host."""

    def __init__(self, network: Network, work: WorkLog, frame_shift: int, max_windows: int) -> None:
        """Take the graphs, where work is counted, samples of a frame, and how many windows are encoded at once."""
        self._network, self._work = network, work
        self._special = network.special
        self._frame_shift, self._max_windows = frame_shift, max_windows

    most_under_way = 0  # courses begin together

    def submit(self, course: Course, done: Callable[[Transcript], None], given_up: Callable[[], bool]) -> None:
        """Answer one course at once, whatever else is asked."""
        done(self.run([course])[0])

    def warm_up(self) -> None:
        """Nothing is to be done before the first call."""

    def run(self, courses: Iterable[Course]) -> list[Any]:
        """What the courses return."""
        courses = [*courses]
        found: dict[int, Any] = {}
        asks: dict[int, Ask] = {}

        def go_on(index: int, answer: object) -> None:
            try:
                asks[index] = courses[index].send(answer)
            except StopIteration as end:
                found[index] = end.value
                asks.pop(index, None)

        for index in range(len(courses)):
            go_on(index, None)
        while asks:
            self._advance(list(asks)[: self._max_windows], asks, go_on)
        return [found[index] for index in range(len(courses))]

    def _advance(self, chosen: Sequence[int], asks: dict[int, Ask], go_on: Callable[[int, object], None]) -> None:
        """Answer some recordings until each asks for its next window."""
        start = time.perf_counter()
        windows = [ask.features for index in chosen if isinstance(ask := asks[index], Encode)]
        heard = self._network.hear(windows)
        place = {index: row for row, index in enumerate(chosen)}
        encoded = time.perf_counter()
        for index in chosen:
            go_on(index, None)
        kinds: Any = ((Detect, self._detect), (Write, self._write), (Align, self._align))
        while left := [index for index in chosen if not isinstance(asks.get(index, Encode(None)), Encode)]:
            for kind, answer in kinds:
                if these := [index for index in left if isinstance(asks[index], kind)]:
                    answers = answer([asks[index] for index in these], heard, [place[index] for index in these])
                    for index, each in zip(these, answers, strict=True):
                        go_on(index, each)
                    break
        end = time.perf_counter()
        audio = sum(map(len, windows)) * self._frame_shift
        padding = sum(map(self._special.missing, map(len, windows))) * self._frame_shift
        self._work.add([CallWork(audio, padding, encoded - start, end - encoded, end - start)], end - start)

    def _detect(self, asks: Sequence[Detect], heard: Heard, places: Sequence[int]) -> list[Detected]:
        prompts, first = [[self._special.sot]] * len(asks), [[0]] * len(asks)
        return [
            self._likeliest(ask.languages or tuple(self._special.languages), logits)
            for ask, logits in zip(asks, heard.decoder(places).begin(prompts, first)[:, 0], strict=True)
        ]

    def _likeliest(self, codes: Sequence[str], logits: Array) -> Detected:
        log_probs = log_softmax(logits[[self._special.languages[code] for code in codes]])
        best, silence = int(log_probs.argmax()), self._special.no_speech
        quiet = 0.0 if silence is None else float(np.exp(log_softmax(logits)[silence]))
        return Detected(codes[best], float(np.exp(log_probs[best])), quiet)

    def _write(self, asks: Sequence[Write], heard: Heard, places: Sequence[int]) -> list[object]:
        return [*decode([each.job for each in asks], lambda some: heard.decoder([places[each] for each in some]))]

    def _align(self, asks: Sequence[Align], heard: Heard, places: Sequence[int]) -> list[Aligned]:
        return [self._aligned(ask, heard, place) for ask, place in zip(asks, places, strict=True)]

    def _aligned(self, ask: Align, heard: Heard, place: int) -> Aligned:
        """Another call of the decoder, which reads the whole text at once."""
        special, text, before = self._special, ask.text, [*ask.start, self._special.no_timestamps, *ask.before]
        first = len(before) - 1
        places = range(first, first + len(text))
        scores, logits = heard.decoder([place]).align([*before, *text, special.eot], places)
        chosen = log_softmax(logits[:, : special.eot])[np.arange(len(text)), text]
        starts = ask.first + token_starts(scores[:, :, ask.first : ask.positions], first)
        return Aligned(starts, np.exp(chosen))
