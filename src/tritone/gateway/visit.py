"""One request or connection as the log and the metrics see it; known to whatever runs for it, and to nobody else."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(kw_only=True)
class Visit:
    """What is known of it by now.

    `door` and `name`, of the caller, are known when it is admitted; `code` is of the last error that was told to the
    client, `refused` whether the gateway itself refused.
    """

    door: str = ""
    name: str = ""
    status: int = 0
    code: str = ""
    refused: bool = False


VISIT: ContextVar[Visit | None] = ContextVar("visit", default=None)
