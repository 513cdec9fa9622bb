"""Results of load tests: one `Measurement` per operating point, a `Report` of them with its conditions.

    requests answered  ->  Measurement  ->  Report  ->  JSON, CSV, table, plots, page

Times are milliseconds where the name has `_ms`, else seconds. A latency counts from the moment when a request was due
(open loop, streams) or sent (closed loop) until its whole answer was there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tritone.client.transport import TEXT
from tritone.errors import InputError
from tritone.loadtest.options import TENSORS
from tritone.report.stamp import Stamp

SCHEMA = 1
REPORT = "report.json"  # in the folder that `write_report` fills
FLOAT32 = "float32"  # in messages, as all audio was sent before there was another way
STREAM_LATENCIES = ("first_partial", "first_partial_chunk", "chunk", "final")
Loop = Literal["closed", "constant", "poisson", "streaming"]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latencies of a set of requests, in milliseconds; percentiles interpolate linearly between order statistics.

    `max_ms` is None where it is not known, as from perf_analyzer.
    """

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float | None

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latency | None":
        """Summarise latencies in seconds; None of none."""
        values = 1000 * np.fromiter(seconds, dtype=np.float64)
        if not values.size:
            return None
        p50, p90, p95, p99 = (float(each) for each in np.percentile(values, [50, 90, 95, 99]))
        return cls(
            count=int(values.size),
            mean_ms=float(values.mean()),
            p50_ms=p50,
            p90_ms=p90,
            p95_ms=p95,
            p99_ms=p99,
            max_ms=float(values.max()),
        )


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """Triton's own counters over the measured time; the times are means per request, in milliseconds."""

    requests: int
    failures: int
    queue_ms: float
    compute_input_ms: float
    compute_infer_ms: float
    compute_output_ms: float
    batches: Mapping[int, int] = field(default_factory=dict)  # how many of each size
    # Seconds of audio that went through the network and of padding beside it, from the models' own metrics.
    audio_s: float | None = None
    padding_s: float | None = None

    @property
    def mean_batch(self) -> float:
        return sum(size * count for size, count in self.batches.items()) / max(1, sum(self.batches.values()))

    @property
    def padding_waste(self) -> float | None:
        """The share of what the network computed that was padding, 0..1."""
        if self.audio_s is None or self.padding_s is None or not self.audio_s + self.padding_s:
            return None
        return self.padding_s / (self.audio_s + self.padding_s)


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """The figures that only streams have. A latency counts from the time when the last sample it needs was spoken.

    `first_partial`: until the first answer with a text, from the start of the stream's audio; `first_partial_chunk`:
    the same from the time when the chunk with that answer had been spoken. `textless` streams ended without any.
    `chunk`: of every chunk's answer but the last. `final`: from the end of the audio to the final text. `in_time`:
    share of chunks answered before the next was spoken; those that failed or were never answered were not. `unanswered`
    chunks were due and open when the run ended, and count as late as they were by then.

    A chunk is sent late for one of two reasons. `held_back`: share of chunks that had to wait because the server had
    not answered the one before. The rest is the generator's own doing, `sent_late` of the measurement; `drift_ms` is
    the worst of it. A generator that drifts measures itself, not the server.
    """

    streams: int
    chunk_ms: float
    first_partial: Latency | None
    chunk: Latency | None
    final: Latency | None
    in_time: float
    drift_ms: float
    first_partial_chunk: Latency | None = None
    textless: int = 0
    unanswered: int = 0
    held_back: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One operating point, measured.

    `load`: requests in flight (closed), requests per second (constant, poisson) or streams. `seconds`: what audio was
    sent, as text: "5", "files", "lognormal(5, 0.5)". `samples`: how it travelled: "float32", "int16", "int16 in system
    memory". `requests`: that came back in the measured time, of which `errors` counts the failed ones by their message.
    `audio_s`: of those that did not fail; an utterance counts once, whatever `batch_size` it travelled in. `stable`:
    whether the last windows agreed; when not, the figures are only indicative.
    `sent_late`: by how much requests were sent after they were due (constant, poisson), or chunks after they were due
    and the one before had been answered. `wer`: word error rate of the very texts that were timed, None without
    references. `different_texts`: recordings that did not get the same text every time. `output`: what was answered.
    Of embeddings there are `least_cosine`, of two of one recording (None if none came twice), and
    `different_embeddings`, recordings whose embeddings are not alike. Models that are not speech have `TENSORS`: there
    an utterance is a sample of the model's own inputs, `seconds` names them, and there is no audio. Those that answer a
    request any number of times have `first_answer`, until the first one, and `answers`, their mean number. `client_ms`:
    CPU time that the generator took per request. `client_cpu`: share of one core that all its processes took; near 1
    per process it measures itself.
    """

    model: str
    protocol: str
    loop: Loop
    load: float
    batch_size: int = 1
    seconds: str = ""
    samples: str = FLOAT32
    wall_s: float
    requests: int
    utterances: int
    audio_s: float
    errors: Mapping[str, int] = field(default_factory=dict)
    latency: Latency | None
    client_ms: float = 0.0
    client_cpu: float = 0.0
    client_processes: int = 1
    windows: int = 1
    stable: bool = True
    server: ServerSide | None = None
    streaming: Streaming | None = None
    sent_late: Latency | None = None
    wer: float | None = None
    wer_words: int = 0
    different_texts: int = 0
    output: str = TEXT  # or EMBEDDING, or TENSORS
    first_answer: Latency | None = None
    answers: float | None = None
    least_cosine: float | None = None
    different_embeddings: int = 0
    notes: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)  # what a sweep or a comparison varies: runtime, ...

    @property
    def throughput(self) -> float:
        """Utterances (or samples of other inputs) per second that were answered without error."""
        return self.utterances / self.wall_s if self.wall_s else 0.0

    @property
    def rtfx(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / self.wall_s if self.wall_s else 0.0

    @property
    def rtf(self) -> float:
        """Seconds per second of audio, at this load."""
        return self.wall_s / self.audio_s if self.audio_s else 0.0

    @property
    def has_texts(self) -> bool:
        """Whether texts were answered, which could be wrong."""
        return self.output == TEXT

    @property
    def has_audio(self) -> bool:
        """Whether audio was sent."""
        return self.output != TENSORS

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def has_drifted(self) -> bool:
        """Whether streams were played late by the generator itself: p99 above 5 % of a chunk, at least 2 ms and at most
        10 ms."""
        if self.streaming is None or self.sent_late is None:
            return False
        return self.sent_late.p99_ms > min(10.0, max(2.0, 0.05 * self.streaming.chunk_ms))


@dataclass(frozen=True, kw_only=True)
class Report:
    """Measurements of one run and its conditions. `complete` is False when it was interrupted."""

    stamp: Stamp
    measurements: Sequence[Measurement]
    title: str = "Load test"
    complete: bool = True
    notes: Sequence[str] = ()

    def rtfx_per_gpu(self, measurement: Measurement) -> float | None:
        """Seconds of audio per second and GPU; None on a machine without one, and where no audio was sent."""
        return measurement.rtfx / len(self.stamp.gpus) if self.stamp.gpus and measurement.has_audio else None

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Report":
        """Read what `save` wrote, or the report in a folder of `tritone bench --output`.

        Raises:
            InputError: no such file, or not such a report; the message names the file and the field.
        """
        if path.is_dir():
            path /= REPORT
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["schema"] != SCHEMA:
                raise InputError(f"{path} has schema {fields['schema']}, this Tritone reads {SCHEMA}; measure again")
            fields.pop("schema")
            return cls(
                **{
                    **fields,
                    "stamp": Stamp(**fields["stamp"]),
                    "measurements": [_measurement(each) for each in fields["measurements"]],
                }
            )
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not a report of `tritone bench` ({error!r})") from error


def _measurement(fields: dict[str, Any]) -> Measurement:
    server, streaming = fields["server"], fields["streaming"]
    if server is not None:
        server = ServerSide(**{**server, "batches": {int(size): count for size, count in server["batches"].items()}})
    if streaming is not None:
        latencies = {name: _latency(streaming[name]) for name in STREAM_LATENCIES}
        streaming = Streaming(**{**streaming, **latencies})
    latencies = {name: _latency(fields.get(name)) for name in ("latency", "sent_late", "first_answer")}
    return Measurement(**{**fields, **latencies, "server": server, "streaming": streaming})


def _latency(fields: dict[str, Any] | None) -> Latency | None:
    return None if fields is None else Latency(**fields)
