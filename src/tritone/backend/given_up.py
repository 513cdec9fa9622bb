"""Requests that nobody waits for any more, dropped before they are computed.

Triton 2.51 hands a request to the model also after its client cancelled the call or its deadline has passed (gRPC
alone; of HTTP it does not notice), and a model may ask. Asking is a round trip to Triton's process, 50 to 200 µs for
each request, so only batches are asked about that have waited for a long one before them.
"""

import time
from typing import Any

from tritone.errors import RetryError

ASK_AFTER_S = 0.2  # of the batch before: asking about 32 requests then takes 1 to 3 % of its time
IDLE_S = 0.02  # between two batches: longer, and the queue was empty


class GivenUpError(RetryError):
    """The client does not wait for the answer any more."""


class Patience:
    """Whether the requests of a batch have waited so long that some clients may have given up."""

    def __init__(self) -> None:
        self._began = self._ended = 0.0
        self._asks = False

    def begin(self) -> None:
        """A batch begins."""
        now = time.monotonic()
        self._asks = self._ended - self._began >= ASK_AFTER_S and now - self._ended < IDLE_S
        self._began = now

    def end(self) -> None:
        """It has been answered."""
        self._ended = time.monotonic()

    def check(self, request: Any) -> None:
        """Raise `GivenUpError` if the request's batch has waited and its client does not any more."""
        if self._asks and request.is_cancelled():
            raise GivenUpError("the request was cancelled, or its deadline passed, before it was computed")
