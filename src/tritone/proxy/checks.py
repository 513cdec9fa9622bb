"""Rules for requests that both protocols share, and for what error messages may contain.

Most of them keep away from Triton what ended it: `tests/proxy/test_killers.py` has the requests.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritone.net.limits import Limits
from tritone.net.refusal import BAD_REQUEST, LOCKED, TOO_LARGE, RefusedError
from tritone.paths import without_paths
from tritone.proxy.inference import Inference, TensorHead
from tritone.proxy.protobuf_message import ITEM_SIZES

MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+@=:,-]{0,254}")
VERSION = re.compile(r"[0-9]{0,18}")
MAX_TENSORS = 64
MAX_AXES = 16
MAX_PARAMETERS = 256
MAX_PARAMETER_BYTES = 1 << 20  # of all parameters of a request together: long lists of hotwords
MAX_ID_LENGTH = 1024  # of request and stream ids
SHARED_MEMORY = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
FLAGS = ("sequence_start", "sequence_end")
# Triton's errors about its own shared memory name regions, which a client could then ask for (CVE-2025-23319).
INTERNAL_MEMORY = re.compile(r"shared.memory|shm", re.IGNORECASE)
# A client's own, sent back to it.
OWN_REGION = re.compile(
    r"unable to (find shared memory region: '|open shared memory region: '/tritone-client-)", re.IGNORECASE
)
TRACEBACK = re.compile(r"\n+(At:|Traceback \(most recent call last\):)\n.*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What its configuration says about a model. `inputs`, `outputs`: Triton's type of each, as "TYPE_STRING"."""

    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str]
    sample_rate: int | None = None  # None: the model takes no audio
    audio_inputs: tuple[str, ...] = ()  # of which a request has one
    max_queued_s: float | None = None
    decoupled: bool = False
    idle_s: float | None = None  # after so long without a chunk Triton ends a stream

    def audio_s(self, inference: Inference) -> float:
        """Seconds of audio in a request, padding included."""
        if self.sample_rate is None:
            return 0.0
        samples = sum(math.prod(each.shape) for each in inference.inputs if each.name in self.audio_inputs)
        return samples / self.sample_rate


def check_name(model: str, version: str = "") -> None:
    """Refuse names that no model of a repository has."""
    if not MODEL.fullmatch(model):
        raise RefusedError(
            BAD_REQUEST,
            f"{model[:80]!r} is no name of a model: at most 255 letters, digits and _.+@=:,- beginning with a letter "
            "or digit",
        )
    if not VERSION.fullmatch(version):
        raise RefusedError(BAD_REQUEST, f"{version[:80]!r} is no version of a model: a whole number, or none")


def check_inference(inference: Inference, limits: Limits, *, trusted: bool, tail_bytes: int | None = None) -> None:
    """Refuse what could harm Triton, or means nothing.

    Args:
        trusted: the client has shown the key, so it may use shared memory.
        tail_bytes: binary data behind the JSON of an HTTP request, which its inputs must account for.
    """
    check_name(inference.model, inference.version)
    if len(inference.id) > MAX_ID_LENGTH:
        raise RefusedError(BAD_REQUEST, f"the request id has {len(inference.id)} characters, at most {MAX_ID_LENGTH}")
    for kind, tensors in (("inputs", inference.inputs), ("outputs", inference.outputs)):
        if len(tensors) > MAX_TENSORS:
            raise RefusedError(BAD_REQUEST, f"{len(tensors)} {kind}, at most {MAX_TENSORS} are allowed")
        for each in tensors:
            if not trusted and any(name in each.parameters for name in SHARED_MEMORY):
                raise RefusedError(LOCKED, "tensors in shared memory are not open here; send the data with the request")
    _check_parameters(inference.parameters)
    for each in inference.inputs:
        _check_input(each, limits)
    if tail_bytes is not None:
        in_heads = sum(each.num_bytes or 0 for each in inference.inputs)
        if in_heads != tail_bytes:
            raise RefusedError(
                BAD_REQUEST,
                f"the inputs' binary_data_size add up to {in_heads} bytes, but {tail_bytes} follow the JSON header",
            )


