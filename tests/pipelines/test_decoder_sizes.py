"""Which calls of a decoder a GPU gets: few sizes, compiled ones where they cost less, and hardly any padding."""

from collections.abc import Sequence

import pytest

from tritone.pipelines.searching.decoder_sizes import DecoderSize, next_call, rounded, usual_sizes


def planned(
    places: Sequence[int], compiled: Sequence[DecoderSize] = (), most: int = 10**9, frames: int = 250
) -> list[tuple[int, DecoderSize]]:
    """All calls for utterances of 10 hypotheses of so many places, on held frames."""
    rest, calls = [(frames, 10, each) for each in sorted(places, reverse=True)], []
    while rest:
        calls.append(next_call(rest, compiled, lambda size: size.rows * size.places <= most, held=True))
        rest = rest[calls[-1][0] :]
    return calls


def sizes(*pairs: tuple[int, int]) -> list[DecoderSize]:
    return [DecoderSize(rows, 250, 10, places) for rows, places in pairs]


def test_numbers_are_rounded_up_to_multiples_of_16_and_to_fewer_of_them_when_they_are_large() -> None:
    assert [rounded(number) for number in (1, 16, 17, 65, 128, 129, 257)] == [16, 16, 32, 80, 128, 160, 320]


def test_a_batch_is_computed_in_calls_of_powers_of_two() -> None:
    assert planned([60] * 64) == [(64, *sizes((64, 64)))]
    assert planned([60] * 48) == [(32, *sizes((32, 64))), (16, *sizes((16, 64)))]
    assert planned([60] * 50) == [(50, *sizes((64, 64)))]  # more than three quarters are used
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
    found = planned([90, 81, 90] + [60] * 32, compiled := sizes((32, 64)))
    assert found == [(3, *sizes((4, 96))), (32, *compiled)]


def test_few_utterances_are_not_padded_to_a_large_call() -> None:
    assert planned([60] * 2, sizes((32, 64))) == [(2, *sizes((2, 64)))]


def test_frames_that_come_from_the_host_are_padded_too() -> None:
    compiled = [DecoderSize(4, 64, 5, 16)]
    assert next_call([(60, 5, 9)] * 4, compiled, lambda size: True, held=False) == (4, compiled[0])
    assert next_call([(60, 5, 9)], (), lambda size: True, held=False) == (1, DecoderSize(1, 64, 5, 16))


def test_compiled_are_the_lengths_that_ten_seconds_of_speech_have() -> None:
    assert usual_sizes(64, 250, 10.0, 10) == sizes((32, 48), (32, 64), (32, 80), (32, 96))
    assert usual_sizes(24, 250, 10.0, 10)[0].rows == 16
    assert usual_sizes(4, 250, 10.0, 10) == []  # a call that comes alone is recorded at most
