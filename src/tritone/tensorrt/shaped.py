"""The sizes that an engine of a generic model is built for: shapes of its inputs, as `trtexec` takes them.

"input_ids:1x1,mask:1x1", "input_ids:8x64,...", "input_ids:32x128,..."   ->  ShapeProfile
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.generic.part import GenericPart
from tritone.runtime.shapes import Shapes, example, shown
from tritone.tensorrt.profile import Range

Axes = Mapping[str, Sequence[int | None]]


@dataclass(frozen=True)
class ShapeProfile:
    """One range of shapes: the least, the usual and the most of every input that varies."""

    least: Shapes
    usual: Shapes
    most: Shapes

    @classmethod
    def parse(cls, least: str, usual: str, most: str) -> "ShapeProfile":
        """Read the three; see `Shapes.parse`."""
        return cls(Shapes.parse(least), Shapes.parse(usual), Shapes.parse(most))

    def __str__(self) -> str:
        return f"{self.least} {self.usual} {self.most}"

    def ranges(self, manifest: Manifest, role: Role, inputs: Axes) -> dict[str, Range]:
        """What this means for the graph of a bundle, see `shapes`.

        Raises:
            ValueError: see `shapes`; or the engine would take fewer rows than clients may send.
        """
        found, rows = self.shapes(inputs), manifest.part(GenericPart).max_batch_size
        for name, each in found.items():
            if rows and not each.least[0] <= 1 <= rows <= each.most[0]:
                raise ValueError(
                    f"the model takes 1 to {rows} rows, and {name} {each.least[0]} to {each.most[0]}: begin --min with "
                    f"1, and --max with {rows}"
                )
        return found

    def shapes(self, inputs: Axes) -> dict[str, Range]:
        """The shapes of the inputs that vary.

        Args:
            inputs: the axes of all inputs, None for those that vary.

        Raises:
            ValueError: an input that varies has no shape, or one does not fit; or they are in the wrong order.
        """
        least, usual, most = (shapes.of(inputs) for shapes in (self.least, self.usual, self.most))
        found = {}
        for name, axes in inputs.items():
            if None not in axes:
                continue
            each = Range(least[name], usual[name], most[name])
            if any(not a <= b <= c for a, b, c in zip(each.least, each.usual, each.most, strict=True)):
                raise ValueError(
                    f"shapes of {name} must not fall from --min over --opt to --max; got {shown(each.least)}, "
                    f"{shown(each.usual)} and {shown(each.most)}"
                )
            found[name] = each
        return found


def default_profile(inputs: Axes, max_batch_size: int) -> ShapeProfile | None:
    """A profile for a graph of which nothing but the number of rows varies; None if nothing varies.

    Raises:
        ValueError: other axes vary, whose sizes nobody else knows.
    """
    varying = {name: axes for name, axes in inputs.items() if None in axes}
    if not varying:
        return None
    if not max_batch_size or any(None in axes[1:] or axes[0] is not None for axes in varying.values()):
        shapes = ",".join(f"{name}:{example(axes)}" for name, axes in varying.items())
        listed = ", ".join(f"{name} ({shown(axes)})" for name, axes in varying.items())
        raise ValueError(f"these inputs vary: {listed}. Give the smallest shapes, like --min {shapes}, --opt and --max")
    sizes = (
        ",".join(f"{name}:{shown((rows, *axes[1:]))}" for name, axes in varying.items())
        for rows in (1, max(1, max_batch_size // 2), max_batch_size)
    )
    return ShapeProfile.parse(*sizes)


def most_rows(profiles: Sequence[str], inputs: Axes) -> int | None:
    """The most rows that an engine takes, by the texts of its profiles; None if the first axis of no input varies.

    Raises:
        ValueError: a text is no profile, or does not fit the inputs.
    """
    varying = [name for name, axes in inputs.items() if axes and axes[0] is None]
    if not varying or not profiles:
        return None
    most = [ShapeProfile.parse(*_three(text)).shapes(inputs) for text in profiles]
    return max(min(ranges[name].most[0] for name in varying) for ranges in most)


def _three(text: str) -> list[str]:
    parts = text.split(" ")
    if len(parts) != 3:
        raise ValueError(f"{text[:200]!r} is not the least, the usual and the largest shapes, with spaces between them")
    return parts
