"""Two graphs that should do the same, held against each other on real inputs.

"model", "model.fp16.onnx", inputs  ->  PrecisionCheck: drift per output, and which limits it breaks
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.errors import BundleError
from tritone.families.convert.calls import InputFiles, merged
from tritone.families.convert.drift import OutputDrift, Runnable, as_fields, compare
from tritone.families.convert.reference import ReferenceGraph
from tritone.families.convert.samples import samples
from tritone.runtime import open_graph
from tritone.runtime.known import runtimes

CHOICES = ("role", "runtime", "precision")
REFERENCE, ONNX = "reference", ".onnx"
KEYS = (*CHOICES, "device", "threads")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an output may be away from the first graph's; None limits nothing.

    `max_difference`, `max_mean`: absolute. `min_cosine`: of every row. `min_agreement`: share of equal top-1 of floats,
    of equal values of other types.
    """

    max_difference: float | None = None
    max_mean: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None

    def broken_by(self, drift: OutputDrift) -> list[str]:
        """Each limit that an output does not keep, in words. Numbers that became infinite or NaN break one always."""
        if not drift.is_finite:
            return [f"{drift.name} has numbers that are not finite, where the first graph's are"]
        found = []
        for what, value, limit in (
            ("the largest difference", drift.largest, self.max_difference),
            ("the mean difference", drift.mean, self.max_mean),
        ):
            if limit is not None and value is not None and value > limit:
                found.append(f"{what} of {drift.name} is {value:.3g}, the limit {limit:g}")
        for what, value, limit in (
            ("the least cosine", drift.cosine, self.min_cosine),
            ("the agreement", drift.agreement, self.min_agreement),
        ):
            if limit is not None and value is not None and value < limit:
                found.append(f"{what} of {drift.name} is {value:.6f}, the limit {limit:g}")
        return found


@dataclass(frozen=True, kw_only=True)
class PrecisionCheck:
    """What was compared, on how many calls, with what result. `broken`: limits that are not kept, in words."""

    first: str
    second: str
    calls: int
    drift: Sequence[OutputDrift]
    limits: Limits
    broken: Sequence[str]

    def fields(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "calls": self.calls,
            "outputs": [as_fields(each) for each in self.drift],
            "limits": vars(self.limits),
            "broken": list(self.broken),
            "ok": not self.broken,
        }


def check_precision(first: str, second: str, inputs: InputFiles | None, limits: Limits) -> PrecisionCheck:
    """Run two graphs on the same inputs and compare their outputs.

    Args:
        first, second: `PATH[,key=value...]`, see `open_side`; `first` is taken for the truth.
        inputs: None makes inputs from the shapes, which show little about precision.

    Raises:
        BundleError: a graph cannot be opened.
        ExportError: a graph fails, or its outputs are others.
        InputError: files of inputs do not fit both graphs.
        ValueError: `first` or `second` is written wrongly.
    """
    graphs = open_side(first), open_side(second)
    specs = merged(graphs[0].inputs, graphs[1].inputs)
    calls = inputs.calls(specs) if inputs else samples(graphs[0], specs)
    count, drift = compare(*graphs, calls)
    broken = [words for each in drift for words in limits.broken_by(each)]
    return PrecisionCheck(first=first, second=second, calls=count, drift=drift, limits=limits, broken=broken)


def open_side(text: str) -> Runnable:
    """Open a graph: a file of any runtime, or one graph of a bundle.

        model.onnx              encoder.fp16.pt2,device=cuda
        bundle,precision=fp16   demo-asr,role=encoder,runtime=onnxruntime
        model.fp16.onnx,runtime=reference       by ONNX's own implementation, see `ReferenceGraph`

    Raises:
        BundleError: it cannot be opened, or the bundle has several graphs that fit; says which.
        ValueError: it is written wrongly.
    """
    head, *rest = [part.strip() for part in text.split(",")]
    options = dict(part.partition("=")[::2] for part in rest)
    if unknown := sorted(set(options) - set(KEYS)) or [key for key, value in options.items() if not value]:
        raise ValueError(f"{text!r}: {', '.join(unknown)} is not key=value, with a key of {', '.join(KEYS)}")
    device, threads = options.pop("device", "cpu"), options.pop("threads", None)
    if threads is not None and not threads.isdecimal():
        raise ValueError(f"{text!r}: threads is a number, got {threads!r}")
    chosen: dict[str, Any] = {}
    path = Path(head)
    if path.suffix == ONNX and options == {"runtime": REFERENCE}:
        return ReferenceGraph(path)
    if path.suffix in {each.suffix for each in runtimes().values()} and path.is_file():
        if options:
            raise ValueError(f"{text!r}: {', '.join(options)} choose among the graphs of a bundle; {head} is one graph")
    else:
        bundle = Bundle.open(head)
        artifact = _chosen(bundle, options)
        path, chosen = bundle.file(artifact.files[0]), {"engine": artifact.engine, "runtime": artifact.runtime}
    return open_graph(path, device, None if threads is None else int(threads), **chosen)


def _chosen(bundle: Bundle, options: Mapping[str, str]) -> Artifact:
    artifacts = bundle.manifest.artifacts
    fitting = [each for each in artifacts if all(getattr(each, key) == value for key, value in options.items())]
    roles = {each.role for each in fitting}
    if len(roles) == 1:
        return fitting[0]
    held = "; ".join(",".join(f"{key}={getattr(each, key)}" for key in CHOICES) for each in fitting or artifacts)
    problem = "several graphs, choose one" if fitting else "no such graph"
    raise BundleError(f"{bundle.path} has {problem}: {held or 'none'}")
