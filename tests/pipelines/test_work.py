"""What pipelines tell of their work: seconds of audio and padding worked out by hand, time by the clock."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toy
from tritone.bundle import Bundle
from tritone.pipelines import OfflinePipeline, Step, StreamingPipeline, open_offline, open_streaming
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.graphs.runner import Filled
from tritone.pipelines.graphs.work_log import CallWork, Work, WorkLog

RATE = toy.SAMPLE_RATE


@pytest.fixture(scope="module")
def offline(toy_bundle: Path) -> OfflinePipeline:
    limits = BatchLimits(max_waste=0.25, steps_per_octave=16)
    return open_offline(Bundle.open(toy_bundle), placement=Placement(threads=1), limits=limits)


@pytest.fixture(scope="module")
def streaming(toy_bundle: Path) -> StreamingPipeline:
    return open_streaming(Bundle.open(toy_bundle), placement=Placement(threads=1))


def work_of(pipeline: OfflinePipeline | StreamingPipeline) -> tuple[int, int, int]:
    """Audio and padding in samples, and calls, since the last time."""
    work = pipeline.work.take()
    assert work.search_s >= 0
    assert work.network_s >= 0
    return round(work.audio_s * RATE), round(work.padding_s * RATE), work.calls


def play(pipeline: StreamingPipeline, num_samples: int, chunk: int) -> tuple[int, int, int]:
    pipeline.work.take()
    slot = pipeline.open()
    for start in range(0, max(1, num_samples), chunk):
        end = min(start + chunk, num_samples)
        pipeline.advance([Step(slot, np.zeros(end - start, np.float32), end == num_samples)])
    return work_of(pipeline)


def test_calls_one_after_the_other_keep_their_times() -> None:
    log = WorkLog(100)
    log.add([CallWork(50, 10, 2.0, 1.0, 4.0), CallWork(100, 0, 1.0, 0.5, 2.0)], 6.0)
    assert log.take() == Work(audio_s=1.5, padding_s=0.1, calls=2, network_s=3.0, search_s=1.5)


def test_calls_side_by_side_share_the_time_by_the_clock() -> None:
    log = WorkLog(100)
    log.add([CallWork(0, 0, 3.0, 1.0, 4.0)] * 2, 4.0)
    work = log.take()
    assert (work.network_s, work.search_s) == (3.0, 1.0)


def test_work_is_taken_once() -> None:
    log = WorkLog(100)
    log.add([CallWork(50, 10, 2.0, 1.0, 4.0)], 4.0)
    log.take()
    log.add([], 0.0)
    assert log.take() == Work()


def test_work_that_threads_add_is_all_there() -> None:
    log = WorkLog(1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: log.add([CallWork(1, 2, 1.0, 1.0, 2.0)], 2.0), range(800)))
    work = log.take()
    assert (work.audio_s, work.padding_s, work.calls) == (800, 1600, 800)


def test_padding_is_what_a_batch_computes_beyond_its_utterances(offline: OfflinePipeline) -> None:
    # 16000 is padded to 32 steps of 512, the next standard length
    offline.recognize([np.zeros(16000, np.float32), np.zeros(10000, np.float32)])
    assert work_of(offline) == (26000, 2 * 16384 - 26000, 1)


def test_utterances_of_different_batches_pad_each_to_its_own_length(offline: OfflinePipeline) -> None:
    offline.recognize([np.zeros(16384, np.float32), np.zeros(1024, np.float32)])  # both of standard length
    assert work_of(offline) == (16384 + 1024, 0, 2)


def test_what_is_too_short_for_the_network_is_no_work(offline: OfflinePipeline) -> None:
    offline.recognize([np.zeros(10, np.float32), np.zeros(0, np.float32)])
    assert work_of(offline) == (0, 0, 0)


def test_the_overlap_of_windows_is_neither_audio_nor_padding(streaming: StreamingPipeline) -> None:
    # the rest after two windows is shorter than a frame and never reaches the network
    assert play(streaming, toy.WINDOW + toy.SHIFT, 1000) == (2 * toy.SHIFT, 0, 2)


def test_the_last_part_of_a_stream_is_padded_to_a_window(streaming: StreamingPipeline) -> None:
    rest = toy.WINDOW - toy.SHIFT + 1000
    samples = 2 * toy.SHIFT + rest
    assert play(streaming, samples, 5000) == (samples, toy.WINDOW - rest, 3)


def test_streams_of_one_step_share_a_call(streaming: StreamingPipeline) -> None:
    streaming.work.take()
    slots = [streaming.open() for _ in range(2)]
    lengths = [toy.WINDOW, toy.MIN_SAMPLES]
    streaming.advance([Step(slot, np.zeros(n, np.float32), True) for slot, n in zip(slots, lengths, strict=True)])
    assert work_of(streaming) == (toy.SHIFT + toy.MIN_SAMPLES, toy.WINDOW - toy.MIN_SAMPLES, 1)


@given(st.integers(0, 20000), st.integers(100, 9000))
def test_all_audio_of_a_stream_counts_once_however_it_is_cut(
    streaming: StreamingPipeline, num_samples: int, chunk: int
) -> None:
    audio, padding, calls = play(streaming, num_samples, chunk)
    assert num_samples - toy.MIN_SAMPLES < audio <= num_samples
    assert audio + padding <= calls * toy.WINDOW


def test_a_call_is_started_before_the_one_before_it_is_used_and_none_is_lost_by_an_error(
    streaming: StreamingPipeline,
) -> None:
    done: list[str] = []

    def start(call: int, inputs: object) -> Any:
        done.append(f"start {call}")
        return lambda: {"call": call}

    def take(call: int, outputs: Any) -> None:
        assert outputs == {"call": call}
        done.append(f"take {call}")
        if call == 9:
            raise MemoryError("a nine")

    def run(*calls: int) -> str:
        done.clear()
        streaming.runner.run_ahead(calls, lambda call: Filled({}, call, 0), start, take)
        return ", ".join(done)

    streaming.work.take()
    assert run(1) == "start 1, take 1"
    assert run(1, 2, 3) == "start 1, start 2, take 1, start 3, take 2, take 3"
    assert work_of(streaming) == (7, 0, 4)
    with pytest.raises(MemoryError, match="a nine"):
        run(1, 9, 2, 3)
    assert ", ".join(done) == "start 1, start 9, take 1, start 2, take 9, take 2", "what was started is not forgotten"
