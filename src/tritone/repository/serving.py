"""How a generic model is served: what its export fixed, and what a build changes.

Serving of a manifest, ServingOptions, ModelOptions  ->  Serving, complete
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tritone.kinds.generic.part import RateLimit, ServingPart
from tritone.options.fields import option
from tritone.repository.instances import Instances

if TYPE_CHECKING:
    from tritone.repository.config import ModelOptions

MAX_IDLE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How a generic model is served; None leaves it as it is. Of `build` and of exports."""

    version: int | None = option(
        None, "Generic: version folder to write; others of the model stay. Default: 1.", flags=("--model-version",)
    )
    version_policy: str | None = option(None, "Generic: versions to serve: latest:N, all, or specific:1,3.")
    timeout_action: str | None = option(
        None, "Generic: what happens to a request that waited too long: reject or delay."
    )
    timeout_override: bool | None = option(None, "Generic: requests may bring a shorter timeout of their own.")
    priorities: int | None = option(None, "Generic: priority levels of requests, 1 is the highest.")
    default_priority: int | None = option(None, "Generic: of requests that name none; the lowest if not given.")
    priority_timeouts_ms: str | None = option(
        None, "Generic: longest wait of each priority, the highest first, like 50,200,0; 0 is no limit."
    )
    preserve_order: bool | None = option(None, "Generic: answer requests in the order in which they came.")
    response_cache: bool | None = option(None, "Generic: answer equal requests from Triton's cache.")
    resources: str | None = option(
        None,
        "Generic: resources that an instance takes while it runs, for Triton's rate limiter: NAME=COUNT, several with "
        "commas; NAME=COUNT@server counts for all devices together.",
    )
    resource_priority: int | None = option(None, "Generic: weight among instances that wait for resources.")
    strategy: str | None = option(None, "Generic: how sequences share batches: oldest or direct.")
    warmup: bool | None = option(None, "Generic: run the model on zeros when it is loaded. Default: if its export did.")

    def given(self) -> dict[str, Any]:
        """What was given, as the manifest has it; raises `ValueError` if text cannot be read."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}
        if (text := given.get("resources")) is not None:
            given["resources"] = tuple(_resource(part) for part in text.split(",") if part.strip())
        if (text := given.get("priority_timeouts_ms")) is not None:
            given["priority_timeouts_ms"] = numbers(text, "--priority-timeouts-ms")
        return given


@dataclass(frozen=True, kw_only=True)
class ExportServing(ServingOptions):
    """The same for exports, with what `build` has among its options for all models."""

    instances: str | None = option(
        None, "Processes, and where: COUNT, COUNT@cpu, COUNT@gpu, COUNT@0,1 or several: 1@0,2@1,2."
    )
    queue_delay_ms: float | None = option(None, "Longest wait for a batch to fill.")
    preferred_batch_sizes: str | None = option(None, "Batch sizes worth waiting for, like 8,16.")
    queue_limit: int | None = option(None, "Requests that may wait; further ones are refused.")
    timeout_ms: float | None = option(None, "Longest wait of a request; see --timeout-action.")
    max_idle_s: float | None = option(None, "Close a sequence that had no request for so long, in seconds.")

    def given(self) -> dict[str, Any]:
        given = super().given()
        if (text := given.get("preferred_batch_sizes")) is not None:
            given["preferred_batch_sizes"] = tuple(int(size) for size in numbers(text, "--preferred-batch-sizes"))
        return given


def checked(given: dict[str, Any], before: ServingPart | None = None) -> ServingPart:
    """Settings of serving: `given` over what was there before; raises `ValueError` if they do not fit together."""
    try:
        serving = ServingPart.model_validate((before or ServingPart()).model_dump() | given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "serving"
        if name == "version_policy":
            raise ValueError(f"--version-policy is latest:N, all or specific:1,3; got {first['input']!r}") from error
        raise ValueError(f"--{name.replace('_', '-')}: {first['msg']}, got {str(first['input'])[:80]!r}") from error
    levels = serving.priorities or 0
    if serving.default_priority is not None and not 0 < serving.default_priority <= levels:
        raise ValueError(f"--default-priority must be 1 to --priorities ({levels}), got {serving.default_priority}")
    if serving.priority_timeouts_ms and len(serving.priority_timeouts_ms) != levels:
        raise ValueError(
            f"--priority-timeouts-ms must have one for each of --priorities ({levels}), got "
            f"{len(serving.priority_timeouts_ms)}"
        )
    if serving.instances is not None:
        Instances.parse(serving.instances, Instances())
    if serving.version_policy and serving.version_policy.startswith("specific:"):
        versions = [int(each) for each in serving.version_policy.partition(":")[2].split(",")]
        if 0 in versions:
            raise ValueError(f"--version-policy: versions count from 1, got {serving.version_policy}")
    return serving


def merged(before: ServingPart | None, serving: ServingOptions, options: "ModelOptions") -> ServingPart:
    """How a bundle's model is served: what a build asks for, over what its export fixed, over what is usual."""
    given = serving.given()
    open_options = options.left_open
    if "instances" not in open_options:
        given["instances"] = str(options.usual_instances)
    if "queue_delay_ms" not in open_options:
        given["queue_delay_ms"] = options.queue_delay_ms
    if options.preferred_batch_sizes:
        given["preferred_batch_sizes"] = options.preferred_batch_sizes
    if options.queue_limit:
        given["queue_limit"] = options.queue_limit
    if options.queue_timeout_ms:
        given["timeout_ms"] = options.queue_timeout_ms
    if options.stream_idle_timeout_s != type(options).stream_idle_timeout_s:
        given["max_idle_s"] = options.stream_idle_timeout_s
    return checked(given, before)


def numbers(text: str, flag: str) -> tuple[float, ...]:
    """Numbers with commas between them; raises `ValueError` that names the option."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{flag} takes numbers separated by commas, got {text!r}") from None


def _resource(text: str) -> RateLimit:
    name, sign, rest = text.strip().partition("=")
    number, _, where = rest.partition("@")
    if not sign or not number.isdigit() or int(number) < 1 or where not in ("", "server"):
        raise ValueError(f"--resources: {text.strip()!r} is not NAME=COUNT or NAME=COUNT@server, such as memory=2")
    return RateLimit(name=name, count=int(number), everywhere=where == "server")
