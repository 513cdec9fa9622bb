"""Requests by HTTP that end before they begin, and the ids of requests."""

import gc
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from tritone.client.endpoint import Endpoint
from tritone.client.grpc_transport import message_of
from tritone.client.http_message import inference_request
from tritone.client.http_transport import HttpTransport
from tritone.client.replies import TextReply
from tritone.client.transport import Call


def test_an_interrupt_while_a_request_is_sent_leaves_nothing_that_is_never_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def be_interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    transport = HttpTransport(Endpoint.parse("http://127.0.0.1:9"))
    call = Call(model="m", tensors={"WAV": np.zeros((1, 9), np.float32)}, timeout_s=5.0, reply=TextReply(False))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with monkeypatch.context() as patched:
            patched.setattr(transport._thread.loop, "call_soon_threadsafe", be_interrupted)
            with pytest.raises(KeyboardInterrupt):
                transport.infer(call)
        gc.collect()
    transport.close()
    assert [str(each.message) for each in seen] == []


def test_the_id_of_a_request_is_that_of_its_header_by_both_protocols() -> None:
    tensors = {"WAV": np.zeros((1, 9), np.float32)}
    call = Call(
        model="m", tensors=tensors, timeout_s=5.0, reply=TextReply(False), more_headers={"x-request-id": "call-7"}
    )
    _, headers, body = inference_request(call)
    head = json.loads(body[: int(headers["Inference-Header-Content-Length"])])
    assert (head["id"], message_of(call).id, headers["x-request-id"]) == ("call-7", "call-7", "call-7")
    assert message_of(replace(call, more_headers={})).id == ""
