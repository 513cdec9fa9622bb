"""An inference request as both protocols send it, without its tensor data.

JSON or protobuf  ->  Inference  ->  checks, admission, streams
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

StreamId = int | str


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorHead:
    """Everything of an input or requested output but its data. `num_bytes`: of binary data, None if sent otherwise."""

    name: str
    datatype: str = ""
    shape: Sequence[int] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    num_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inference:
    """One request.

    `encoded(id)` is what was read, serialised, with another sequence id unless it is None. Nothing else may
    be sent on: another reader may find more in the bytes that came than the checks have seen.
    """

    model: str
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[TensorHead] = ()
    outputs: Sequence[TensorHead] = ()
    encoded: Callable[[StreamId | None], Any]

    @property
    def stream(self) -> StreamId | None:
        """The client's sequence id, or None of a request without one. 0 and "" mean none, as for Triton."""
        return self.parameters.get("sequence_id") or None

    @property
    def starts(self) -> bool:
        return bool(self.parameters.get("sequence_start"))

    @property
    def ends(self) -> bool:
        return bool(self.parameters.get("sequence_end"))
