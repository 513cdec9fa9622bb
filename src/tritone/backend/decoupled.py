"""The model that Triton runs for a Python generator: it answers a request as often as the generator yields."""

import time
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from tritone.backend import generic, heartbeat
from tritone.backend.metrics import outcome_of
from tritone.backend.process import batch
from tritone.backend.replies import error_reply
from tritone.errors import TritoneError
from tritone.pipelines.isolation import as_value

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel(generic.TritonPythonModel):
    """Triton's interface; the names are its own. Requests are answered one after the other, each to its end."""

    def execute(self, requests: Sequence[Any]) -> None:  # type: ignore[override]
        """Answer each request, as often as it takes; Triton wants nothing returned from such a model."""
        start = time.perf_counter()
        with heartbeat.waiting():
            outcomes = [outcome_of(self._answer_all(request)) for request in requests]
        self._metrics.count(outcomes, self._pipeline.work.take(), time.perf_counter() - start)

    def _answer_all(self, request: Any) -> TritoneError | None:
        """Send all answers to a request; returns the error that ended it, if one did."""
        sender = request.get_response_sender()
        fault = None
        try:
            job = self._parse(request)
            found = self._pipeline.stream(job.rows[0], job.options)
            while True:
                with batch():  # each answer has its time limit, all of them together have none
                    outputs = next(found, None)
                if outputs is None or request.is_cancelled():  # the client is gone, or does not want more
                    break
                sender.send(self._response(outputs))
        except Exception as error:  # of the request, or whatever the function raises
            fault = as_value(error)
            sender.send(error_reply(fault))
        sender.send(flags=FINAL)
        return fault
