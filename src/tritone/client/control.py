"""Models of a running server: which there are, loading, swapping and unloading them, what they have counted.

with Client(url, key=key) as client:
    client.control.load("asr")      # as its files are now; the old version serves until the new one is ready
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tritone.client.endpoint import Endpoint
from tritone.client.transport import Transport
from tritone.errors import InputError, OperatorError
from tritone.preparing import states_at

LOAD_TIMEOUT_S = 300.0
LOCKED = "TRITONE_KEY"  # part of the message about a key that is needed
FRAMES = re.compile(r"(\\n|\n)+At:.*", re.DOTALL)  # of a Python model's traceback


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """A version of a model as a server lists it; `version` and `state` are "" for one that was never loaded."""

    name: str
    version: str = ""
    state: str = ""  # READY, LOADING, UNLOADING, UNAVAILABLE
    reason: str = ""  # why it is not ready
    preparing: str = ""  # what it still prepares beside requests, as `Preparing.text`; of servers elsewhere unknown


class ModelControl:
    """Asks a server about its models, and to load and unload them; for most of that it needs its key."""

    def __init__(self, transport: Transport, endpoint: Endpoint, timeout_s: float) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    def states(self, model: str | None = None) -> list[ModelState]:
        """The models of the server's repository with their versions, by name; or those of one.

        Raises:
            InputError: the server's key is needed, or there is no such model.
            RetryError: the server cannot be reached or does not answer in time.
        """
        index = self._transport.model_index(self._timeout_s)
        names = ("name", "version", "state", "reason")
        own = states_at(self._endpoint.port) if self._endpoint.is_loopback else {}
        found = []
        for each in index:
            fields = {name: str(each.get(name, "")) for name in names}
            found.append(ModelState(**fields, preparing=own.get((fields["name"], fields["version"]), "")))
        if model is not None:
            have = ", ".join(sorted({each.name for each in found})) or "none"
            found = [each for each in found if each.name == model]
            if not found:
                raise InputError(f"{self._endpoint}: there is no model '{model}'; the repository has {have}")
        return sorted(found, key=lambda each: (each.name, int(each.version or 0)))

    def load(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> list[ModelState]:
        """Load a model as its files are now; versions that were served go on until the new ones are ready.

        Returns:
            Its versions afterwards.

        Raises:
            OperatorError: it does not load; says why, and what serves instead.
            InputError, RetryError: as `states`.
        """
        try:
            self._transport.load(model, timeout_s)
        except (InputError, OperatorError) as error:
            if LOCKED in str(error):
                raise
            ready = [each.version for each in self.states(model) if each.state == "READY"]
            still = f"version {', '.join(ready)} goes on serving" if ready else "no version of it is served"
            reason = FRAMES.sub("", str(error)).strip().rstrip(";")
            raise OperatorError(f"{self._endpoint}: model '{model}' did not load, {still}: {reason}") from error
        return self.states(model)

    def unload(self, model: str, *, stages: bool = False) -> None:
        """Take a model out of service; requests in flight are answered. Does not wait for that.

        Args:
            stages: also the models that an ensemble is made of.

        Raises:
            InputError, RetryError: as `states`.
        """
        self.states(model)  # Triton has no complaint about names that it does not know
        self._transport.unload(model, stages, self._timeout_s)

    def config(self, model: str) -> dict[str, Any]:
        """The configuration that a model runs with, in the JSON form of Triton's `ModelConfig`; needs no key.

        Raises:
            InputError: no such model is ready.
            RetryError: the server cannot be reached or does not answer in time.
        """
        return self._transport.model_config(model, self._timeout_s)

    def counts(self, model: str = "") -> list["ModelCounts"]:
        """What ready models have counted since they were loaded, by name and version; needs no key. "": of all."""
        found = [ModelCounts.of(each) for each in self._transport.statistics(model, self._timeout_s)]
        return sorted(found, key=lambda each: (each.name, int(each.version)))


@dataclass(frozen=True, kw_only=True)
class ModelCounts:
    """What a version of a model has done since it was loaded. Times are means of a request, in ms."""

    name: str
    version: str
    requests: int  # that were answered
    failures: int
    batches: int
    rows: int  # of all requests
    latency_ms: float  # queue and computation
    queue_ms: float
    compute_ms: float

    @property
    def rows_per_batch(self) -> float:
        """How full batches were; 0 without any."""
        return self.rows / self.batches if self.batches else 0.0

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "ModelCounts":
        """Read an entry of Triton's `model_stats`, in which numbers may be text."""
        counts = entry.get("inference_stats", {})

        def mean_ms(names: Iterable[str]) -> float:
            parts = [counts.get(name, {}) for name in names]
            count = max((int(part.get("count", 0)) for part in parts), default=0)
            return sum(int(part.get("ns", 0)) for part in parts) / count / 1e6 if count else 0.0

        return cls(
            name=str(entry["name"]),
            version=str(entry.get("version", "0")),
            requests=int(counts.get("success", {}).get("count", 0)),
            failures=int(counts.get("fail", {}).get("count", 0)),
            batches=int(entry.get("execution_count", 0)),
            rows=int(entry.get("inference_count", 0)),
            latency_ms=mean_ms(["success"]),
            queue_ms=mean_ms(["queue"]),
            compute_ms=mean_ms(["compute_input", "compute_infer", "compute_output"]),
        )
