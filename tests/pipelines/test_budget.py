"""What calls take of memory, the budget that they are planned within, and what is given back."""

import threading
from pathlib import Path

import numpy as np
import pytest

from fresh import in_fresh_process
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import CallSize, Memory
from tritone.errors import InputError
from tritone.pipelines.graphs.batching import BatchLimits, plan_batches
from tritone.pipelines.graphs.budget import CALLS_UNTIL_RETURN, MARGIN, MB, Budget
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.memory import measure
from tritone.pipelines.offline import OfflinePipeline

RATE = 1000
# 10 MB for a row of 10 s, 40 MB for one of 20 s, and 1 MB a second for the search.
MEMORY = Memory(
    process=100 * MB,
    network=(CallSize(seconds=10, bytes=10 * MB), CallSize(seconds=20, bytes=40 * MB)),
    search_per_second=1 * MB,
)


def budget(megabytes: float | None, returned: list[None], **others: float) -> Budget:
    return Budget(MEMORY, RATE, lambda: returned.append(None), megabytes=megabytes, **others)  # type: ignore[arg-type]


def with_memory(path: Path, memory: Memory) -> Bundle:
    bundle = Bundle.open(path)
    artifacts = tuple(
        each.model_copy(update={"memory": memory if each.role == "encoder" else None})
        for each in bundle.manifest.artifacts
    )
    return Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": artifacts}))


@pytest.mark.parametrize(("rows", "seconds", "megabytes"), [(1, 5, 10), (1, 15, 40), (3, 15, 120), (1, 40, 200)])
def test_a_call_takes_what_was_measured_with_lines_between_and_squares_beyond(
    rows: int, seconds: float, megabytes: float
) -> None:
    assert MEMORY.call_bytes(rows, seconds) == pytest.approx(megabytes * MB)
    assert MEMORY.longest(MEMORY.call_bytes(1, seconds)) == pytest.approx(seconds)


def test_what_never_fits_is_refused_with_the_numbers_and_the_ways_out() -> None:
    tight = budget(100 + 40 * MARGIN, [])
    tight.check(15 * RATE)
    with pytest.raises(InputError) as caught:
        tight.check(20 * RATE)
    words = "the audio is 20.000 s", "169 MB", "146 MB", "15 s", "Stream it", "cut it", "--memory-mb"
    assert all(each in str(caught.value) for each in words), caught.value


def test_a_call_has_no_more_rows_than_there_is_room_for() -> None:
    tight = budget(100 + 3 * 16 * MARGIN, [])  # three rows of 7.5 s, padded to a standard length
    lengths = [7500] * 7
    sizes = [len(each.indices) for each in plan_batches(lengths, BatchLimits(), sample_rate=RATE, has_room=tight.fits)]
    assert sizes == [3, 3, 1]
    assert [len(each.indices) for each in plan_batches(lengths, BatchLimits(), sample_rate=RATE)] == [7]


def test_a_call_without_room_waits_until_no_other_runs_and_what_is_kept_was_returned() -> None:
    returned: list[None] = []
    tight = budget(100 + 60 * MARGIN, returned)
    began, end, order = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with tight.call(1, 15 * RATE):  # 40 MB
            began.set()
            end.wait(60)
            order.append("first")

    def second() -> None:
        with tight.call(1, 15 * RATE):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert began.wait(60)
    threads[1].start()
    end.set()
    for thread in threads:
        thread.join(60)
    assert order == ["first", "second"]
    assert not returned, "calls as large as one before it use its memory again"
    with tight.call(1, 17 * RATE):  # 48 MB, beside 40 MB in pieces that may not fit
        assert len(returned) == 1


def test_memory_is_given_back_after_large_calls_and_after_many() -> None:
    returned: list[None] = []
    roomy = budget(None, returned, usual_s=10)
    for _ in range(CALLS_UNTIL_RETURN - 1):
        with roomy.call(1, 10 * RATE):
            pass
        roomy.settle()
    assert not returned
    with roomy.call(1, 10 * RATE):
        pass
    roomy.settle()
    assert len(returned) == 1, "an arena that sees ever new sizes grows"
    with roomy.call(1, 11 * RATE):
        roomy.settle()  # of another run: this call goes on
        assert len(returned) == 1
    roomy.settle()
    assert len(returned) == 2


def test_a_budget_changes_calls_and_no_result(toy_bundle: Path) -> None:
    rng = np.random.default_rng(0)
    waves = [rng.uniform(-1, 1, length).astype(np.float32) for length in (4000, 8000, 15000, 15500, 16000)]
    free = OfflinePipeline(Bundle.open(toy_bundle), placement=Placement(threads=1))
    memory = Memory(
        process=MB,
        network=(CallSize(seconds=1, bytes=10 * MB), CallSize(seconds=2, bytes=20 * MB)),
        search_per_second=0,
    )
    tight = OfflinePipeline(with_memory(toy_bundle, memory), placement=Placement(threads=1, memory_mb=15))
    expected = [each.to_dict() for each in free.recognize(waves)]
    assert [each.to_dict() for each in tight.recognize(waves)] == expected
    assert (free.work.take().calls, tight.work.take().calls) == (3, 5)
    assert tight.max_audio_s == pytest.approx(14 / 10 / MARGIN, abs=0.01)
    good, refused = tight.run([waves[0], np.zeros(32000, np.float32)])
    assert not isinstance(good, Exception)
    assert isinstance(refused, InputError)


def test_a_bundle_is_measured_in_a_process_of_its_own(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)
    index = [each.role for each in bundle.manifest.artifacts].index("encoder")
    memory = measure(bundle, index)
    assert memory is not None
    assert 20 * MB < memory.process < 1000 * MB, "a Python with numpy and onnxruntime"
    assert memory.network[-1].bytes < 500 * MB, "the toy is small"
    assert measure(bundle, 1 - index) is None, "only the graph for whole utterances is measured"


def resident_mb_before_and_after() -> tuple[float, float]:
    from tritone.runtime.memory import peak_bytes, resident_bytes

    pipeline = OfflinePipeline(Bundle.open("demo-asr"), placement=Placement(threads=1))
    before = resident_bytes()
    assert not isinstance(pipeline.run([np.zeros(60 * 16000, np.float32)])[0], Exception)
    return (peak_bytes() - before) / MB, (resident_bytes() - before) / MB


@pytest.mark.slow
def test_a_long_utterance_leaves_no_memory_behind() -> None:
    peak, kept = in_fresh_process(resident_mb_before_and_after)
    assert peak > 100
    assert kept < 0.4 * peak
