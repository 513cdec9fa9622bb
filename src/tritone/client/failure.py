"""What went wrong on the way to a server and back  ->  an error of `tritone.errors`, by what the caller can do."""

import asyncio
import math
import re
from dataclasses import dataclass

from tritone.client.endpoint import KEY_HEADERS, SCHEMES, Endpoint
from tritone.errors import (
    InputError,
    OperatorError,
    RegionLostError,
    RetryError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    TritoneError,
    hinted_s,
)
from tritone.net.unready import LATER, LOST, NOT_READY

HTTP_STATUS = {  # Triton's HTTP codes as the gRPC codes it uses for the same errors
    "400": "INVALID_ARGUMENT",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "NOT_FOUND",
    "408": "DEADLINE_EXCEEDED",
    "413": "INVALID_ARGUMENT",
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

# What gRPC and Python say where no TLS comes back: an answer in plain text, or the end of the connection.
NO_TLS = ("WRONG_VERSION_NUMBER", "Handshake read failed")
REQUEST_ID = re.compile(r"^\[request id: <id_unknown>\] ")
LOST_REGION = re.compile(r"unable to find shared memory region", re.IGNORECASE)
DECOUPLED = "decoupled transaction policy"  # of a model that answers as often as it likes, asked for one answer
RESTRICTED = re.compile(r"(protocol|API) is restricted, expecting header", re.IGNORECASE)


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818  # an answer, which `explain` makes an error of
    """What a server answered in place of a result: gRPC's name of the status or HTTP's number, message, hint."""

    status: str
    message: str
    retry_after_s: float | None = None  # when the server expects to have room


def unstated(message: str) -> Refusal:
    """The refusal of one of many answers, which has a text and no status. Models of ours name the log."""
    if "the server's log" in message:
        return Refusal("INTERNAL", message)
    return Refusal("UNAVAILABLE" if LATER.search(message) else "INVALID_ARGUMENT", message)


def seconds_of(text: str | bytes | None, unit_s: float = 1.0) -> float | None:
    """The number of a hint in seconds; None for anything else, such as a date."""
    try:
        value = float(text or "nan") * unit_s
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def explain(error: BaseException, endpoint: Endpoint, task: str, timeout_s: float) -> TritoneError:
    """Translate what gRPC or HTTP raised, or what the server refused.

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
    if isinstance(error, Refusal):
        return _explain_refusal(error, endpoint, task, timeout_s)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return _timeout(endpoint, task, timeout_s)
    if isinstance(error, asyncio.CancelledError):
        return RetryError(f"{endpoint}: {task}: cancelled before the answer came")
    return _unreachable(endpoint, task, getattr(error, "message", "") or str(error) or type(error).__name__)


def _explain_refusal(refusal: Refusal, endpoint: Endpoint, task: str, timeout_s: float) -> TritoneError:
    status = HTTP_STATUS.get(refusal.status, refusal.status)
    message = REQUEST_ID.sub("", refusal.message.strip() or "no message")
    if status == "DEADLINE_EXCEEDED":
        return _timeout(endpoint, task, timeout_s)
    if RESTRICTED.search(message) or status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return _locked(endpoint, task, message)
    if DECOUPLED in message:
        return InputError(f"{endpoint}: {task}: it answers many times to one request; ask it with Client.infer_stream")
    busy: ServerBusyError | None = None
    if LOST.search(message):
        busy = ServerBusyError(
            f"{endpoint}: {task}: its process on the server ended, and with it what it was computing. `tritone serve` "
            f"starts it again; try again soon ({message.rstrip('.')})"
        )
    elif NOT_READY.search(message):
        busy = ServerBusyError(
            f"{endpoint}: {task}: it is not ready: it is being loaded, or the server is stopping. Try "
            f"again soon ({message.rstrip('.')})"
        )
    elif status == "UNAVAILABLE":
        # gRPC has one code for "could not connect" and for a server's own refusal, and only words tell them apart.
        if endpoint.protocol == "grpc" and BROKEN_CONNECTION.search(message):
            return _unreachable(endpoint, task, message)
        busy = ServerBusyError(f"{endpoint}: {task}: the server could not take the request now: {message}")
    elif status == "RESOURCE_EXHAUSTED" and "larger than max" not in message:
        busy = ServerBusyError(f"{endpoint}: {task}: {message}")
    if busy is not None:
        busy.retry_after_s = hinted_s(message) if refusal.retry_after_s is None else refusal.retry_after_s
        return busy
    if LOST_REGION.search(message):
        return RegionLostError(
            f"{endpoint}: {task}: the server was started again and does not know this client's shared memory any more; "
            "send it again"
        )
    if status in ("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "FAILED_PRECONDITION"):
        return InputError(message)
    if status == "CANCELLED":
        return RetryError(f"{endpoint}: {task}: cancelled before the answer came")
    if status.startswith("3"):
        return InputError(f"{endpoint}: {task}: the server is elsewhere, at {message}; use that address")
    code = status or "no status"
    return OperatorError(f"{endpoint}: {task}: the server failed ({code}): {message}. Its log says more.")


def _locked(endpoint: Endpoint, task: str, message: str) -> InputError:
    need = f"the server's key in {KEY_HEADERS[endpoint.protocol]}"
    seen = f"the key that was sent does not fit; {need} is" if endpoint.key is not None else f"{need} is"
    return InputError(
        f"{endpoint}: {task}: {seen} needed ({message}). `tritone serve` names the file that has it; give it as "
        "TRITONE_KEY, or Client(key=...)"
    )


def _timeout(endpoint: Endpoint, task: str, timeout_s: float) -> ServerTimeoutError:
    advice = "The server may be overloaded; allow more time or send less at once."
    return ServerTimeoutError(f"{endpoint}: {task}: no answer within {timeout_s:g} s. {advice}")


def _unreachable(endpoint: Endpoint, task: str, message: str) -> TritoneError:
    port = SCHEMES[endpoint.protocol][2]
    message = message.splitlines()[0].strip().rstrip(".:")
    if (untrusted := _untrusted(endpoint, message)) is not None:
        return OperatorError(f"{endpoint}: {task}: {untrusted} ({message})")
    scheme = endpoint.protocol
    closed = any(words in message for words in ("Socket closed", "Server disconnected", "reset by peer", "ALERT"))
    hint = f"Is a server running there? `tritone serve` starts one; {scheme} is on port {port} by default."
    if endpoint.tls and any(words in message for words in NO_TLS):
        hint = f"That port does not use TLS, it seems: use {scheme}://{endpoint.address}, or the port that does."
    elif endpoint.tls and closed:
        own = (
            "the client certificate may not be one that the server trusts"
            if endpoint.files.certificate
            else "the server may want one of yours: give certificate and private_key (--certificate, --private-key)"
        )
        hint = f"It closed the connection after the TLS handshake: {own}."
    elif scheme == "grpc" and ("http1" in message.lower() or "http/1" in message.lower()):
        hint = f"That port speaks HTTP; use http://{endpoint.address}, or the gRPC port (8001 by default)."
    elif scheme == "grpc" and closed:
        hint += f" If that is the HTTP port, use http://{endpoint.address}; if it uses TLS, grpcs://{endpoint.address}."
    elif scheme == "http" and ("HTTP/" in message or "Bad status line" in message):
        hint = f"That port does not speak HTTP/1; if it is the gRPC port, use grpc://{endpoint.address}."
    elif scheme == "http" and closed:
        hint += f" If it uses TLS, use https://{endpoint.address}."
    return ServerUnreachableError(f"{endpoint}: {task}: no connection, or it broke: {message}. {hint}")


def _untrusted(endpoint: Endpoint, message: str) -> str | None:
    """What is wrong with the server's certificate, if anything is."""
    if "Hostname" in message or "IP address mismatch" in message:
        return f"the server's certificate is for another name than '{endpoint.host}'; use a name that it has"
    if "CERTIFICATE_VERIFY_FAILED" not in message:
        return None
    if "expired" in message or "not yet valid" in message:
        when = "has expired" if "expired" in message else "is not yet valid"
        return f"the server's certificate {when}; it needs another, or a clock is wrong"
    trusted = f"an authority of {endpoint.files.ca}" if endpoint.files.ca else "an authority that this system trusts"
    return f"the server's certificate is not signed by {trusted}; give its authority's certificate as ca (--ca FILE)"
