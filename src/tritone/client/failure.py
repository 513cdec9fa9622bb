"""What went wrong on the way to a server and back  ->  an error of `tritone.errors`, told by what the caller can do."""

import asyncio
import re

from tritonclient.utils import InferenceServerException

from tritone.client.endpoint import SCHEMES, Endpoint
from tritone.errors import (
    InputError,
    OperatorError,
    RetryError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    TritoneError,
)

HTTP_STATUS = {  # Triton's HTTP codes as the gRPC codes it uses for the same errors
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "408": "DEADLINE_EXCEEDED",
    "429": "RESOURCE_EXHAUSTED",
    "499": "CANCELLED",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "DEADLINE_EXCEEDED",
}

BROKEN_CONNECTION = re.compile(
    r"connect|socket closed|stream removed|broken pipe|goaway|transport|name resolution|dns|resolving|recvmsg|sendmsg|"
    r"endpoint",
    re.IGNORECASE,
)
"""Words of gRPC's own about a connection; Triton's refusals speak of queues, timeouts and models."""

REQUEST_ID = re.compile(r"^\[request id: <id_unknown>\] ")


def explain(error: BaseException, endpoint: Endpoint, task: str, timeout_s: float) -> TritoneError:
    """Translate what tritonclient, gRPC or aiohttp raised.

    Args:
        error: what was raised.
        endpoint: whom we talked to.
        task: what we wanted, as a phrase that fits behind a colon ("transcribe with model 'demo'").
        timeout_s: the limit the request ran under, in seconds.

    Returns:
        The error to raise from `error`.
    """
    if isinstance(error, TritoneError):
        return error
    if isinstance(error, InferenceServerException):
        return _explain_reply(error, endpoint, task, timeout_s)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return _timeout(endpoint, task, timeout_s)
    if isinstance(error, asyncio.CancelledError):
        return RetryError(f"{endpoint}: {task}: cancelled before the answer came")
    return _unreachable(endpoint, task, getattr(error, "message", "") or str(error) or type(error).__name__)


def _explain_reply(error: InferenceServerException, endpoint: Endpoint, task: str, timeout_s: float) -> TritoneError:
    status = (error.status() or "").removeprefix("StatusCode.")
    status = HTTP_STATUS.get(status, status)
    message = REQUEST_ID.sub("", (error.message() or "no message").strip())
    if status == "DEADLINE_EXCEEDED":
        return _timeout(endpoint, task, timeout_s)
    if status == "UNAVAILABLE":
        # gRPC has one code for "could not connect" and for a server's own refusal, and only words tell them apart.
        if endpoint.protocol == "grpc" and BROKEN_CONNECTION.search(message):
            return _unreachable(endpoint, task, message)
        return ServerBusyError(f"{endpoint}: {task}: the server could not take the request now: {message}")
    if status == "RESOURCE_EXHAUSTED" and "larger than max" not in message:
        return ServerBusyError(f"{endpoint}: {task}: {message}")
    if status in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "FAILED_PRECONDITION"):
        return InputError(message)
    if status == "CANCELLED":
        return RetryError(f"{endpoint}: {task}: cancelled before the answer came")
    code = status or "no status"
    return OperatorError(f"{endpoint}: {task}: the server failed ({code}): {message}. Its log says more.")


def _timeout(endpoint: Endpoint, task: str, timeout_s: float) -> ServerTimeoutError:
    advice = "The server may be overloaded; allow more time or send less at once."
    return ServerTimeoutError(f"{endpoint}: {task}: no answer within {timeout_s:g} s. {advice}")


def _unreachable(endpoint: Endpoint, task: str, message: str) -> ServerUnreachableError:
    port = SCHEMES[endpoint.protocol][2]
    message = message.splitlines()[0].strip().rstrip(".:")  # aiohttp goes on with the bytes it could not read
    hint = f"Is a server running there? `tritone serve` starts one; {endpoint.protocol} is on port {port} by default."
    if endpoint.protocol == "grpc" and ("http1" in message.lower() or "http/1" in message.lower()):
        hint = f"That port speaks HTTP; use http://{endpoint.address}, or the gRPC port (8001 by default)."
    elif endpoint.protocol == "grpc" and "Socket closed" in message:
        hint += f" If that is the HTTP port, use http://{endpoint.address}."
    elif endpoint.protocol == "http" and ("HTTP/" in message or "Bad status line" in message):
        hint = f"That port does not speak HTTP/1; if it is the gRPC port, use grpc://{endpoint.address}."
    return ServerUnreachableError(f"{endpoint}: {task}: no connection, or it broke: {message}. {hint}")