def check_classification(inference: Inference, facts: ModelFacts) -> None:
    """Refuse to rank an output that holds no numbers, by which Triton 2.51 divides by zero."""
    for each in inference.outputs:
        if "classification" not in each.parameters:
            continue
        count = each.parameters["classification"]
        if facts.outputs.get(each.name, "TYPE_STRING") == "TYPE_STRING":
            raise RefusedError(
                BAD_REQUEST,
                f"output {each.name[:80]!r} of model '{facts.name}' is no tensor of numbers, so 'classification' "
                "(class_count) means nothing there. Leave it out.",
            )
        if type(count) is not int or not 1 <= count <= 1_000_000:
            raise RefusedError(BAD_REQUEST, f"'classification' must be 1 to 1000000, got {str(count)[:40]}")


def outward(message: str) -> str:
    """What a client may read of Triton's error message: no regions of its shared memory, no traceback, no paths."""
    message = TRACEBACK.sub("", message)
    if INTERNAL_MEMORY.search(message) and not OWN_REGION.search(message):
        return "the server had no memory to pass this request to its model. Send less at once, or try again later."
    return without_paths(message)


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    if len(parameters) > MAX_PARAMETERS:
        raise RefusedError(BAD_REQUEST, f"{len(parameters)} parameters, at most {MAX_PARAMETERS} are allowed")
    size = sum(len(name) + len(value) if isinstance(value, str) else len(name) for name, value in parameters.items())
    if size > MAX_PARAMETER_BYTES:
        raise RefusedError(TOO_LARGE, f"the parameters have {size} characters, {MAX_PARAMETER_BYTES} at most")
    for name, value in parameters.items():
        if not isinstance(value, (str, int, float)):  # bool is an int
            raise RefusedError(BAD_REQUEST, f"parameter {name[:80]!r} must be a string, a number or true or false")
        if isinstance(value, float) and not math.isfinite(value):
            raise RefusedError(BAD_REQUEST, f"parameter {name[:80]!r} must be a finite number, got {value}")
    for name in FLAGS:
        if type(parameters.get(name, False)) is not bool:
            raise RefusedError(BAD_REQUEST, f"parameter {name!r} must be true or false")
    stream = parameters.get("sequence_id", 0)
    if type(stream) is int:
        if not 0 <= stream < 1 << 64:
            raise RefusedError(BAD_REQUEST, f"sequence_id must be from 0 to 2**64 - 1, got {stream}")
    elif not isinstance(stream, str) or len(stream) > MAX_ID_LENGTH:
        raise RefusedError(
            BAD_REQUEST, f"sequence_id must be a whole number, or a string of at most {MAX_ID_LENGTH} characters"
        )
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise RefusedError(BAD_REQUEST, f"'timeout' must be whole microseconds, 0 or more, got {str(timeout)[:40]}")


def _check_input(tensor: TensorHead, limits: Limits) -> None:
    name, shape, size = tensor.name[:80], tensor.shape, tensor.num_bytes
    if len(shape) > MAX_AXES or any(not 0 <= each < 1 << 31 for each in shape):
        raise RefusedError(
            BAD_REQUEST, f"input {name!r}: a shape has at most {MAX_AXES} sizes from 0 to 2**31 - 1, got {shape[:20]}"
        )
    elements = math.prod(shape)
    if elements > limits.max_body_bytes:
        raise RefusedError(TOO_LARGE, f"input {name!r} has {elements} elements, {limits.max_body_bytes} at most")
    if size is None:
        return
    if type(size) is not int or size < 0:
        raise RefusedError(
            BAD_REQUEST, f"input {name!r}: binary_data_size must be a count of bytes, got {str(size)[:40]}"
        )
    item = ITEM_SIZES.get(tensor.datatype)
    if item is not None and elements * item != size:
        raise RefusedError(
            BAD_REQUEST,
            f"input {name!r} has {size} bytes, but its shape {list(shape)} of {tensor.datatype} "
            f"needs {elements * item}",
        )
