"""What a request asks of the search, as Triton's request parameters.

    {"search": "rescoring", "nbest": 5, "hotwords": {"anna": 8}}  ->  text, whole numbers, numbers, true or false

Which there are is the server's affair: it refuses names that it does not know, and says which it does.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tritone.errors import InputError

Parameter = str | int | float | bool
Search = Mapping[str, Any]

# Triton's own; it would take them for something else.
RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")


def request_parameters(search: Search | None) -> dict[str, Parameter]:
    """Write parameters as they travel.

    Args:
        search: by the names of the wire contract; what is None is left out. Hotwords may be a mapping.

    Raises:
        ValueError: a name is one of Triton's own, or a value is of a type that cannot travel.
        InputError: a number is not finite, or has more than 64 bits.
    """
    if search is not None and not isinstance(search, Mapping):
        raise ValueError(f'search must be a mapping like {{"search": "prefix-beam", "beam": 20}}, got {search!r}')
    parameters: dict[str, Parameter] = {}
    for name, value in (search or {}).items():
        if name in RESERVED or name.startswith("triton_"):
            raise ValueError(f"{name} is a parameter of Triton itself, not of the search")
        if isinstance(value, Mapping):
            try:
                value = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InputError(f"parameter {name} has a value that is no finite number or text: {error}") from error
        if isinstance(value, np.generic):
            value = value.item()
        if value is None:
            continue
        if not isinstance(value, str | int | float):
            raise ValueError(f"parameter {name} must be text, a number, true or false, got {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"parameter {name} must be a finite number, got {value}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise InputError(f"parameter {name} must be a whole number of 64 bits, it has {value.bit_length()}")
        parameters[name] = value
    return parameters


def wants_alternatives(parameters: Mapping[str, Parameter]) -> bool:
    """Whether more than one reading is asked for; readings travel in the details."""
    try:
        return float(parameters.get("nbest", 1)) > 1
    except ValueError:  # the server will say so
        return False
