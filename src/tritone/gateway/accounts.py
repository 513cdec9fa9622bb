"""What a caller may still use: live streams, requests in a time, seconds of audio in a time.

    account.streaming()   one stream for the length of a `with` block
    account.request()     one request; account.count_audio(audio_s): so much audio

Limits are counted in this process: several gateways behind a balancer each have their own.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from tritone.gateway.refusal import GatewayRefusal


@dataclass(frozen=True, kw_only=True)
class CallerLimits:
    """What one caller may use; infinity is no limit."""

    streams: float = math.inf  # open at once
    requests_per_minute: float = math.inf  # connections of streams count, too
    audio_s_per_hour: float = math.inf

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{each.name} must be a number of at least 0, got {value!r}")

    @classmethod
    def of(cls, fields_: Mapping[str, Any]) -> "CallerLimits":
        """Those among other fields of a mapping; what is not there is no limit."""
        return cls(**{each.name: fields_[each.name] for each in fields(cls) if each.name in fields_})


NO_LIMITS = CallerLimits()


class Account:
    """The counts of one caller."""

    def __init__(self, name: str, limits: CallerLimits = NO_LIMITS) -> None:
        self.name = name
        self.open_streams = 0
        self.limits = limits
        self._requests = _Bucket(limits.requests_per_minute, 60)
        self._audio = _Bucket(limits.audio_s_per_hour, 3600)

    def change(self, limits: CallerLimits) -> None:
        """Have other limits from now on; what is open stays open."""
        if limits != self.limits:
            self.limits = limits
            self._requests = _Bucket(limits.requests_per_minute, 60)
            self._audio = _Bucket(limits.audio_s_per_hour, 3600)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would differ if it were made again."""
        return not self.open_streams and self._requests.is_full and self._audio.is_full

    def request(self) -> None:
        """Count a request; raises `GatewayRefusal` if there were too many."""
        if wait_s := self._requests.take(1):
            limit = self.limits.requests_per_minute
            raise GatewayRefusal(429, f"'{self.name}' may send {limit:g} requests a minute; try again later", wait_s)

    def count_audio(self, audio_s: float) -> None:
        """Count audio; raises `GatewayRefusal` if it was too much. One recording may be longer than the limit."""
        if wait_s := self._audio.take(audio_s):
            limit = self.limits.audio_s_per_hour
            message = f"'{self.name}' may send {limit:g} s of audio an hour; try again later"
            raise GatewayRefusal(429, message, wait_s, code="audio_limit")

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Hold a live stream; raises `GatewayRefusal` if there is none left."""
        if self.open_streams >= self.limits.streams:
            message = f"'{self.name}' may have {self.limits.streams:g} live streams at once; close one of them"
            raise GatewayRefusal(429, message, code="stream_limit")
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1


class _Bucket:
    """An amount that grows back: a token bucket, as large as what grows in `period_s`."""

    def __init__(self, size: float, period_s: float) -> None:
        self._size = size
        self._per_s = size / period_s
        self._level = size
        self._at = time.monotonic()

    def take(self, amount: float) -> float:
        """0.0 if the amount was taken, else in how many seconds it may be."""
        if self._size == math.inf:
            return 0.0
        self._refill()
        needed = min(amount, self._size)
        if self._size == 0:
            return 3600.0
        if self._level < needed:
            return max(0.001, (needed - self._level) / self._per_s)
        self._level -= amount  # below 0 where it is more than there ever is
        return 0.0

    @property
    def is_full(self) -> bool:
        if self._size == math.inf:
            return True
        self._refill()
        return self._level >= self._size

    def _refill(self) -> None:
        now = time.monotonic()
        self._level = min(self._size, self._level + (now - self._at) * self._per_s)
        self._at = now
