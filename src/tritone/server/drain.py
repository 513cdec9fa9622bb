"""Draining a server that runs elsewhere: its metrics port, asked until the last stream has ended.

Drain("127.0.0.1:8002", key).wait(settle_s=5, limit_s=600)  ->  DrainState, what is still open

A server without open streams and requests can be ended without a loss. One that waits in vain learns that from
the limit, since an operator, or Kubernetes, has to go on some day.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tritone.errors import InputError, OperatorError, ServerUnreachableError
from tritone.keys import HTTP_HEADER, VARIABLE
from tritone.net.fetch import fetch

LOOK_S = 0.25
REPORT_S = 30.0
TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class DrainState:
    """A server's state (serving, leaving or draining; see `tritone.proxy`), requests in flight and open streams."""

    state: str
    requests: int
    streams: int

    @property
    def idle(self) -> bool:
        """Whether nothing is open."""
        return not self.requests and not self.streams

    def __str__(self) -> str:
        return f"{self.state}: {self.streams} streams open, {self.requests} requests in flight"


class Drain:
    """The drain of one server.

    Args:
        address: host:port of its metrics.
        key: the server's key; None can look and change nothing.
    """

    def __init__(self, address: str, key: str | None) -> None:
        self._address = address
        self._key = key

    def look(self) -> DrainState:
        """What is open now.

        Raises:
            ServerUnreachableError: nobody answers.
            OperatorError: it is no `tritone serve` with a proxy.
        """
        return self._ask("GET")

    def change(self, state: str) -> DrainState:
        """Have the server be serving, leaving (not ready) or draining (not ready, nothing new is taken).

        Raises:
            InputError: it wants its key.
            ServerUnreachableError, OperatorError: as `look`.
        """
        return self._ask("POST", json.dumps({"state": state}))

    def wait(
        self, *, settle_s: float, limit_s: float, report: Callable[[DrainState], None] = lambda state: None
    ) -> DrainState:
        """Have the server leave, then refuse what is new, and return when nothing is open or `limit_s` is over.

        Args:
            settle_s: how long new requests and streams are still taken, until balancers know that it is not ready.
            limit_s: the longest time from the start, `settle_s` included.
            report: called after every change of the state, and from time to time.

        Returns:
            What is open at the end.

        Raises:
            InputError, ServerUnreachableError, OperatorError: as `change`.
        """
        started = time.monotonic()
        report(self.change("leaving"))
        time.sleep(min(settle_s, limit_s))
        found = self.change("draining")
        report(found)
        answered = time.monotonic()
        while not found.idle and time.monotonic() - started < limit_s:
            time.sleep(LOOK_S)
            found = self.look()
            if time.monotonic() - answered > REPORT_S:
                report(found)
                answered = time.monotonic()
        return found

    def is_ready(self) -> bool:
        """Whether the server takes requests; not before its models are loaded and warm."""
        return self._send("GET", "/v2/health/ready", "")[0] == 200

    def _ask(self, method: str, body: str = "") -> DrainState:
        status, answer = self._send(method, "/drain", body)
        if status == 403:
            raise InputError(
                f"{self._address} wants the server's key: run this on its machine as the user who started it, or set "
                f"{VARIABLE}"
            )
        try:
            answered: Any = json.loads(answer) if status == 200 else None
            return DrainState(
                state=str(answered["state"]), requests=int(answered["requests"]), streams=int(answered["streams"])
            )
        except (ValueError, TypeError, KeyError):
            raise OperatorError(
                f"{self._address} cannot be drained: it answers {status} {answer[:100]!r}. Name the metrics port of a "
                "`tritone serve` with its proxy (--host of a network, or --proxy); without one, send it SIGTERM."
            ) from None

    def _send(self, method: str, path: str, body: str) -> tuple[int, str]:
        headers = {HTTP_HEADER: self._key} if self._key else {}
        try:
            answer = fetch(
                f"http://{self._address}{path}", method=method, body=body.encode(), headers=headers, timeout_s=TIMEOUT_S
            )
        except ValueError as error:
            raise ValueError(f"{self._address!r} is no host:port ({error})") from error
        except OSError as error:
            raise ServerUnreachableError(
                f"{self._address} does not answer ({error}). Is it the metrics port, and does the server run?"
            ) from error
        return answer.status, answer.body.decode(errors="replace")
