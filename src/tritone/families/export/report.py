"""What every export reports in the end: where a bundle came from, and how well its graphs follow the network."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Provenance
from tritone.families.export.drift import Movement

Choice: TypeAlias = str | int | float | bool | None
TORCH_PACKAGES = ("tritone", "torch", "onnx", "onnxscript")
ONNX_PACKAGES = ("tritone", "onnx", "onnxruntime")
"""What versions are kept of: by exports of networks, and of graphs that were there already."""


@dataclass(frozen=True)
class ExportReport:
    """What an export made and how well the stored graphs follow the torch network.

    `differences`: per graph, the largest difference from the float32 network over a test signal: of log-probabilities
    and hypotheses' scores in natural-log units, of a transducer's vectors and logits as they are, of embeddings as a
    share of their size. For compressed weights it shows what they lose. `drifts`: per graph in another precision than
    float32, what it changes on real audio. `parameters`: of the parts that were exported. `notes`: what was taken for
    granted and should be known.
    """

    bundle: Bundle
    parameters: int
    bytes: int
    differences: dict[str, float] = field(default_factory=dict)
    drifts: dict[str, Movement] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where the bundle is."""
        return self.bundle.path

    def lines(self, unit: str, original: str) -> list[str]:
        """The report for people; `unit` is of the differences from `original`."""
        return [
            f"{self.bundle.path}: {self.parameters / 1e6:.2f} M parameters, {self.bytes / 1e6:.2f} MB",
            *(
                f"  {graph}: largest difference from {original} {each:.2e} ({unit})"
                for graph, each in self.differences.items()
            ),
            *(f"  {graph} on audio, against float32: {drift}" for graph, drift in self.drifts.items()),
            *(f"note: {note}" for note in self.notes),
        ]


def bundle_bytes(bundle: Bundle) -> int:
    """The size of all files of a bundle."""
    return sum(bundle.file(name).stat().st_size for name in bundle.files)


def provenance(
    family: str,
    sources: Mapping[str, Path],
    options: Mapping[str, Choice],
    packages: Sequence[str] = TORCH_PACKAGES,
) -> Provenance:
    """The record of an export that is being made."""
    return Provenance(
        family=family,
        sources={key: _sha256(path) for key, path in sources.items()},
        versions={
            "python": platform.python_version(),
            **{package: found for package in packages if (found := _version(package))},
        },
        options=dict(options),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # it is there under another name, such as onnxruntime-gpu
        return None
