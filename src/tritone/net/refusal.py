"""A refusal: why a request does not reach Triton, in the terms of both protocols.

raise RefusedError(TOO_LARGE, "...")  ->  HTTP 413 {"error": "..."}  or  gRPC RESOURCE_EXHAUSTED
"""

import math
from dataclasses import dataclass

import grpc


@dataclass(frozen=True)
class Reason:
    """What a client gets by status. `name`: in the metrics."""

    name: str
    http: int
    grpc: grpc.StatusCode


BAD_REQUEST = Reason("bad_request", 400, grpc.StatusCode.INVALID_ARGUMENT)
LOCKED = Reason("locked", 403, grpc.StatusCode.PERMISSION_DENIED)
UNKNOWN = Reason("unknown", 404, grpc.StatusCode.NOT_FOUND)
NOT_PASSED = Reason("not_passed", 404, grpc.StatusCode.UNIMPLEMENTED)
TOO_SLOW = Reason("too_slow", 408, grpc.StatusCode.DEADLINE_EXCEEDED)
# Of a stream that another server may have: balancers try the next one after a 404, and do not count it as a failure.
ELSEWHERE = Reason("elsewhere", 404, grpc.StatusCode.UNAVAILABLE)
CONFLICT = Reason("conflict", 409, grpc.StatusCode.ALREADY_EXISTS)
TOO_LARGE = Reason("too_large", 413, grpc.StatusCode.RESOURCE_EXHAUSTED)
# What is worth sending again: busy, draining, a passed deadline, a server that restarts.
BUSY = Reason("busy", 503, grpc.StatusCode.UNAVAILABLE)
DRAINING = Reason("draining", 503, grpc.StatusCode.UNAVAILABLE)
DEADLINE = Reason("deadline", 503, grpc.StatusCode.UNAVAILABLE)
DOWN = Reason("down", 503, grpc.StatusCode.UNAVAILABLE)
UNREADY = Reason("unready", 503, grpc.StatusCode.UNAVAILABLE)

AGAIN_S = 1.0  # when to try again where nothing better is known
LONGEST_HINT_S = 3600.0  # of what others say


def retry_hints(retry_after_s: float | None) -> dict[str, str]:
    """Headers of HTTP, or trailing metadata of gRPC, that say when to try again; none for None."""
    if retry_after_s is None:
        return {}
    retry_after_s = bounded_s(retry_after_s)
    return {
        "retry-after": str(max(1, math.ceil(retry_after_s))),  # HTTP knows whole seconds only
        "retry-after-ms": str(max(1, round(1000 * retry_after_s))),
    }


def bounded_s(retry_after_s: float) -> float:
    """When to try again as a client may be advised it, whoever said so."""
    return min(max(retry_after_s, 0.001), LONGEST_HINT_S)


class RefusedError(Exception):
    """A request that is answered without asking Triton. `retry_after_s`: when to try again; None: not unchanged."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def hints(self) -> dict[str, str]:
        """Those of its answer."""
        return retry_hints(self.retry_after_s)
