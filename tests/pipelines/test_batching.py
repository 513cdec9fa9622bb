"""Plans of graph calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.pipelines.graphs.batching import FULL_CALL_S, BatchLimits, bucket_length, plan_batches

RATE = 16000
LIMITS = st.builds(
    BatchLimits,
    max_batch=st.integers(1, 20),
    max_padded_s=st.floats(0.1, 100),
    max_square_s2=st.floats(0.1, 1000),
    max_waste=st.floats(0, 0.9),
    steps_per_octave=st.sampled_from([1, 4, 16, 64]),
)


@given(st.lists(st.integers(0, 30 * RATE), max_size=60), LIMITS)
def test_a_plan_holds_every_utterance_once_and_keeps_the_limits(lengths: list[int], limits: BatchLimits) -> None:
    batches = plan_batches(lengths, limits, sample_rate=RATE, min_samples=400)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(lengths)))
    for batch in batches:
        count = len(batch.indices)
        assert batch.num_samples >= max(400, *(lengths[index] for index in batch.indices))
        assert count <= limits.max_batch
        if count > 1:
            assert count * batch.num_samples <= limits.max_padded_s * RATE
            assert count * batch.num_samples**2 <= limits.max_square_s2 * RATE**2
            used = sum(lengths[index] for index in batch.indices)
            assert used >= (1 - limits.max_waste) * count * batch.num_samples


@given(st.integers(1, 10**8), st.sampled_from([1, 2, 16, 64]))
def test_a_bucket_is_never_shorter_and_hardly_longer(length: int, steps: int) -> None:
    bucket = bucket_length(length, steps)
    assert length <= bucket <= length * (1 + 1 / steps)
    assert bucket_length(bucket, steps) == bucket


def test_an_octave_has_the_stated_number_of_buckets() -> None:
    assert len({bucket_length(length, 16) for length in range(4097, 8193)}) == 16
    assert bucket_length(4096, 16) == 4096
    assert bucket_length(4097, 16) == 4096 + 256


def test_sixteen_five_minute_utterances_are_run_one_by_one() -> None:
    for device in ("cpu", "cuda"):
        plan = plan_batches([300 * RATE] * 16, BatchLimits.for_device(device), sample_rate=RATE)
        assert [len(batch.indices) for batch in plan] == [1] * 16


def test_equal_utterances_share_calls_up_to_the_padded_seconds() -> None:
    plan = plan_batches([10 * RATE] * 64, BatchLimits.for_device("cuda"), sample_rate=RATE)
    # 10 s are padded to 163840 samples (10.24 s), of which 62 fit in 640 s.
    assert [(len(batch.indices), batch.num_samples) for batch in plan] == [(62, 163840), (2, 163840)]


def test_the_order_within_equal_lengths_is_that_of_the_input() -> None:
    (batch,) = plan_batches([5, 7, 7, 5], BatchLimits(max_waste=0.5), sample_rate=RATE)
    assert batch.indices == (1, 2, 0, 3)


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"max_waste": 1.0}, {"steps_per_octave": 12}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchLimits(**wrong)


def test_calls_of_a_large_network_are_larger_on_the_cpu():
    lengths = [9 * RATE] * 16
    small, large = (
        plan_batches(lengths, BatchLimits.for_device("cpu", size), sample_rate=RATE) for size in (2**20, 2**30)
    )
    assert [len(batch.indices) for batch in large] == [16]
    assert max(len(batch.indices) for batch in small) == 3


@given(
    lengths=st.lists(st.integers(RATE // 2, 12 * RATE), min_size=1, max_size=40),
    calls=st.integers(1, 16),
    max_padded_s=st.sampled_from([8.0, 32.0, 160.0]),
)
def test_calls_at_once_share_the_audio(lengths: list[int], calls: int, max_padded_s: float) -> None:
    limits = BatchLimits(max_padded_s=max_padded_s, max_waste=0.1, steps_per_octave=64)
    seconds = sum(lengths) / RATE
    shared = limits.shared(seconds, calls)
    assert min(max_padded_s, FULL_CALL_S) <= shared.max_padded_s <= max_padded_s
    for batch in plan_batches(lengths, shared, sample_rate=RATE):
        padded_s = len(batch.indices) * batch.num_samples / RATE
        assert len(batch.indices) == 1 or padded_s <= max(FULL_CALL_S, 1.1 * seconds / calls)


@pytest.mark.parametrize("network_bytes", [2**20, 2**30])
def test_where_graphs_like_even_batches_a_cpu_pads_nothing_beyond_the_longest_of_a_call(network_bytes: int) -> None:
    limits = BatchLimits.for_device("cpu", network_bytes, like_even=True)
    assert [
        (len(each.indices), each.num_samples) for each in plan_batches([32_320] * 16, limits, sample_rate=RATE)
    ] == [(16, 32_320)]
    for length in (401, 32_321, 300 * RATE - 1, 3600 * RATE + 7):
        assert [batch.num_samples for batch in plan_batches([length], limits, sample_rate=RATE)] == [length]
    assert BatchLimits.for_device("cuda", network_bytes, like_even=True) == BatchLimits.for_device("cuda")
