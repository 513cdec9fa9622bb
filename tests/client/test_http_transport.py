"""Requests by HTTP that end before they begin."""

import gc
import warnings

import numpy as np
import pytest

from tritone.client.endpoint import Endpoint
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
