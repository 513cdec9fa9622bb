"""What a caller may choose of an export, each choice with its help: for the library's functions and the commands.

A family adds its own choices in a dataclass derived from these. Needs no torch, so that commands can show them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

from tritone.bundle.manifest import Precision, Runtime, WeightStorage
from tritone.options.fields import REQUIRED, option
from tritone.runtime.known import runtimes

USUAL = "onnxruntime"  # the runtime that graphs are for, unless others are asked for


def precisions_of() -> Mapping[Runtime, tuple[Precision, ...]]:
    """What graphs for a runtime can compute in, of those that networks are exported for."""
    return {name: each.precisions for name, each in runtimes().items() if each.precisions}  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """The choices that every export has. `progress`: called with what is done next."""

    output: Path = option(REQUIRED, "Folder of the bundle. An older bundle there is replaced.")
    name: str | None = option(None, "Name of the model. Default: the output folder's name.")
    progress: Callable[[str], None] = lambda step: None


@dataclass(frozen=True, kw_only=True)
class ExportOptions(BundleOptions):
    """The choices that every export of a network has.

    The first of `runtimes` is what the bundle runs on by default. Each runtime gets those of the `precisions` that it
    can have, see `precisions_of`. `weight_storage`: fp16 in programs of torch where int8 is asked for, fp32 in scripts;
    float32 arithmetic stays float32 in each. `max_drift`: see `Drift.moved`; None is `usual_drift`, the family's own
    limit.

    Raises:
        ValueError: a runtime or a precision is unknown, given twice, or the runtimes do not support the precision; or
            the limit of the drift is negative.
    """

    usual_drift: ClassVar[float] = (
        0.05  # docs/models/export-wenet.md and docs/models/export-icefall.md have what models show
    )

    stages: bool = option(
        False, "Export features and network as graphs of their own too, to be served as separate models."
    )
    weight_storage: WeightStorage = option(
        "fp32",
        "Storage of the weights: fp32, fp16 or int8. They are widened to fp32 when loaded.",
        flags=("--weights",),
    )
    runtimes: Sequence[Runtime] = option(
        (USUAL,),
        "Runtimes of the graphs: onnxruntime, torch, torchscript, tensorrt or several; the first is the default.",
    )
    precisions: Sequence[Precision] = option(
        ("fp32",),
        "Precision of the graphs, one or several: fp32, fp16, int8 (onnxruntime only), bf16 (torch and torchscript).",
        flags=("--precision",),
    )
    check_audio: Path | None = option(
        None,
        "Folder of audio files or wav.scp to check graphs with that do not compute in fp32. Default: the clips "
        "of the demo.",
    )
    max_drift: float | None = option(
        None, "Largest change of probability per frame, 0 to 1, of such a graph. Default: 0.05.", least=0
    )
    force: bool = option(False, "Write such a graph even if it drifts more.")
    lenient: bool = option(
        False,
        "Leave out a precision whose graphs drift more, and end well; otherwise that is an error, after a bundle "
        "without it was written.",
    )
    check: bool = option(
        True,
        "Compare each graph with the network before it is written; without, a graph that is wrong is not found.",
        flags=("--check/--no-check",),
    )

    def __post_init__(self) -> None:
        _check_choices("runtime", self.runtimes, tuple(precisions_of()))
        _check_choices("precision", self.precisions, get_args(Precision))
        if not self.drift_limit >= 0:
            raise ValueError(f"the limit of the drift must be 0 or more, got {self.drift_limit}")
        _ = self.planned

    @property
    def drift_limit(self) -> float:
        """The limit in use."""
        return self.usual_drift if self.max_drift is None else self.max_drift

    @property
    def planned(self) -> dict[Runtime, tuple[Precision, ...]]:
        """Which precisions to write for each runtime."""
        return plan(self.runtimes, self.precisions)


@dataclass(frozen=True, kw_only=True)
class RecognizerOptions(ExportOptions):
    """The choices that every export of a model that recognises speech has."""

    tail_padding_ms: float = option(
        0.0,
        "Silence that serving appends to every utterance, for audio cut right at the end of a word; 0 gives "
        "upstream's result.",
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions(ExportOptions):
    """The choices of networks made of convolutions, for which no products of int8 are written."""

    precisions: Sequence[Precision] = option(
        ("fp32",),
        "Precision of the graphs, one or several: fp32, fp16, bf16 (torch and torchscript).",
        flags=("--precision",),
    )

    def __post_init__(self) -> None:
        if "int8" in self.precisions:
            raise ValueError(
                "int8 is for products of matrices, and these networks are made of convolutions: take fp16, or store "
                "the weights as int8"
            )
        super().__post_init__()


def plan(asked: Sequence[Runtime], precisions: Sequence[Precision]) -> dict[Runtime, tuple[Precision, ...]]:
    """Which precisions to write for each runtime: those asked for that it can have, in the order given.

    Raises:
        ValueError: a runtime can have none of them, or a precision is for none of the runtimes.
    """
    able = precisions_of()
    possible = "; ".join(f"{runtime} has {', '.join(able[runtime])}" for runtime in asked)
    chosen = {runtime: tuple(each for each in precisions if each in able[runtime]) for runtime in asked}
    for runtime, found in chosen.items():
        if not found:
            raise ValueError(f"no graph for {runtime} can be in {' or '.join(precisions)}: {possible}")
    for precision in precisions:
        if not any(precision in found for found in chosen.values()):
            raise ValueError(f"no graph for {' or '.join(asked)} can be in {precision}: {possible}")
    return chosen


def _check_choices(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    if not given or len(set(given)) < len(given) or not set(given) <= set(known):
        raise ValueError(f"expected each {what} once, of {', '.join(known)}; got {', '.join(given) or 'none'}")
