"""What models have in common that Triton hands batches of whole requests: good ones are run together, bad ones get an
error each, and all of it is counted.

    requests  ->  jobs, or the error that each request is  ->  results  ->  answers
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import triton_python_backend_utils as pb_utils

from tritone.backend.metrics import Metrics, outcome_of
from tritone.backend.replies import error_reply
from tritone.errors import TritoneError

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
    def run(self, jobs: Sequence[Job]) -> Sequence[Result]:
        """Do the work of some requests, one result for each."""

    @abstractmethod
    def answer(self, request: Any, result: Result) -> Any:
        """Write the answer to a request."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch: good requests share one call, bad ones get an error each."""
        start = time.perf_counter()
        parsed = [self._parsed(request) for request in requests]
        good = [item for item in parsed if not isinstance(item, TritoneError)]
        results = iter(self._run_apart(good))
        outcomes = [item if isinstance(item, TritoneError) else next(results) for item in parsed]
        answers = [
            error_reply(outcome) if isinstance(outcome, Exception) else self.answer(request, outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        told = [outcome_of(outcome) for outcome in outcomes]
        self._metrics.count(told, self._pipeline.work.take(), time.perf_counter() - start)
        return answers

    def finalize(self) -> None:
        """Tell the last numbers."""
        self._metrics.tell()

    def _parsed(self, request: Any) -> Job | TritoneError:
        try:
            return self.parse(request)
        except TritoneError as error:
            return error

    def _run_apart(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        if not jobs:
            return []
        try:
            return list(self.run(jobs))
        except Exception as error:
            pb_utils.Logger.log_error(f"a batch of {len(jobs)} requests failed: {type(error).__name__}: {error}")
            if len(jobs) == 1:
                return [error]
        # Whoever broke the batch shall break only its own request.
        return [outcome for job in jobs for outcome in self._run_apart([job])]
