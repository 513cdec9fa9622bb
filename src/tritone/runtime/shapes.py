"""Shapes of a graph's inputs as people write them, in the form that `trtexec` has too.

"input_ids:8x128,attention_mask:8x128" or "8x128"  ->  Shapes  ->  {"input_ids": (8, 128), ...}
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHAPE = re.compile(r"(?:(?P<name>.+):)?(?P<sizes>\d{1,9}(?:x\d{1,9})*)")
FORM = "NAME:8x128,OTHER:8x1, or 8x128 for all inputs with two axes"


@dataclass(frozen=True)
class Shapes:
    """Shapes by the name of the input. Under the name "" is that of all other inputs with as many axes."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> "Shapes":
        """Read the form above. Names may have colons, and no commas.

        Raises:
            ValueError: it is another form, a size is 0, or a name comes twice.
        """
        found: dict[str, tuple[int, ...]] = {}
        for part in text.split(","):
            match = SHAPE.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"shapes are written {FORM}; got {part.strip()[:80]!r} in {text[:200]!r}")
            name, sizes = match["name"] or "", tuple(int(size) for size in match["sizes"].split("x"))
            if 0 in sizes:
                raise ValueError(f"the shape {part.strip()!r} has a size of 0; sizes begin at 1")
            if name in found:
                raise ValueError(f"{text[:200]!r} gives {name or 'a shape for all inputs'} twice")
            found[name] = sizes
        return cls(found)

    def of(self, inputs: Mapping[str, Sequence[int | None]]) -> dict[str, tuple[int, ...]]:
        """The shapes of a graph's inputs.

        Args:
            inputs: the axes of each, None where any size will do. Those without such an axis need no shape.

        Raises:
            ValueError: an input has no shape, a name is unknown, or a shape does not fit the axes.
        """
        if unknown := sorted(set(self.shapes) - {"", *inputs}):
            raise ValueError(f"there is no input {', '.join(unknown)}; the graph has {', '.join(inputs) or 'none'}")
        found = {}
        for name, axes in inputs.items():
            shape = self.shapes.get(name)
            if shape is None and "" in self.shapes and len(self.shapes[""]) == len(axes):
                shape = self.shapes[""]
            if shape is None and None not in axes:
                continue
            written = shown(axes)
            if shape is None:
                raise ValueError(f"input {name} ({written}) varies and needs a shape: {name}:{example(axes)}")
            if len(shape) != len(axes) or any(axis not in (None, size) for axis, size in zip(axes, shape, strict=True)):
                if name not in self.shapes and None not in axes:
                    continue  # "8x128" was not meant for what is fixed
                raise ValueError(f"the shape {shown(shape)} does not fit input {name}, which is {written}")
            found[name] = shape
        return found

    def __str__(self) -> str:
        return ",".join(f"{name}:{shown(shape)}" if name else shown(shape) for name, shape in self.shapes.items())


def shown(axes: Sequence[int | None]) -> str:
    """Axes as people write them, with ? for any size: ?x128."""
    return "x".join("?" if axis is None else str(axis) for axis in axes) or "scalar"


def example(axes: Sequence[int | None]) -> str:
    """A shape that fits."""
    return "x".join("1" if axis is None else str(axis) for axis in axes)
