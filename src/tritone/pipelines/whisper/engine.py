"""Many recordings together on a device: windows are encoded in batches, texts join and leave at every step.

courses  ->  slots of windows  ->  rows of texts  ->  steps  ->  transcripts

One thread drives the device while there is work. A window waits in a queue for a slot, its texts in another for rows,
first come first served: the next window of a long recording stands behind what came before it, so a short one never
waits for all of it. Steps are launched ahead of what the host has read of them, which is a few tokens late; a row that
has ended stands still meanwhile. What a text is does not depend on the rows beside it.
"""

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError, OperatorError
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.whisper.course import Align, Ask, Detected, Encode, Write
from tritone.pipelines.whisper.driving import Driver, RecordingUnderWay
from tritone.pipelines.whisper.reading import (
    PLAIN_OUTPUTS,
    History,
    Late,
    TextUnderWay,
    aligned,
)
from tritone.preparing import Part, Preparing
from tritone.runtime.graph import Array
from tritone.search.device.choosing import HEAT, NO_LIMIT, Column
from tritone.search.whisper.decoding import Beam, Job, Written
from tritone.search.whisper.rules import Rules

ENCODED = (1, 2, 4, 8, 16)  # windows of a call of the encoder, where nothing says otherwise
CALLS = 2  # of the encoder under way: while one is computed the next waits for it
NEEDED = 2  # of the first calls: the encoder for one window, and a step of one text
READ_FROM = 5  # tokens before the start token: fewer are read step by step
READ_TEXTS = (1, 4, 16)  # of a call that reads what stands before texts
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # of a step
KEPT_RULES = 16  # for languages that were asked for, of a vocabulary each
STUCK_S = 120.0  # of a step, after which those who wait get an error
# A call of the encoder for one window takes a GPU a fifth more time than for one of four, so while texts are written a
# few windows are waited for.
GATHERED, GATHER_S = 4, 0.03
HOST_S = 1e-3  # of the host's own work between two steps
NAP_S = 3e-5
BEAMS = (1, 2, 5, 16)  # widths that steps are made for


class Device(Protocol):
    """The device's side, see `device.OnDevice`."""

    windows: int
    rows: int
    context: int
    columns: int
    ahead: int

    def first_calls(
        self, windows: Sequence[int], rows: Sequence[int], read: Sequence[int]
    ) -> Sequence[Callable[[], object]]: ...

    def turn(self) -> AbstractContextManager[None]: ...

    def encode(self, windows: Sequence[Any], slots: Sequence[int]) -> Late: ...

    def read(self, tokens: Array, rows: Sequence[int], windows: Sequence[int]) -> None: ...

    def begin(self, rows: Sequence[int], numbers: Array, origin: Array) -> None: ...

    def forbid(self, rows: Sequence[int], tokens: Sequence[int]) -> None: ...

    def end(self, rows: Sequence[int]) -> None: ...

    def step(self, rows: int, *, sampled: bool, scored: bool, beam: int) -> Late: ...

    def attention(self, rows: Sequence[int], positions: int) -> Late: ...


