"""What clients get when something fails: one mapping from errors to a status, a code word and a sentence.

    answer = answer_to(error)   ->  ErrorAnswer(status=429, code="rate_limited", message=..., retry_after_s=2.5)

Every protocol words an error in its own way, and takes these four values for it. A client's own mistakes are shown as
they are, without paths of this server; about Triton and its operator's mistakes it learns no more than what it can do,
and the log has the rest.
"""

import errno
import logging
import re
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tritone.errors import (
    AudioError,
    AudioFormatError,
    InputError,
    MissingDependencyError,
    RetryError,
    ServerAnswerError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    StreamError,
    StreamLostError,
    TritoneError,
)
from tritone.gateway.visit import VISIT
from tritone.net.refusal import AGAIN_S, RefusedError, bounded_s, retry_hints
from tritone.paths import without_paths

if TYPE_CHECKING:
    from tritone.client.async_client import AsyncClient

LOG = logging.getLogger("tritone.gateway")
READY_S = 5.0  # Triton's time to say that it is ready
ADDRESS = re.compile(r"^(?:grpc|http)s?://\S+: ")  # that clients' messages begin with


class GatewayRefusal(TritoneError):  # noqa: N818  # an answer that the gateway gives without asking Triton
    """A request that the gateway itself refuses. `status`: of HTTP; `code`: one word for programs."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None, *, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status, "refused")
        self.retry_after_s = retry_after_s


class FieldError(InputError):
    """A field of a request or event that cannot be used. `param`: its path, such as `session.audio.input.format`."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "unsupported_format",
    429: "rate_limited",
    500: "internal_error",
    503: "overloaded",
    507: "disk_full",
}
FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_AGAIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """What a client gets.

    `retry_after_s`: when to try again; None: not unchanged, or nobody knows when. `param`: the field that is wrong.
    """

    status: int
    code: str
    message: str
    retry_after_s: float | None = None
    param: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Those of HTTP that say when to try again."""
        return retry_hints(self.retry_after_s)

    @property
    def kind(self) -> str:
        """OpenAI's `type` of errors with this status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON of every error by HTTP: the fields of OpenAI, which the gateway's own protocols have, too."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


async def absent(client: "AsyncClient", error: InputError, *, named: bool = True) -> TritoneError:
    """The error where no ready model is the one that is wanted: 404, or 503 where that may change.

    Args:
        error: says what is missing.
        named: whether the model was named; a client knows of one that is named whether it exists.
    """
    if not named and not await client.is_ready(READY_S):
        return ServerBusyError(f"{error} The server is not ready: a model is being loaded there.")
    return GatewayRefusal(404, ADDRESS.sub("", str(error)), code="model_not_found")


def answer_to(error: BaseException) -> ErrorAnswer:
    """The answer about an error, which the log and the metrics of the request at hand have, too.

    Errors that are no mistake of the client are written to the log with what the client does not get.
    """
    answer = _answer(error)
    if (message := without_paths(answer.message)) != answer.message:
        LOG.info("%s", error)  # whose client gets names of files alone
        answer = replace(answer, message=message)
    if answer.status == 503 or answer.retry_after_s is not None:  # whoever may come again is told when
        again_s = AGAIN_S if answer.retry_after_s is None else answer.retry_after_s
        answer = replace(answer, retry_after_s=bounded_s(again_s))
    if (visit := VISIT.get()) is not None:
        visit.code, visit.refused = answer.code, isinstance(error, GatewayRefusal | RefusedError)
    return answer


def _answer(error: BaseException) -> ErrorAnswer:
    if isinstance(error, GatewayRefusal):
        return ErrorAnswer(status=error.status, code=error.code, message=str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, RefusedError):
        reason = error.reason
        return ErrorAnswer(status=reason.http, code=reason.name, message=str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, AudioFormatError):
        return ErrorAnswer(status=415, code=CODES[415], message=str(error))
    if isinstance(error, InputError):
        code = "invalid_audio" if isinstance(error, AudioError) else "invalid_request"
        code = "invalid_stream" if isinstance(error, StreamError) else code
        param = getattr(error, "param", None)
        return ErrorAnswer(status=400, code=code, message=ADDRESS.sub("", str(error)), param=param)
    if isinstance(error, OSError) and error.errno in FULL:
        LOG.error(
            "%s: recordings are kept in %s while they are recognised; free some space there, or have TMPDIR name "
            "another folder",
            error,
            tempfile.gettempdir(),
        )
        message = "the gateway's disk has no room for this recording now; try again later, or send a shorter one"
        return ErrorAnswer(status=507, code=CODES[507], message=message, retry_after_s=FULL_AGAIN_S)
    level = logging.WARNING if isinstance(error, RetryError) else logging.ERROR
    LOG.log(level, "%s", error, exc_info=None if isinstance(error, TritoneError) else error)
    if isinstance(error, RetryError):
        status, code, message = _now(error)
        return ErrorAnswer(status=status, code=code, message=message, retry_after_s=error.retry_after_s)
    if isinstance(error, ServerAnswerError):
        message = "the server of this model answered what its protocol does not have; its operator's log says more"
        return ErrorAnswer(status=502, code="bad_answer", message=message)
    code = "unavailable" if isinstance(error, MissingDependencyError) else "internal_error"
    message = "the speech service is not set up for this; its operator's log says more"
    if not isinstance(error, TritoneError):
        message = "the gateway failed; its log says more"
    return ErrorAnswer(status=500, code=code, message=message)


def _now(error: RetryError) -> tuple[int, str, str]:
    """Status, code and message of what may work later."""
    if isinstance(error, StreamLostError):
        return 503, "stream_lost", "the speech server lost this stream; open a new one and send its audio again"
    if isinstance(error, ServerBusyError):
        return 503, "overloaded", "the speech server has no room now; try again later"
    if isinstance(error, ServerTimeoutError):
        return 504, "timeout", "the speech server took too long; try again later, or send less at once"
    if isinstance(error, ServerUnreachableError):
        return 503, "unreachable", "the speech server does not answer; try again later"
    return 503, "unavailable", "the speech service could not take this now; try again later"
