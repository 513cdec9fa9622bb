"""What a graph's file says of itself: read as data, without a runtime and without running anything of the file.

model.onnx, model.ts, model.pt2  ->  GraphDescription: inputs, outputs, facts
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Size = int | str  # of an axis: a number, or the name of what it may be
SHOWN_OPERATORS = 8
ANY = "?"  # an axis without a name


@dataclass(frozen=True)
class TensorDescription:
    """An input or output. `type`: Triton's name, or words for what Triton does not have. `shape`: None if unknown."""

    name: str
    type: str
    shape: tuple[Size, ...] | None


@dataclass(frozen=True, kw_only=True)
class GraphDescription:
    """`format`: in words. `facts`: what else the file says, in order. `notes`: what to be careful about."""

    format: str
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def most_common(operators: Counter[str]) -> str:
    """How many operators there are, and those that are there most often."""
    common = ", ".join(f"{name} {count}" for name, count in operators.most_common(SHOWN_OPERATORS))
    rest = len(operators) - SHOWN_OPERATORS
    return f"{sum(operators.values())}: {common}" + (f", and {rest} other kinds" if rest > 0 else "")
