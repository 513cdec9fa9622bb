"""A served model's own counters on Triton's metrics port, beside those that Triton keeps of every model.

    Work of the pipeline, outcomes of requests  ->  Metrics  ->  http://SERVER:8002/metrics

A report to Triton is a round trip to another process, some 20 µs, so numbers go together and not more often than every
`INTERVAL_S`: what was counted since then goes with the next requests, or when the last stream ends. All of it happens
in the thread in which Triton calls the model; Triton 2.51 hangs when other threads do it. So streams whose clients went
away without END count as open until the next chunk of any stream.
"""

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import triton_python_backend_utils as pb_utils

from tritone.errors import InputError, RetryError
from tritone.pipelines.graphs.work_log import Work

INTERVAL_S = 0.05

Outcome = Literal["ok", "bad_input", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "bad_input", "refused", "failed")

REQUESTS = "tritone_requests_total"
STREAMS = "tritone_open_streams"
SLOTS = "tritone_stream_slots"
STARTS = "tritone_model_starts_total"
EXECUTE_S = "tritone_execute_seconds_total"
WORK = {  # fields of `Work`
    "audio_s": "tritone_audio_seconds_total",
    "padding_s": "tritone_padding_seconds_total",
    "calls": "tritone_network_calls_total",
    "network_s": "tritone_network_seconds_total",
    "search_s": "tritone_search_seconds_total",
}
# Triton keeps one family for all models and processes that name it, if they describe it alike.
DESCRIPTIONS = {
    "tritone_audio_seconds_total": "Seconds of audio that went through the network",
    "tritone_padding_seconds_total": "Seconds of padding and appended silence that the network computed beside audio",
    "tritone_network_calls_total": "Calls of the network",
    "tritone_network_seconds_total": "Seconds spent in the network, features included",
    "tritone_search_seconds_total": "Seconds spent on the search",
    EXECUTE_S: "Seconds spent on batches, from their requests to their answers",
    REQUESTS: "Requests by outcome: ok, bad_input, refused or failed",
    STARTS: "Starts of the processes of a model, the first included",
    STREAMS: "Open streams of a model instance",
    SLOTS: "Streams that a model instance can hold",
}


class Metrics:
    """The counters of one model instance; instances of a model count together, its gauge is one for each instance.

    Without Triton's part in it (before 23.05) and after an error nothing is counted, and one line in the log says so.
    """

    def __init__(
        self,
        args: Mapping[str, str],
        *,
        slots: int = 0,
        warmups: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        args: of `TritonPythonModel.initialize`.
        slots: how many streams it holds; 0 of a model for whole inputs.
        warmups: how many batches to leave out, because Triton sends them itself before anybody else's.
        clock: seconds.
        """
        self._model = f"{args['model_name']} version {args['model_version']}"
        self._clock = clock
        self._warmups = warmups
        self._reported_at = -INTERVAL_S
        self._reported_streams = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._work = Work()
        self._execute_s = 0.0
        self._metrics: dict[str, Any] = {}
        labels = {"model": args["model_name"], "version": args["model_version"]}
        try:
            for name in (*WORK.values(), EXECUTE_S):
                self._metrics[name] = _metric(name, pb_utils.MetricFamily.COUNTER, labels)
            _metric(STARTS, pb_utils.MetricFamily.COUNTER, labels).increment(1)
            for outcome in OUTCOMES:
                more = {**labels, "outcome": outcome}
                self._metrics[outcome] = _metric(REQUESTS, pb_utils.MetricFamily.COUNTER, more)
            if slots:
                more = {**labels, "instance": args["model_instance_name"]}
                self._metrics[STREAMS] = _metric(STREAMS, pb_utils.MetricFamily.GAUGE, more)
                self._metrics[STREAMS].set(0)
                _metric(SLOTS, pb_utils.MetricFamily.GAUGE, more).set(slots)
        except Exception as error:
            self._give_up(error)

    def count(self, outcomes: Sequence[Outcome], work: Work, execute_s: float, streams: int = 0) -> None:
        """Count a batch.

        Args:
            outcomes: one for each request.
            work: what the pipeline did for them.
            execute_s: how long all of it took, in seconds.
            streams: how many are open now.
        """
        if self._warmups:
            self._warmups -= 1
            return
        self._outcomes.update(outcomes)
        self._work += work
        self._execute_s += execute_s
        # After the last stream there may be no request for hours, with which the rest would be reported.
        if self._clock() - self._reported_at >= INTERVAL_S or (self._reported_streams and not streams):
            self.report(streams)

    def report(self, streams: int = 0) -> None:
        """Report to Triton what was counted and not reported yet."""
        news: dict[str, float] = {name: getattr(self._work, field) for field, name in WORK.items()}
        news |= {outcome: count for outcome, count in self._outcomes.items()}
        news[EXECUTE_S] = self._execute_s
        try:
            for name, value in news.items():
                if value and name in self._metrics:
                    self._metrics[name].increment(value)
            if STREAMS in self._metrics:
                self._metrics[STREAMS].set(streams)
        except Exception as error:
            self._give_up(error)
        self._outcomes, self._work, self._execute_s = Counter(), Work(), 0.0
        self._reported_at = self._clock()
        self._reported_streams = streams

    def _give_up(self, error: Exception) -> None:
        self._metrics = {}
        pb_utils.Logger.log_warn(
            f"{self._model} has no metrics of its own on this server: {type(error).__name__}: {error}"
        )


def outcome_of(result: object) -> Outcome:
    """The outcome of a request whose answer is `result`, an error or not."""
    if isinstance(result, InputError):
        return "bad_input"
    if isinstance(result, RetryError):
        return "refused"
    return "failed" if isinstance(result, Exception) else "ok"


def _metric(name: str, kind: Any, labels: dict[str, str]) -> Any:
    family = pb_utils.MetricFamily(name=name, description=DESCRIPTIONS[name], kind=kind)
    metric = family.Metric(labels=labels)
    # Never deleted: instances share one counter in Triton, which each of them counts as its own alone and would take
    # away from the others. It also lets a counter go on where it was when a model is loaded again.
    for each in (family, metric):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    return metric
