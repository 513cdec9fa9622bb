"""A served model for whole requests: good requests are run together, bad ones get an error each, and all are counted.

requests  ->  jobs, or the error that each request is  ->  results  ->  answers
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import triton_python_backend_utils as pb_utils

from tritone.backend import heartbeat
from tritone.backend.metrics import Metrics, outcome_of
from tritone.backend.replies import error_reply
from tritone.errors import TritoneError
from tritone.pipelines.isolation import as_value, prepared

Job = TypeVar("Job")
Result = TypeVar("Result")


class BatchModel(ABC, Generic[Job, Result]):
    """Triton's interface without `initialize`, which sets `_pipeline` and `_metrics`."""

    _pipeline: Any  # with a `work: WorkLog`
    _metrics: Metrics

    @abstractmethod
    def parse(self, request: Any) -> Job:
        """Read a request; raises `TritoneError` if it is a bad one."""

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Sequence[Result | TritoneError]:
        """The result of each job, or the error that it caused."""

    @abstractmethod
    def answer(self, request: Any, result: Result) -> Any:
        """The answer to a request."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch: good requests share one call, bad ones get an error each."""
        start = time.perf_counter()
        with heartbeat.batch():
            outcomes = prepared(self.parse, self.run, requests)
        answers = [self._answer(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]
        told = [outcome_of(outcome) for outcome in outcomes]
        self._metrics.count(told, self._pipeline.work.take(), time.perf_counter() - start)
        return answers

    def finalize(self) -> None:
        """Report the last numbers."""
        self._metrics.tell()

    def _answer(self, request: Any, outcome: Result | TritoneError) -> Any:
        if not isinstance(outcome, TritoneError):
            return self.answer(request, outcome)
        if outcome_of(outcome) == "failed":
            pb_utils.Logger.log_error(f"a request failed: {outcome}")
        return error_reply(outcome)


def of_one(results: Sequence[Result | TritoneError]) -> list[Result] | TritoneError:
    """The results of a request's rows, or the error of the first row that has one."""
    found: list[Result] = []
    for index, result in enumerate(results):
        if isinstance(result, TritoneError):
            return result if len(results) == 1 else as_value(type(result)(f"row {index}: {result}"))
        found.append(result)
    return found
