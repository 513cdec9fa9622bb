"""Audio read ahead of the model: in order, as far as there is room, and what breaks on the way."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tritone.audio import read_ahead as reading
from tritone.audio.waveform import Waveform
from tritone.errors import AudioError, OperatorError

RATE = 1000


def tenth(item: object) -> Waveform:
    return np.zeros(RATE // 10, np.float32)


def test_recordings_come_in_the_order_of_the_inputs_whichever_is_read_first():
    first = threading.Event()

    def read(item: object) -> Waveform:
        if item == "0":
            first.wait(5)
        first.set()
        return np.full(int(str(item)) + 1, 0.5, np.float32)

    found = list(reading.read_ahead((str(number) for number in range(20)), read, RATE))
    assert [(each.index, each.source, len(each.get())) for each in found] == [(n, str(n), n + 1) for n in range(20)]
    assert found[9].audio_s == 10 / RATE


def test_inputs_are_taken_only_when_there_is_room_for_what_they_hold(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "MAX_READERS", 2)
    monkeypatch.setattr(reading, "ROOM_S", 10 * 0.1)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "a.wav"

    recordings = reading.read_ahead(endless(), tenth, RATE)
    for _ in range(5):
        next(recordings)
    time.sleep(0.05)
    # Ten that wait, and one in the hands of each thread.
    assert taken <= 5 + 10 + 2
    recordings.close()


def test_an_input_that_cannot_be_read_has_its_error_and_the_others_their_audio():
    def read(item: object) -> Waveform:
        if str(item) == "bad":
            raise AudioError("cannot read bad")
        if str(item) == "worse":
            raise KeyError("x")
        return tenth(item)

    one, bad, worse, array = reading.read_ahead(["one", "bad", "worse", np.zeros(3)], read, RATE)
    assert (one.ok, array.ok, array.source) == (True, True, "input 3")
    assert str(bad.error) == "cannot read bad"
    assert isinstance(worse.error, OperatorError)
    assert str(worse.error) == "worse: cannot be read (KeyError: 'x')"


def test_inputs_that_break_are_an_error_of_the_caller():
    def broken() -> Iterator[str]:
        yield from ("a", "b", "c")
        raise RuntimeError("no more paths")

    found = []
    with pytest.raises(RuntimeError, match="no more paths"):
        found += [each.index for each in reading.read_ahead(broken(), tenth, RATE)]