class Engine(Driver):
    """Answers what courses ask, with the search on the device. May be used from several threads."""

    def __init__(
        self,
        device: Device,
        special: WhisperPart | EncoderDecoderPart,
        vocab: int,
        work: WorkLog,
        frame_shift: int,
        preparing: Preparing | None = None,
    ) -> None:
        """Take the device, the ids of a model with `vocab` tokens, where work is counted, and samples of a frame.

        Args:
            preparing: notes the calls that are recorded beside requests; None: all of them are before.
        """
        self._preparing = preparing
        self._part: Part | None = None
        self._first_calls: deque[Callable[[], object]] = deque()
        self._device, self._special, self._work, self._frame_shift = device, special, work, frame_shift
        self._codes = {id: code for code, id in special.languages.items()}
        self._vocab = vocab
        self._rules_of_languages: dict[tuple[str, ...], Rules] = {}
        self._sizes = [rows for rows in ROWS if rows < device.rows] + [device.rows]
        super().__init__(device.windows)

    def _forget(self) -> None:
        super()._forget()
        device = self._device
        self._slots = [*range(device.windows)]
        self._free = bytearray(b"\1" * device.rows)
        self._owners: list[TextUnderWay | None] = [None] * device.rows
        self._barred: list[Sequence[int] | None] = [None] * device.rows
        self._waiting: deque[RecordingUnderWay] = deque()  # for a slot
        self._texts: deque[TextUnderWay] = deque()  # for rows
        self._calls: deque[tuple[Late, list[RecordingUnderWay]]] = deque()
        self._steps: deque[tuple[int, float, Late]] = deque()
        self._history = History(device, self._special)
        self._number = 0

    def warm_up(self) -> None:
        """Make everything ready that requests usually ask for, before the first of them.

        Or else, where there is something that prepares beside requests, what any request needs; the rest is recorded
        while there are none, and what one asks for before when it does.
        """
        calls = self._device.first_calls(ENCODED, self._sizes, READ_TEXTS)
        needed = len(calls) if self._preparing is None else min(NEEDED, len(calls))
        with self._device.turn():
            for call in calls[:needed]:
                call()
        if self._preparing is not None and needed < len(calls):
            self._part = self._preparing.part("recording", len(calls) - needed)
            with self._lock:
                self._first_calls.extend(calls[needed:])
                self._start()

    def _prepare(self) -> bool:
        """Make one of the first calls, if nothing is under way; whether there was any."""
        if not self._first_calls or self._recordings:
            return False
        assert self._part is not None
        try:
            with self._device.turn():
                self._first_calls.popleft()()
        except Exception as error:  # as where memory is short: what is asked for is recorded, or launched as it is
            self._first_calls.clear()
            self._forget()
            self._part.fail(str(error))
            return True
        self._part.step()
        if not self._first_calls:
            self._part.end()
        return True

    def _has_more(self) -> bool:
        return bool(self._first_calls)

    def _round(self) -> None:
        if self._prepare():
            return
        with self._device.turn():
            if not self._turn():
                time.sleep(NAP_S)

    def _turn(self) -> bool:
        """One round of everything that can be done now; whether there was anything."""
        parts = (self._take_encoded, self._encode, self._go_on, self._begin, self._step, self._read, self._look)
        return any([part() for part in parts])

    def _go_on(self) -> bool:
        """Give courses the answers that they wait for, but not for long: the device waits for the next step."""
        until = time.perf_counter() + HOST_S
        began = bool(self._ready)
        while self._ready and time.perf_counter() < until:
            self._answer(*self._ready.popleft())
        return began

    def _take(self, recording: RecordingUnderWay, ask: Ask) -> None:
        while isinstance(ask, Align):
            ask = recording.course.send(aligned(ask))
        if isinstance(ask, Encode):
            self._leave(recording)
            recording.window, recording.since = ask.features, time.perf_counter()
            self._waiting.append(recording)
        elif isinstance(ask, Write):
            if ask.job.width > self._device.rows:
                raise InputError(
                    f"{ask.job.width} texts were asked for together; there is room for {self._device.rows}"
                )
            recording.text = TextUnderWay(recording, ask.job, lambda written: written)
            self._texts.append(recording.text)
        else:
            rules = self._only(ask.languages)
            job = Job(prompt=[self._special.sot], sot=0, rules=rules, max_tokens=1, no_speech=self._special.no_speech)
            recording.text = TextUnderWay(recording, job, self._detected)
            self._texts.append(recording.text)

    def _only(self, languages: tuple[str, ...]) -> Rules:
        """Rules that let some languages be written, all if there are none, and nothing else."""
        if languages not in self._rules_of_languages:
            if len(self._rules_of_languages) >= KEPT_RULES:
                self._rules_of_languages.clear()
            known = {self._special.languages[code] for code in languages or self._special.languages}
            self._rules_of_languages[languages] = Rules(
                eot=self._special.eot,
                no_timestamps=self._special.no_timestamps,
                timestamp_begin=self._special.timestamp_begin,
                suppress=tuple(id for id in range(self._vocab) if id not in known),
                timestamps=False,
            )
        return self._rules_of_languages[languages]

    def _detected(self, written: Written) -> Detected:
        return Detected(self._codes[written.tokens[0]], math.exp(written.log_prob), written.no_speech_prob)

    def _leave(self, recording: RecordingUnderWay) -> None:
        if recording.slot is None:
            return
        insort(self._slots, recording.slot)
        recording.slot = None
        if recording.window is not None:
            now = time.perf_counter()
            frames = len(recording.window)
            audio, padding = frames * self._frame_shift, self._special.missing(frames) * self._frame_shift
            self._work.add(
                [CallWork(audio, padding, 0.0, now - self._counted, now - self._counted)], now - self._counted
            )
            self._counted = now

    def _drop(self, recording: RecordingUnderWay) -> bool:
        if any(recording in those for _, those in self._calls):
            return False  # its window is being encoded; next time
        if recording in self._waiting:
            self._waiting.remove(recording)
        if (text := recording.text) is not None:
            if text in self._texts:
                self._texts.remove(text)
            self._release(text, stop=True)
        return True

    def _encode(self) -> bool:
        """Encode windows that wait, as many together as there are slots for."""
        began = False
        while self._waiting and self._slots and len(self._calls) < CALLS:
            count = min(len(self._waiting), len(self._slots))
            is_writing = self._free.find(b"\0") >= 0
            if is_writing and count < GATHERED and time.perf_counter() - self._waiting[0].since < GATHER_S:
                break
            size = max(each for each in ENCODED if each <= count)
            chosen = [self._waiting.popleft() for _ in range(size)]
            for each in chosen:
                each.slot = self._slots.pop(0)
                self._mark_started(each)
            windows = [each.window for each in chosen if each.window is not None]
            slots = [each.slot for each in chosen if each.slot is not None]
            self._calls.append((self._device.encode(windows, slots), chosen))
            began = True
        return began

    def _take_encoded(self) -> bool:
        """Go on with windows that have been encoded."""
        began = False
        while self._calls and self._calls[0][0].is_there:
            self._ready += [(each, None) for each in self._calls.popleft()[1]]
            began = True
        return began

    def _begin(self) -> bool:
        """Give rows to texts that wait, in their order."""
        chosen: list[TextUnderWay] = []
        while self._texts:
            width = self._texts[0].job.width
            if (row := self._free.find(b"\1" * width)) < 0:
                break
            text = self._texts.popleft()
            self._free[row : row + width] = b"\0" * width
            text.rows, text.first, text.left = range(row, row + width), self._number, width
            self._owners[row : row + width] = [text] * width
            if text.job.temperature == 0 and text.job.beam > 1:
                text.beam = Beam(text.job)
            chosen.append(text)
        if chosen:
            self._put(chosen)
        return bool(chosen)

    def _put(self, texts: Sequence[TextUnderWay]) -> None:
        rows = [row for text in texts for row in text.rows]
        numbers = np.zeros((len(rows), self._device.columns + self._device.context), np.int64)
        origin = np.repeat(np.array(rows, np.int64)[:, None], self._device.context, axis=1)
        barred: dict[int, tuple[Sequence[int], list[int]]] = {}
        place = 0
        for text in texts:
            for row in text.rows:
                self._fill(numbers[place], text, row)
                if is_read(text.job):  # into the first row
                    origin[place, : text.job.sot] = text.rows.start
                if (suppress := text.job.rules.suppress) is not self._barred[row]:
                    self._barred[row] = suppress
                    barred.setdefault(id(suppress), (suppress, []))[1].append(row)
                place += 1
        for suppress, those in barred.values():
            self._device.forbid(those, suppress)
        self._device.begin(rows, numbers, origin)
        self._read_before([text for text in texts if is_read(text.job)])

    def _fill(self, numbers: npt.NDArray[np.int64], text: TextUnderWay, row: int) -> None:
        job, rules = text.job, text.job.rules
        at = job.sot if is_read(job) else 0
        # Whatever the text begins with has been read: what comes next is not its first token.
        prefix = min(job.prefix, 1)
        seed = np.random.SeedSequence([*job.seed, row - text.rows.start]) if job.temperature else None
        in_beam = text.beam is not None
        for column, value in (
            (Column.TOKEN, job.prompt[at]),
            (Column.POSITION, at),
            (Column.START, len(job.prompt) - prefix),
            (Column.QUIET, job.sot),
            (Column.GOING, 1),
            (Column.MOST, job.max_tokens + prefix),
            (Column.WINDOW, text.recording.slot),
            (Column.TIMES, rules.timestamps),
            (Column.EARLY, NO_LIMIT if rules.max_initial_timestamp is None else rules.max_initial_timestamp),
            (Column.LAST, -1),
            (Column.HEAT, round(job.temperature * HEAT)),
            (Column.SEED, 0 if seed is None else int(seed.generate_state(1, np.uint64)[0]) >> 1),
            (Column.FIRST, text.rows.start if in_beam else row),
            (Column.WIDTH, len(text.rows) if in_beam else 1),
        ):
            numbers[column] = value
        numbers[len(Column) : len(Column) + len(job.prompt)] = job.prompt

    def _read_before(self, texts: Sequence[TextUnderWay]) -> None:
        """Read what stands before the start tokens, of texts of about one length together."""
        left = sorted(texts, key=lambda text: -text.job.sot)
        while left:
            size = max(each for each in READ_TEXTS if each <= len(left))
            some, left = left[:size], left[size:]
            tokens = np.full((size, some[0].job.sot), self._special.eot, np.int64)
            for line, text in zip(tokens, some, strict=True):
                line[: text.job.sot] = text.job.prompt[: text.job.sot]
            slots = [text.recording.slot or 0 for text in some]
            self._device.read(tokens, [text.rows.start for text in some], slots)

    def _step(self) -> bool:
        """Launch a step of all rows, if the host is not too far behind.

        None is launched beside the encoder, which leaves little of a GPU to it: both would take longer.
        """
        last = self._free.rfind(b"\0")
        if last < 0 or self._calls or len(self._steps) >= self._device.ahead:
            return False
        texts = {text for text in self._owners[: last + 1] if text is not None}
        width = max((len(text.rows) for text in texts if text.beam is not None), default=1)
        late = self._device.step(
            next(each for each in self._sizes if each > last),
            sampled=any(text.job.temperature for text in texts),
            scored=any(text.job.keeps_attention for text in texts),
            beam=next(each for each in BEAMS if each >= width),
        )
        self._steps.append((self._number, time.monotonic(), late))
        self._number += 1
        return True

    def _read(self) -> bool:
        """Read what the oldest steps have given."""
        began = False
        while self._steps and self._steps[0][2].is_there:
            number, _, late = self._steps.popleft()
            found = late.array()
            self._history.keep(number, found)
            for row in np.flatnonzero(found[3]).tolist():
                text = self._owners[row]
                if text is not None and text.first <= number and text.beam is None:
                    text.ends[row] = number
                    text.left -= 1
                    if not text.left:
                        self._finish(text, self._history.samples(text))
            if len(found) > PLAIN_OUTPUTS:
                beams = {text for text in self._owners if text is not None and text.beam is not None}
                for text in [text for text in beams if text.first <= number]:
                    if (written := self._history.follow(text, number, found)) is not None:
                        self._finish(text, written, stop=True)
            began = True
        if self._steps and time.monotonic() - self._steps[0][1] > STUCK_S:
            raise OperatorError(f"the device has not ended a step of texts for {STUCK_S:g} s")
        return began

    def _finish(self, text: TextUnderWay, written: Written, *, stop: bool = False) -> None:
        self._release(text, stop=stop)
        text.recording.text = None
        self._ready.append((text.recording, text.answer(written)))

    def _release(self, text: TextUnderWay, *, stop: bool) -> None:
        """Free the rows of a text; `stop`: they have not ended by themselves."""
        rows = text.rows
        if stop and rows:
            self._device.end(rows)
        self._free[rows.start : rows.stop] = b"\1" * len(rows)
        self._owners[rows.start : rows.stop] = [None] * len(rows)
        text.rows = range(0)


def is_read(job: Job) -> bool:
    """Whether what stands before the last token of a text's prompt is read in one call."""
    return job.sot >= READ_FROM or (job.prefix > 0 and job.sot > 0)
