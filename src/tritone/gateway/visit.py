"""One request or connection as the log and the metrics see it; known to whatever runs for it, and to nobody else."""

import re
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritone.client.transport import REQUEST_ID

if TYPE_CHECKING:
    from starlette.responses import Response

    from tritone.gateway.refusal import ErrorAnswer


PRINTABLE = re.compile(r"[!-~]{1,128}")


def id_of(headers: Mapping[str, str]) -> str:
    """The id that a client sent in its headers (names in lower case), or, if that may not be used, one of its own."""
    found = headers.get(REQUEST_ID, "")
    return found if PRINTABLE.fullmatch(found) else uuid.uuid4().hex


@dataclass(kw_only=True)
class Visit:
    """What is known of it by now.

    `id`: the client's own (`x-request-id`), or one that nothing else has; the log, the answer, and the traces of Triton
    have it. `protocol` and `name`, of the caller, are known when it is admitted; `model` and `audio_s` when audio
    comes. `code` is of the last error that the client got, `refused` whether the gateway itself refused. `wording`: how
    its protocol words errors of HTTP; None is as the gateway's own protocols do.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    protocol: str = ""
    name: str = ""
    model: str = ""
    audio_s: float = 0.0
    status: int = 0
    code: str = ""
    refused: bool = False
    wording: "Callable[[Exception, ErrorAnswer], Response] | None" = None


VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)


def visit_id() -> str:
    """The id of the request or connection at hand."""
    visit = VISIT.get()
    return Visit().id if visit is None else visit.id
