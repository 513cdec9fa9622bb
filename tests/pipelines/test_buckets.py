"""Sizes that graphs are compiled for, and plans of calls that fill them."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toy
from effort import examples
from toy_speaker import DIM, MIN_SAMPLES, SAMPLE_RATE, toy_voice, write_toy_speaker
from tritone.bundle import Bundle
from tritone.pipelines.embedding import EmbeddingPipeline
from tritone.pipelines.graphs.batching import (
    AS_IT_IS,
    CALL_COST_S,
    Batch,
    BatchLimits,
    Sizes,
    plan_batches,
    plan_buckets,
)
from tritone.pipelines.graphs.buckets import (
    choose_buckets,
    least_padding,
    read_sizes,
    rows_for,
    usual_lengths,
)
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.offline import OfflinePipeline
from tritone.runtime.graph import Bucket, rows_up_to
from tritone.search.options import SearchOptions

RATE = 16000
BUCKETS = st.lists(st.builds(Bucket, st.sampled_from([1, 2, 4, 16, 64]), st.integers(400, 20 * RATE)), max_size=12)


def cost(rows: int, num_samples: int) -> float:
    return rows * num_samples + CALL_COST_S * RATE


def as_it_is(length: int) -> float:
    """What an utterance costs alone in a call that is not compiled."""
    return AS_IT_IS * cost(1, plan_batches([length], BatchLimits(), sample_rate=RATE)[0].num_samples)


def spent(plan: list[Batch], lengths: list[int]) -> float:
    """Calls that are not compiled hold several utterances; each of them counts as if it were alone."""
    return sum(
        cost(batch.rows, batch.num_samples) if batch.rows else sum(as_it_is(lengths[index]) for index in batch.indices)
        for batch in plan
    )


@given(st.lists(st.integers(0, 30 * RATE), max_size=60), BUCKETS, st.booleans())
def test_a_plan_with_buckets_holds_every_utterance_once_in_calls_that_are_large_enough(
    lengths: list[int], buckets: list[Bucket], equal: bool
) -> None:
    plan = plan_buckets(lengths, BatchLimits(), Sizes(buckets, equal=equal), sample_rate=RATE, min_samples=400)
    assert sorted(index for batch in plan for index in batch.indices) == list(range(len(lengths)))
    for batch in plan:
        members = [max(400, lengths[index]) for index in batch.indices]
        assert max(members) <= batch.num_samples
        assert len(members) <= batch.num_rows
        if batch.rows:
            assert Bucket(batch.rows, batch.num_samples) in buckets
        if equal:
            assert set(members) == {batch.num_samples}


@given(st.lists(st.integers(400, 20 * RATE), min_size=1, max_size=40), BUCKETS)
def test_a_plan_with_buckets_costs_no_more_than_one_that_takes_the_smallest_for_each(
    lengths: list[int], buckets: list[Bucket]
) -> None:
    plan = plan_buckets(lengths, BatchLimits(), Sizes(buckets), sample_rate=RATE, min_samples=400)
    naive = sum(
        min([cost(each.rows, each.samples) for each in buckets if each.samples >= length] + [as_it_is(length)])
        for length in lengths
    )
    assert spent(plan, lengths) <= naive * (1 + 1e-9)


@settings(max_examples=examples(50))
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_plan_with_buckets_is_the_cheapest_there_is(lengths: list[int], rows: list[int]) -> None:
    """Against every way to cut the sorted utterances into calls."""
    second = RATE
    buckets = [Bucket(each, end * second) for each in {1, *rows} for end in (20, 60)]
    samples = [length * second for length in lengths]
    ordered = sorted(samples, reverse=True)

    def cheapest(members: list[int]) -> float:
        fitting = [each for each in buckets if each.rows >= len(members) and each.samples >= members[0]]
        alone = [as_it_is(members[0])] if len(members) == 1 else []
        return min([cost(each.rows, each.samples) for each in fitting] + alone, default=float("inf"))

    count = len(ordered)
    best = min(
        sum(cheapest(ordered[start:end]) for start, end in zip((0, *cuts), (*cuts, count), strict=True))
        for number in range(count)
        for cuts in combinations(range(1, count), number)
    )
    plan = plan_buckets(samples, BatchLimits(), Sizes(buckets), sample_rate=RATE)
    assert spent(plan, samples) == pytest.approx(best)


def test_what_is_longer_than_all_buckets_runs_as_it_would_without_any() -> None:
    lengths = [30 * RATE, 5 * RATE, 29 * RATE]
    plan = plan_buckets(lengths, BatchLimits(), Sizes([Bucket(1, 6 * RATE)]), sample_rate=RATE)
    alone = plan_batches([lengths[0], lengths[2]], BatchLimits(), sample_rate=RATE)
    assert [(batch.num_samples, batch.rows) for batch in plan] == [(alone[0].num_samples, 0), (6 * RATE, 1)]


def test_a_lone_request_is_not_padded_to_a_bucket_of_many_rows() -> None:
    (batch,) = plan_buckets([3 * RATE], BatchLimits(), Sizes([Bucket(64, 10 * RATE)]), sample_rate=RATE)
    assert (batch.rows, batch.num_rows) == (0, 1)


def test_there_must_be_room_for_a_bucket() -> None:
    sizes = Sizes([Bucket(16, RATE), Bucket(4, RATE)], has_room=lambda rows, num_samples: rows < 16)
    plan = plan_buckets([RATE] * 16, BatchLimits(), sizes, sample_rate=RATE)
    assert {batch.rows for batch in plan} == {4}


def test_mixed_lengths_of_a_busy_server_waste_little() -> None:
    chosen = choose_buckets(usual_lengths(30.0), RATE).buckets
    buckets = [Bucket(rows, each.samples) for each in chosen for rows in rows_up_to(each.rows)]
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(np.log(8) - 0.18, 0.6, 256), 1, 30) * RATE
    plan = plan_buckets(lengths.astype(int).tolist(), BatchLimits(), Sizes(buckets), sample_rate=RATE)
    assert all(batch.rows for batch in plan)
    computed = sum(batch.rows * batch.num_samples for batch in plan)
    assert lengths.sum() / computed > 0.86
    assert len(plan) <= 12


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 4))
def test_the_lengths_that_are_chosen_pad_least(lengths: list[int], count: int) -> None:
    lengths = sorted(lengths)

    def padded(ends: tuple[int, ...]) -> int:
        return sum(min(end for end in ends if end >= each) for each in lengths)

    longest, others = lengths[-1], sorted(set(lengths[:-1]) - {lengths[-1]})
    best = min(
        padded((*chosen, longest))
        for number in range(min(count, len(others) + 1))
        for chosen in combinations(others, number)
    )
    found = least_padding(lengths, count)
    assert len(found) <= count
    assert padded(tuple(found)) == best


def test_buckets_of_short_audio_have_more_rows_and_some_have_one() -> None:
    choice = choose_buckets([10.0] * 5, RATE, tail=1600, min_samples=9000)
    assert choice.buckets == (Bucket(1, 162560), Bucket(64, 162560))  # 10.1 s, in steps of 80 ms
    assert choice.padding == {162560: pytest.approx(1 - 161600 / 162560)}
    assert [rows_for(seconds) for seconds in (2.0, 10.0, 30.0, 300.0)] == [128, 64, 24, 8]


def test_sizes_are_read_as_they_are_written() -> None:
    assert read_sizes("64x10, 1x0.5s,16x10", 8000, tail=100, min_samples=6000) == (Bucket(1, 6000), Bucket(64, 80100))
    for wrong in ("", "64", "0x10", "64x0", "ax1", "64x10;1x1"):
        with pytest.raises(ValueError, match="rows x seconds"):
            read_sizes(wrong, 8000)
        with pytest.raises(ValueError, match="rows x seconds"):
            Placement(compile=wrong)


def test_texts_are_the_same_in_calls_that_are_padded_to_buckets(toy_bundle: Path) -> None:
    pipeline = OfflinePipeline(Bundle.open(toy_bundle), placement=Placement(threads=1))
    texts = ["hello", "a", "", "longer than the others", "b", "hi", "over all sizes of calls that there are"]
    waveforms = [toy.toy_waveform(text) for text in texts]
    sizes = [Bucket(4, len(waveforms[0])), Bucket(2, len(waveforms[3])), Bucket(1, len(waveforms[3]))]
    pipeline.runner.graph.buckets_for = lambda outputs: sizes  # type: ignore[method-assign]
    assert [each.text for each in pipeline.recognize(waveforms)] == texts
    work, rate = pipeline.work.take(), pipeline.sample_rate
    audio = sum(len(each) for each, text in zip(waveforms, texts, strict=True) if text)
    assert work.audio_s == pytest.approx(audio / rate)
    # The longest fits none, the next is alone, and the rest share four rows.
    computed = 4 * len(waveforms[0]) + len(waveforms[3]) + len(waveforms[6])
    assert work.audio_s + work.padding_s == pytest.approx(computed / rate, rel=0.1)
    pipeline.warm_up()
    assert pipeline.recognize([waveforms[1]])[0].text == "a"


def test_what_is_not_compiled_for_some_does_not_keep_the_others_from_compiled_calls(
    toy_bundle_of_both: Path,
) -> None:
    pipeline = OfflinePipeline(Bundle.open(toy_bundle_of_both), placement=Placement(threads=1, runtime="torch"))
    graph, texts = pipeline.runner.graph, ["hello", "a", "longer than the others", "b"]
    waveforms = [toy.toy_waveform(text) for text in texts]
    size = Bucket(4, max(map(len, waveforms)))
    beam = SearchOptions(mode="prefix-beam", beam=3)
    called: list[tuple[int, bool]] = []

    def sizes(outputs: Sequence[str]) -> list[Bucket]:
        return [] if "log_probs" in outputs else [size]  # which beams need

    def call(inputs: Any, outputs: Sequence[str]) -> Any:
        called.append((len(inputs["waveform"]), "log_probs" in outputs))
        return run(inputs, outputs)

    run, graph.buckets_for = pipeline.runner.compute, sizes  # type: ignore[method-assign]
    pipeline.runner.compute = call  # type: ignore[method-assign]
    assert [each.text for each in pipeline.recognize(waveforms, [None, beam, None, None])] == texts
    assert sorted(called) == [(1, True), (4, False)]
    called.clear()
    assert [each.text for each in pipeline.recognize(waveforms, [beam] * 4)] == texts
    assert all(needs for _, needs in called)


@pytest.mark.parametrize("equal_lengths", [False, True])
def test_embeddings_are_the_same_in_calls_that_are_padded_to_buckets(tmp_path: Path, equal_lengths: bool) -> None:
    bundle = Bundle.open(write_toy_speaker(tmp_path / "speaker", equal_lengths=equal_lengths))
    pipeline = EmbeddingPipeline(bundle, placement=Placement(threads=1))
    lengths = [MIN_SAMPLES, 3 * MIN_SAMPLES, 2 * MIN_SAMPLES, 3 * MIN_SAMPLES, 5 * MIN_SAMPLES]
    rng = np.random.default_rng(2)
    voices = [toy_voice(rng.random(DIM) + 0.01, length, seed) for seed, length in enumerate(lengths)]
    alone = np.stack([pipeline.embed([voice])[0] for voice in voices])
    pipeline.work.take()
    pipeline.runner.graph.buckets_for = lambda outputs: [Bucket(4, 3 * MIN_SAMPLES)]  # type: ignore[method-assign]
    np.testing.assert_allclose(pipeline.embed(voices), alone, atol=1e-6)
    # The four rows of the bucket, and the longest by itself; where padding is heard, the two others as well.
    samples = (4 * 3 + 5 + (3 if equal_lengths else 0)) * MIN_SAMPLES
    assert round((work := pipeline.work.take()).audio_s * SAMPLE_RATE + work.padding_s * SAMPLE_RATE) == samples
    assert work.calls == (4 if equal_lengths else 2)
