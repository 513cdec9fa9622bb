"""A served model for whole requests: good requests are run together, bad ones get an error each, and all are counted.

requests  ->  jobs, or the error that each request is  ->  results  ->  answers
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from tritone.backend.given_up import Patience
from tritone.backend.metrics import Metrics, Outcome, outcome_of
from tritone.backend.process import batch
from tritone.backend.replies import error_reply
from tritone.errors import TritoneError
from tritone.pipelines.ahead import Ahead
from tritone.pipelines.isolation import UnexpectedError, attempt, prepared

Job = TypeVar("Job")
Result = TypeVar("Result")


class BatchModel(ABC, Generic[Job, Result]):
    """Triton's interface without `initialize`, which sets `_pipeline` and `_metrics`, and `_ahead` of a search."""

    _pipeline: Any  # with a `work: WorkLog`
    _metrics: Metrics
    _ahead: Ahead | None = None

    def __init__(self) -> None:
        self._patience = Patience()

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
        self._patience.begin()
        with batch():
            outcomes = prepared(self._parse, self.run, requests)
        answered = [self._answer(request, outcome) for request, outcome in zip(requests, outcomes, strict=True)]
        reported = [outcome for _, outcome in answered]
        self._metrics.count(reported, self._pipeline.work.take(), time.perf_counter() - start)
        self._patience.end()
        return [answer for answer, _ in answered]

    def finalize(self) -> None:
        """End what is compiled, and report the last numbers."""
        if self._ahead is not None:
            self._ahead.close()
        self._metrics.report()

    def _parse(self, request: Any) -> Job:
        self._patience.check(request)
        return self.parse(request)

    def _answer(self, request: Any, outcome: Result | TritoneError) -> tuple[Any, Outcome]:
        answer = outcome if isinstance(outcome, TritoneError) else attempt(partial(self.answer, request), outcome)
        return error_reply(answer) if isinstance(answer, TritoneError) else answer, outcome_of(answer)


def of_one(results: Sequence[Result | TritoneError]) -> list[Result] | TritoneError:
    """The results of a request's rows, or the error of the first row that has one."""
    found: list[Result] = []
    for index, result in enumerate(results):
        if isinstance(result, TritoneError):
            alone = len(results) == 1 or isinstance(result, UnexpectedError)
            return result if alone else result.saying(f"row {index}: {result}")
        found.append(result)
    return found
