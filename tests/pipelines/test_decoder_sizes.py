"""Which calls of a decoder a GPU gets: few sizes, compiled ones where they cost less, and hardly any padding."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.pipelines.searching.decoder_sizes import DecoderSize, plan_calls, rounded, usual_sizes


def planned(
    places: Sequence[int], compiled: Sequence[DecoderSize] = (), most: int = 10**9, frames: int = 250
) -> list[tuple[int, DecoderSize]]:
    """All calls for utterances of 10 hypotheses of so many places, on held frames."""
    parts = [(frames, 10, each) for each in sorted(places, reverse=True)]
    return plan_calls(parts, compiled, lambda size: size.rows * size.places <= most, held=True)


def sizes(*pairs: tuple[int, int]) -> list[DecoderSize]:
    return [DecoderSize(rows, 250, 10, places) for rows, places in pairs]


def test_numbers_are_rounded_up_to_multiples_of_16_and_to_fewer_of_them_when_they_are_large() -> None:
    assert [rounded(number) for number in (1, 16, 17, 65, 128, 129, 257)] == [16, 16, 32, 80, 128, 160, 320]


def test_a_batch_is_computed_in_calls_of_powers_of_two() -> None:
    assert planned([60] * 64) == [(64, *sizes((64, 64)))]
    assert sorted(planned([60] * 48)) == [(16, *sizes((16, 64))), (32, *sizes((32, 64)))]
    assert planned([60] * 62) == [(62, *sizes((64, 64)))]  # the padding costs less than a call more
    assert planned([61], most=1) == [(1, *sizes((1, 64)))]


def test_the_longest_utterances_share_a_call_and_the_rest_needs_less() -> None:
    assert planned([70] * 20 + [50] * 44, most=32 * 80) == [(32, *sizes((32, 80))), (32, *sizes((32, 64)))]


def test_compiled_sizes_are_filled_first() -> None:
    compiled = sizes((32, 48), (32, 64), (32, 80))
    found = planned([76] * 10 + [60] * 30 + [40] * 24, compiled)
    assert found == [(32, compiled[2]), (32, compiled[1])]
    assert planned([40] * 64, compiled) == [(32, compiled[0])] * 2


@pytest.mark.parametrize(
    ("places", "frames", "why"),
    [(81, 250, "its hypotheses are too long"), (60, 251, "held frames cannot be padded")],
)
def test_what_no_compiled_size_holds_runs_as_it_is(places: int, frames: int, why: str) -> None:
    ((count, size),) = planned([places] * 32, sizes((32, 80)), frames=frames)
    assert (count, size.frames) == (32, frames), why
    assert size.places == rounded(places), why


def test_the_few_that_no_compiled_size_holds_have_a_call_of_their_own() -> None:
    found = planned([90, 81, 90, 90] + [60] * 32, compiled := sizes((32, 64)))
    assert found == [(4, *sizes((4, 96))), (32, *compiled)]


def test_calls_cost_least_together() -> None:
    """The largest size is not filled with short utterances if those cost less in a call of their own."""
    compiled = sizes((8, 48), (8, 96), (24, 48), (32, 96))
    assert planned([90] * 8 + [40] * 24, compiled) == [(8, compiled[1]), (24, compiled[2])]
    assert planned([90] * 8 + [40] * 2, compiled[3:]) == [(8, *sizes((8, 96))), (2, *sizes((2, 48)))]


@given(
    places=st.lists(st.integers(1, 120), min_size=1, max_size=40),
    rows=st.lists(st.sampled_from([1, 2, 4, 8, 16, 24, 32]), unique=True),
    most=st.integers(1, 4000),
)
def test_every_utterance_is_in_a_call_that_holds_it(places: list[int], rows: list[int], most: int) -> None:
    compiled = sizes(*((each, length) for each in rows for length in (32, 64, 96)))
    rest = sorted(places, reverse=True)
    for count, size in planned(places, compiled, most):
        part, rest = rest[:count], rest[count:]
        assert 0 < count <= size.rows
        assert max(part) <= size.places
        assert size in compiled or size.rows == 1 or size.rows * size.places <= most
    assert not rest


def test_few_utterances_are_not_padded_to_a_large_call() -> None:
    assert planned([60] * 2, sizes((32, 64))) == [(2, *sizes((2, 64)))]


def test_frames_that_come_from_the_host_are_padded_too() -> None:
    compiled = [DecoderSize(4, 64, 5, 16)]
    assert plan_calls([(60, 5, 9)] * 4, compiled, lambda size: True, held=False) == [(4, compiled[0])]
    assert plan_calls([(60, 5, 9)], (), lambda size: True, held=False) == [(1, DecoderSize(1, 64, 5, 16))]


def test_compiled_are_the_lengths_that_ten_seconds_of_speech_have() -> None:
    assert usual_sizes(64, 250, 10.0, 10) == sizes((32, 48), (32, 64), (32, 80), (32, 96))
    assert usual_sizes(24, 250, 10.0, 10)[0].rows == 16
    assert usual_sizes(4, 250, 10.0, 10) == []  # a call that comes alone is recorded at most
