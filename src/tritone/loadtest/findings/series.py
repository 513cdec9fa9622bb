"""Which settings the measurements of a report vary, and the series that they make.

measurements  ->  series: equal in all settings, differing in load alone  ->  the name that distinguishes them
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritone.loadtest.findings.result import FLOAT32, Measurement

LOOPS = {
    "closed": "closed loop",
    "constant": "constant rate",
    "poisson": "Poisson arrivals",
    "streaming": "streams in real time",
}
LOADS = {
    "closed": "requests in flight",
    "constant": "requests/s offered",
    "poisson": "requests/s offered",
    "streaming": "streams",
}
ONE = {"requests in flight": "request in flight", "streams": "stream"}
PROTOCOLS = {"grpc": "gRPC", "http": "HTTP"}
OPEN_LOOPS = ("constant", "poisson")
CLIENT_CPU_LIMIT = 0.9  # of a core per process; a generator busier than that measures itself


@dataclass(frozen=True)
class Series:
    """Measurements with the same settings, by growing load. `name` holds what other series have differently."""

    name: str
    settings: Mapping[str, str]
    measurements: Sequence[Measurement]

    @property
    def peak(self) -> float:
        """The highest throughput, in utterances per second."""
        return max(each.throughput for each in self.measurements)


def settings(measurement: Measurement) -> dict[str, str]:
    """All that was set but the load: name and value as text."""
    found = {
        "model": measurement.model,
        "protocol": PROTOCOLS.get(measurement.protocol, measurement.protocol),
        "loop": LOOPS.get(measurement.loop, measurement.loop),
        "audio" if measurement.has_audio else "input": measurement.seconds,
        "batch": str(measurement.batch_size),
    }
    if measurement.samples != FLOAT32:
        found["samples"] = measurement.samples
    labels = dict(measurement.labels)
    if labels.get("where") == "process" or ("where" in labels and labels.get("batching") == "static"):
        labels.pop("max batch", None)  # calls in process are full, and so are the requests beside them: it is the batch
    return found | {f"{name} (label)" if name in found else name: value for name, value in labels.items()}


def varying(measurements: Iterable[Measurement]) -> list[str]:
    """Names of the settings that differ among measurements; a label that some of them lack differs."""
    all_settings = [settings(each) for each in measurements]
    names = dict.fromkeys(name for each in all_settings for name in each)
    return [name for name in names if len({each.get(name) for each in all_settings}) > 1]


def series_of(measurements: Sequence[Measurement]) -> list[Series]:
    """Group measurements into series, in the order in which they first come.

    Batch sizes that were measured at one load or two each, as static batching is, make one series over the utterances
    in flight; those with more are series of their own.
    """
    merged = has_merged_batches(measurements)
    names = [
        name for name in varying(measurements) if name != "batch" or not (merged or is_batch_implied(measurements))
    ]
    groups: dict[tuple[tuple[str, str], ...], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault(_key(each, merged), []).append(each)
    found = []
    for held in groups.values():
        held_settings = settings(held[0])
        if len({each.batch_size for each in held}) > 1:
            held_settings.pop("batch")
        found.append(Series(describe(held_settings, names), held_settings, sorted(held, key=in_flight)))
    return found


def has_merged_batches(measurements: Iterable[Measurement]) -> bool:
    """Whether batch sizes vary without being series of their own."""
    loads: dict[object, set[float]] = {}
    batched = set()
    for each in measurements:
        loads.setdefault(_key(each), set()).add(each.load)
        batched.add((_key(each), each.batch_size))
    sizes = {size for _, size in batched}
    return len(sizes) > 1 and all(len(loads[key]) <= 2 for key, size in batched if size > 1)


def is_batch_implied(measurements: Iterable[Measurement]) -> bool:
    """Whether the other settings determine the batch size, as in a sweep of static and dynamic batching."""
    batches = {(_key(each, merged=True), each.batch_size) for each in measurements}
    return len(batches) == len({key for key, _ in batches}) > 1


def _key(measurement: Measurement, merged: bool = False) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(each for each in settings(measurement).items() if not (merged and each[0] == "batch")))


def describe(held: Mapping[str, str], names: Iterable[str] | None = None) -> str:
    """Settings in words, "gRPC, 5 s, batch 8, onnxruntime"; only those of `names` if given.

    Without `names` a batch of one is not named.
    """
    if names is None:
        names = [name for name, value in held.items() if (name, value) != ("batch", "1")]
    chosen = [name for name in names if name in held]
    return ", ".join(filter(None, (_words(name, held[name]) for name in chosen)))


def load_of(loop: str, load: float) -> str:
    """A load in words, "8 requests in flight"."""
    words = LOADS[loop]
    return f"{load:g} {ONE.get(words, words) if load == 1 else words}"


def operating_point(measurement: Measurement, names: Iterable[str]) -> str:
    """A measurement's load, and those of its settings that `names` lists, but for the loop."""
    words = describe(settings(measurement), [name for name in names if name != "loop"])
    return ", ".join(filter(None, [load_of(measurement.loop, measurement.load), words]))


def common(measurements: Sequence[Measurement], leave_out: str = "") -> str:
    """In words what all measurements share, but for one setting."""
    shared = set.intersection(*(set(settings(each).items()) for each in measurements))
    held = {name: value for name, value in settings(measurements[0]).items() if (name, value) in shared}
    held.pop(leave_out, None)
    return describe(held)


def unit_of(measurements: Sequence[Measurement]) -> str:
    """What throughput counts: utterances; of other models requests, or samples where a request may have several."""
    return unit(
        any(each.has_audio for each in measurements), max((each.batch_size for each in measurements), default=1)
    )


def unit(has_audio: bool, batch_size: int) -> str:
    """As `unit_of`, for what is not measured yet."""
    return "utterances" if has_audio else "samples" if batch_size > 1 else "requests"


def is_clean(measurement: Measurement) -> bool:
    """Whether a measurement may be taken at its word: stable, and nothing failed."""
    return measurement.stable and not measurement.failed


def is_client_bound(measurement: Measurement) -> bool:
    """Whether the generator was too busy to be trusted."""
    return measurement.client_cpu >= CLIENT_CPU_LIMIT * measurement.client_processes


def in_flight(measurement: Measurement) -> float:
    """Utterances in flight in a closed loop: what static and dynamic batching have in common."""
    return measurement.load * measurement.batch_size


def is_number(text: str) -> bool:
    """Whether a value says nothing without its name."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _words(name: str, value: str) -> str:
    if name == "audio":
        return f"{value} s" if is_number(value) else value
    if not is_number(value) and value.lower() not in ("true", "false", "on", "off", "yes", "no", ""):
        return value
    words, _, unit = name.rpartition(" ")
    return f"{words} {value} ms" if unit == "ms" else f"{name} {value}"
