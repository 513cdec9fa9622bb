"""Limits of servers against strangers."""

import pytest

from tritone.net.limits import LeastRate, Limits
from tritone.net.refusal import retry_hints


def test_a_body_has_its_grace_and_the_time_of_what_came() -> None:
    rate = LeastRate(grace_s=10, bytes_per_s=2048)
    assert [rate.allowed_s(count) for count in (0, 2048, 4096)] == [10, 11, 12]
    assert rate.broken("the body", 5, 11.2) == (
        "only 5 bytes of the body came in 11 s; it must come faster than 2 KB a second"
    )


def test_limits_are_numbers_above_0() -> None:
    assert Limits().body_rate == LeastRate(grace_s=10, bytes_per_s=16 << 10)
    with pytest.raises(ValueError, match="idle_s must be a number above 0, got 0"):
        Limits(idle_s=0)


def test_hints_say_when_to_try_again_in_whole_seconds_and_milliseconds() -> None:
    assert retry_hints(None) == {}
    assert retry_hints(0.2) == {"retry-after": "1", "retry-after-ms": "200"}
