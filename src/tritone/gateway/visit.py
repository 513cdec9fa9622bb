"""One request or connection as the log and the metrics see it; known to whatever runs for it, and to nobody else."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import Response

    from tritone.gateway.refusal import ErrorAnswer


@dataclass(kw_only=True)
class Visit:
    """What is known of it by now.

    `protocol` and `name`, of the caller, are known when it is admitted; `code` is of the last error that the
    client got, `refused` whether the gateway itself refused. `wording`: how its protocol words errors of
    HTTP; None is as the gateway's own protocols do.
    """

    protocol: str = ""
    name: str = ""
    status: int = 0
    code: str = ""
    refused: bool = False
    wording: "Callable[[Exception, ErrorAnswer], Response] | None" = None


VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)
