"""Inference as it travels by HTTP: JSON, then the tensors' bytes (KServe v2 with the binary tensor data extension).

path, headers, body = inference_request(call)
HttpReply(body, length)     the tensors of an answer, as `Reply.read` takes them
"""

import json
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from tritone.bfloat16 import BITS, from_bfloat16
from tritone.client.transport import Call, datatype_of

JSON_LENGTH = "Inference-Header-Content-Length"


def inference_request(call: Call[Any]) -> tuple[str, dict[str, str], bytes]:
    """The path of a request below /v2/, its headers and its body."""
    inputs = []
    for name, tensor in call.tensors.items():
        inputs.append(InferInput(name, tensor.shape, datatype_of(tensor)))
        if place := call.placed.get(name):
            inputs[-1].set_shared_memory(place.region, place.num_bytes, place.offset)
        else:
            is_bfloat16 = tensor.dtype == BITS  # which tritonclient makes of float32 itself
            inputs[-1].set_data_from_numpy(from_bfloat16(tensor.view(np.uint16)) if is_bfloat16 else tensor)
    body, json_length = InferenceServerClient.generate_request_body(
        inputs,
        outputs=[InferRequestedOutput(name, class_count=call.classes) for name in call.reply.outputs],
        request_id=call.request_id,
        sequence_id=call.sequence_id,
        sequence_start=call.start,
        sequence_end=call.end,
        timeout=call.timeout_us,
        parameters=dict(call.parameters),
    )
    headers = dict(call.headers) if json_length is None else {JSON_LENGTH: str(json_length), **call.headers}
    return f"models/{quote(call.model, safe='')}/infer", headers, body


class HttpReply:
    """The tensors of an answer.

    Args:
        body: of the answer.
        json_length: bytes of its JSON, as the header says, where tensors follow.

    Raises:
        ValueError, KeyError, TypeError: it is no such answer.
    """

    def __init__(self, body: bytes, json_length: str | None) -> None:
        self._body = body
        self._length = len(body) if json_length is None else int(json_length)
        self._places: dict[str, slice] = {}
        at = self._length
        for output in json.loads(body[: self._length])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                self._places[output["name"]] = slice(at, at + size)
                at += size

    def raw(self, name: str) -> bytes | None:
        """The bytes of an output; None where it is not there, or stands in the JSON."""
        place = self._places.get(name)
        return None if place is None else self._body[place]

    def as_numpy(self, name: str) -> npt.NDArray[Any] | None:
        """An output as an array; None where it is not there."""
        length = None if self._length == len(self._body) else self._length
        array: npt.NDArray[Any] | None = InferenceServerClient.parse_response_body(
            self._body, header_length=length
        ).as_numpy(name)
        return array
