"""Requests of Triton: their tensors as arrays, and what they ask of a model.

    inputs                         ->  arrays by name
    parameters, as Triton's JSON   ->  those that are for the model

Arrays are views of the request's memory: they are gone when `execute` returns.
"""

import json
from collections.abc import Collection
from typing import Any, Protocol

from tritone.errors import InputError
from tritone.runtime.graph import Array

# Triton's own parameters, most of which it keeps to itself.
RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
RESERVED_PREFIX = "triton_"
NO_PARAMETERS = ("", "{}")
MAX_PARAMETERS = 2**20  # characters of JSON; a thousand hotwords of a hundred characters take a fifth of it


class Request(Protocol):
    """The part of Triton's `InferenceRequest` that is used here."""

    def inputs(self) -> list[Any]: ...

    def parameters(self) -> str: ...


def tensors_of(request: Request) -> dict[str, Array]:
    """The inputs of a request by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def parameters_of(request: Request, known: Collection[str]) -> dict[str, Any]:
    """What a request asks of a model; see `parsed_parameters`."""
    return parsed_parameters(parameters_text(request), known)


def parameters_text(request: Request) -> str:
    """The parameters of a request as JSON, empty where it has none.

    Raises:
        InputError: Triton passed on what is not UTF-8, or it is too much.
    """
    try:
        text = request.parameters()
    except ValueError as error:  # text that is not UTF-8 is a ValueError
        raise _unreadable(error) from error
    if len(text) > MAX_PARAMETERS:
        raise InputError(
            f"the request's parameters have {len(text):,} characters as JSON; at most {MAX_PARAMETERS:,} are read. "
            "Send fewer or shorter hotwords"
        )
    return "" if text in NO_PARAMETERS else text


def parsed_parameters(text: str, known: Collection[str]) -> dict[str, Any]:
    """Read what a request asks of a model: its parameters without Triton's own and forwarded headers.

    A header looks like a parameter where an operator lets Triton forward some. Those have a hyphen in their names,
    which ours never have: `ctc-weight` is a slip of the pen, `x-request-id` is not for us.

    Args:
        text: from `parameters_text`.
        known: names of the parameters that the model takes.

    Raises:
        InputError: it is no JSON, as for a number that is not finite.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    return {name: value for name, value in found.items() if not _is_foreign(name, known)}


def _is_foreign(name: str, known: Collection[str]) -> bool:
    if name in RESERVED or name.startswith(RESERVED_PREFIX):
        return True
    return "-" in name and name.lower().replace("-", "_") not in known


def _unreadable(error: Exception) -> InputError:
    reason = str(error)
    if isinstance(error, UnicodeDecodeError):
        reason = f"not UTF-8: byte 0x{error.object[error.start]:02x}"
    return InputError(
        f"the request's parameters cannot be read ({reason}); send finite numbers, text in UTF-8, true or false"
    )
