"""Bodies of requests to a model: JSON, and JSON followed by binary tensors.

Source: the protocol "Open Inference Protocol v2" and Triton's extensions for binary tensors, classification, sequences
and generation (triton-inference-server/server, docs/protocol).
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from tritone.describe.models import CLASSES, MOST_IN_JSON, MOST_VALUES, NO_JSON, DescribedModel

HEADER_LENGTH = "Inference-Header-Content-Length"
STREAM_ID = 42
MOST_INLINE_BYTES = 2**18  # of a body within a document; larger ones are named there as files


@dataclass(frozen=True)
class SampleRequest:
    """A request that a model answers: `body` for a POST to `path` with these headers; `file`, a name for the body.

    `has_binary_answer`: whether the answer has tensors that JSON has no form for.
    """

    name: str
    model: str
    path: str
    headers: dict[str, str]
    body: bytes
    file: str
    has_binary_answer: bool = False

    @property
    def is_json(self) -> bool:
        """Whether the body is text."""
        return self.file.endswith(".json")

    @property
    def is_inline(self) -> bool:
        """Whether the body is text that a document can hold."""
        return self.is_json and len(self.body) <= MOST_INLINE_BYTES


def samples(model: DescribedModel) -> list[SampleRequest]:
    """The requests for a model: as JSON where its types can be written so, with binary tensors, and for its labels.

    A model with many answers for a request is asked by Triton's generation extension, whose inputs are plain JSON.
    Large inputs have no sample in JSON, and those with more than `MOST_VALUES` values none at all.
    """
    if model.sample_values > MOST_VALUES:
        return []
    path, has_json = path_of(model), model.has_json and model.sample_values <= MOST_IN_JSON
    if model.usage == "answers":
        values = {name: _plain(value) for name, value in model.sample.items()}
        body = json.dumps(values).encode()
        headers = {"Content-Type": "application/json"}
        return [SampleRequest("answers", model.name, path, headers, body, f"{model.name}.json")]
    found = []
    if has_json:
        found.append(_request("json", model, path, binary=False))
    found.append(_request("binary", model, path, binary=True))
    if any(each.labels for each in model.outputs):
        found.append(_request("labels", model, path, binary=not has_json, classes=CLASSES))
    return found


def path_of(model: DescribedModel) -> str:
    """Where a model is asked."""
    return f"/v2/models/{quote(model.name, safe='')}/{'generate_stream' if model.usage == 'answers' else 'infer'}"


def _request(name: str, model: DescribedModel, path: str, *, binary: bool, classes: int = 0) -> SampleRequest:
    inputs = []
    for each in model.sampled:
        value = model.sample[each.name]
        tensor = InferInput(each.name, value.shape, each.type)
        tensor.set_data_from_numpy(value, binary_data=binary)
        inputs.append(tensor)
    outputs = [
        InferRequestedOutput(each.name, binary_data=each.type in NO_JSON, class_count=classes if each.labels else 0)
        for each in model.outputs
    ]
    sequence: dict[str, Any] = {}
    if model.usage == "stream":
        sequence = {"sequence_id": STREAM_ID, "sequence_start": True, "sequence_end": True}
    body, header_length = InferenceServerClient.generate_request_body(inputs, outputs=outputs, **sequence)
    headers = {"Content-Type": "application/json"}
    file = f"{model.name}.{'json' if name == 'json' else name + '.json'}"
    if binary:
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_length)}
        file = f"{model.name}.{'bin' if name == 'binary' else name + '.bin'}"
    has_binary = any(each.type in NO_JSON for each in model.outputs)
    return SampleRequest(name, model.name, path, headers, bytes(body), file, has_binary)


def _plain(value: Any) -> Any:
    """One value, or the list of them, of an input of the generation extension, whose tensors have one axis at most."""
    values = [each.decode() if isinstance(each, bytes) else each for each in np.reshape(value, -1).tolist()]
    return values[0] if len(values) == 1 else values
