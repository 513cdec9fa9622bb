"""The book of open streams, with a clock that the test moves."""

import gc
import weakref
from pathlib import Path

import pytest

from toy import toy_waveform
from tritone.backend.streams import StreamTable
from tritone.bundle import Bundle
from tritone.errors import ServerBusyError, StreamError
from tritone.pipelines import Step, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.search.options import SearchMode, SearchOptions


class Slots:
    """Hands out slots 0, 1, ... and remembers which were closed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.opened = 0
        self.closed: list[int] = []
        self.table = StreamTable(self.open, self.closed.append, capacity=2, idle_timeout_s=10, clock=lambda: self.now)

    def open(self) -> int:
        self.opened += 1
        return self.opened - 1


def test_a_stream_keeps_its_slot_until_it_is_closed() -> None:
    slots = Slots()
    assert slots.table.start("a") == slots.table.touch("a") == 0
    slots.table.close("a")
    assert slots.closed == [0]
    with pytest.raises(StreamError, match="stream a is not open"):
        slots.table.touch("a")


def test_starting_an_open_stream_again_is_refused_and_leaves_it_as_it_is() -> None:
    slots = Slots()
    assert slots.table.start(1) == 0
    with pytest.raises(StreamError, match=r"stream 1 is in use.*random number of 63 bits.*nothing for 10 s"):
        slots.table.start(1)
    assert slots.table.touch(1) == 0
    assert (slots.opened, slots.closed) == (1, [])


def test_a_stream_too_many_is_refused_with_the_limit() -> None:
    slots = Slots()
    slots.table.start(1)
    slots.table.start(2)
    with pytest.raises(ServerBusyError, match=r"all 2 streams .* 10 s"):
        slots.table.start(3)
    assert slots.opened == 2


def test_only_streams_idle_for_the_whole_time_expire() -> None:
    slots = Slots()
    slots.table.start("idle")
    slots.table.start("busy")
    slots.now = 9.0
    slots.table.touch("busy")
    assert slots.table.expire() == []
    slots.now = 10.0
    assert slots.table.expire() == ["idle"]
    assert slots.closed == [0]
    slots.now = 19.0
    assert slots.table.expire() == ["busy"]
    assert len(slots.table) == 0


def test_a_stream_whose_chunk_is_at_hand_is_kept_however_long_the_chunk_waited() -> None:
    slots = Slots()
    slots.table.start("waiting")
    slots.table.start("gone")
    slots.now = 100.0
    assert slots.table.expire(keep={"waiting"}) == ["gone"]
    assert slots.table.touch("waiting") == 0
    assert slots.closed == [1]


def test_a_finished_stream_is_forgotten_without_closing_the_slot_twice() -> None:
    slots = Slots()
    slots.table.start("a")
    slots.table.forget("a")
    slots.table.close("a")
    assert slots.closed == []
    assert len(slots.table) == 0


@pytest.mark.parametrize("mode", ["greedy", "prefix-beam", "rescoring"])
def test_nothing_is_left_of_a_stream_whose_end_never_came(decoding_bundle: Path, mode: SearchMode) -> None:
    pipeline = open_streaming(Bundle.open(decoding_bundle), placement=Placement(threads=1), capacity=2)
    now = 0.0
    table = StreamTable(pipeline.open, pipeline.close, capacity=2, idle_timeout_s=5, clock=lambda: now)
    slot = table.start("gone", SearchOptions(mode=mode))
    pipeline.advance([Step(slot, toy_waveform("abcdefgh"))])
    state = weakref.ref(pipeline._streams[slot].segment)
    now = 6.0
    assert table.expire() == ["gone"]
    assert (pipeline.num_open, len(table)) == (0, 0)
    gc.collect()
    assert state() is None, "its hypotheses and encoder frames are still held"
