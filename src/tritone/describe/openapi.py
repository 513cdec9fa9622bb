"""The HTTP interface of a repository's models as an OpenAPI 3.1 document."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tritone.describe.models import DescribedModel, DescribedTensor
from tritone.describe.samples import HEADER_LENGTH, SampleRequest, path_of

Json = dict[str, Any]

ERRORS = {
    "400": "The request does not fit the model; `error` says why.",
    "404": "There is no such model, or it is not ready.",
    "503": "The server is busy or is being stopped; send again after `Retry-After` seconds, or later.",
}
USAGES = {
    "request": "",
    "stream": (
        " Requests belong to a stream: the parameter `sequence_id` names it, `sequence_start` and `sequence_end` mark "
        "its first and last request. The sample starts and ends one."
    ),
    "answers": " A request has any number of answers, which come as server-sent events.",
}


def openapi(
    models: Sequence[DescribedModel], requests: Sequence[SampleRequest], server: str, title: str, bodies: str = "bodies"
) -> Json:
    """The document.

    Args:
        requests: samples of all models, see `samples`.
        bodies: the folder of the samples' bodies, for those that are too large for the document.
        server: where they are served, such as http://localhost:8000.
    """
    paths: Json = {
        "/v2/health/live": {"get": _read("health", "live", "Whether the server runs.")},
        "/v2/health/ready": {"get": _read("health", "ready", "Whether the server and all its models take requests.")},
        "/v2": {"get": _read("server", "server", "Name, version and extensions of the server.")},
    }
    for model in models:
        base = f"/v2/models/{quote(model.name, safe='')}"
        of_model = [each for each in requests if each.model == model.name]
        name = model.name
        paths[f"{base}/ready"] = {"get": _read(name, f"{name}.ready", "Whether the model takes requests.")}
        paths[base] = {"get": _read(name, f"{name}.metadata", "Names, types and shapes of its tensors.")}
        paths[f"{base}/config"] = {"get": _read(name, f"{name}.config", "Its configuration.")}
        paths[f"{base}/stats"] = {"get": _read(name, f"{name}.stats", "Counts and times of its requests.")}
        paths[path_of(model)] = {"post": _infer(model, of_model, bodies)}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "2", "description": "Models served by NVIDIA Triton Inference Server."},
        "servers": [{"url": server}],
        "paths": paths,
        "components": {
            "schemas": {"Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}}
        },
    }


def _read(tag: str, operation: str, summary: str) -> Json:
    return {
        "tags": [tag],
        "operationId": operation,
        "summary": summary,
        "responses": {"200": {"description": "Yes, or what was asked for."}, "4XX": _error("No.")},
    }


def _infer(model: DescribedModel, requests: Sequence[SampleRequest], bodies: str) -> Json:
    content: Json = {}
    headers = []
    as_json = [each for each in requests if each.is_json]
    if as_json or (model.has_json and not requests):
        schema = _events_schema(model) if model.usage == "answers" else _request_schema(model)
        examples = {
            each.name: {"value": json.loads(each.body)}
            if each.is_inline
            else {"externalValue": f"{bodies}/{each.file}"}
            for each in as_json
        }
        content["application/json"] = {"schema": schema, "examples": examples}
    binary = next((each for each in requests if not each.is_json), None)
    if binary is not None or not (requests or model.has_json):
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        headers.append(
            {
                "name": HEADER_LENGTH,
                "in": "header",
                "required": not as_json,
                "schema": {"type": "integer", "minimum": 1},
                "description": (
                    "Of a body with binary tensors: bytes of the JSON at its start, where each such input has the "
                    "parameter `binary_data_size` in place of `data`. The tensors follow in that order, little-endian; "
                    "each string after its length as 4 bytes."
                ),
            }
        )
    answer: Json = {"application/json": {"schema": _answer_schema(model)}}
    if model.usage == "answers":
        answer = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "tags": [model.name],
        "operationId": f"{model.name}.infer",
        "summary": f"Ask the model {model.name}.",
        "description": (_rows(model) + USAGES[model.usage]).strip(),
        "parameters": headers,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "The outputs.", "content": answer}}
        | {status: _error(text) for status, text in ERRORS.items()},
    }


def _rows(model: DescribedModel) -> str:
    if not model.batched:
        return "The tensors of a request have no axis of rows."
    return f"The first axis of every tensor counts rows, at most {model.max_batch_size} of them."


def _request_schema(model: DescribedModel) -> Json:
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "description": "Comes back with the answer."},
            "parameters": {"type": "object", "description": "Parameters of the request, for the server or the model."},
            "inputs": _tensors(model.inputs, given=True),
            "outputs": {
                "type": "array",
                "description": "The outputs to return; all if not given.",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"enum": [each.name for each in model.outputs]},
                        "parameters": {
                            "type": "object",
                            "properties": {
                                "classification": {
                                    "type": "integer",
                                    "description": 'Return the best so many as strings "value:index:label".',
                                },
                                "binary_data": {"type": "boolean"},
                            },
                        },
                    },
                },
            },
        },
    }


def _answer_schema(model: DescribedModel) -> Json:
    return {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": _tensors(model.outputs, given=False),
        },
    }


def _events_schema(model: DescribedModel) -> Json:
    return {
        "type": "object",
        "required": [each.name for each in model.inputs if not each.optional],
        "properties": {
            each.name: {"description": f"{each.type} {list(each.shape)}, a value or a list."} for each in model.inputs
        },
    }


def _tensors(tensors: Sequence[DescribedTensor], *, given: bool) -> Json:
    """Those of an array, each by its name."""
    return {"type": "array", "items": {"oneOf": [_tensor(each, given=given) for each in tensors]}}


def _tensor(tensor: DescribedTensor, *, given: bool) -> Json:
    optional = " It may be left out." if tensor.optional else ""
    classes = " As classes its type is BYTES." if tensor.labels else ""
    sizes = [{"type": "integer", "minimum": 0} if size == -1 else {"const": size} for size in tensor.shape]
    shape: Json = {"type": "array", "description": f"{list(tensor.shape)}, where -1 is any size."}
    if given:
        shape |= {"prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}
    return {
        "type": "object",
        "description": f"{tensor.name}: {tensor.type} {list(tensor.shape)}.{optional}{classes}",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"type": "string"} if tensor.labels else {"const": tensor.type},
            "shape": shape,
            "data": {"type": "array", "description": "Values in row-major order, nested or not."},
            "parameters": {"type": "object"},
        },
    }


def _error(description: str) -> Json:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
