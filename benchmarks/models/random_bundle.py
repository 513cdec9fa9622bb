"""One frame for bundles of random weights: files as upstream writes them, exported as users export theirs.

    a writer of checkpoints, a family's export  ->  bundle, and on the screen what its precisions changed

Speed does not depend on what a network has learnt, but the drift gate of an export does: random networks are far less
sure of their tokens than trained ones, so bf16 and fp16 move their probabilities beyond any limit that makes sense for
a model in use. Drift of random weights is therefore printed and not limited. Everything else an export checks stays
checked: float32 graphs must reproduce the network, and no graph may return numbers that are not finite.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tritone.bundle import Bundle
from tritone.families.export import frame, graph_files, networks
from tritone.families.export.noise import Distance
from tritone.families.export.report import ExportReport

RANDOM_BUNDLES = Path(tempfile.gettempdir()) / "tritone-random-bundles"
"""Where benchmarks keep random bundles from one run to the next."""


def export_random(
    export: Callable[..., ExportReport],
    write: Callable[[Path], Mapping[str, Path]],
    output: Path,
    *,
    checked: bool = True,
    **options: Any,
) -> Bundle:
    """Export a random model into the bundle `output`; an older bundle there is replaced.

    Args:
        export: a family's export.
        write: writes a checkpoint and what belongs to it to a folder, and returns the files by the names that they have
            among the arguments of `export`.
        checked: whether the graphs are run beside the network, as every export does. Without it an export of a large
            network takes seconds rather than minutes; not for figures of accuracy.
        options: further arguments of `export`; all but `force`.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    checking = nullcontext() if checked else unchecked()
    with tempfile.TemporaryDirectory(prefix="random-model-", dir=output.parent) as folder, checking:
        report = export(**write(Path(folder)), output=output, force=True, **options)
    for graph, drift in report.drifts.items():
        print(f"{graph} on audio, against float32: {drift} (random weights: not limited)", flush=True)
    return report.bundle


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, exports do not run what they write beside the network."""
    with (
        patch.object(graph_files.GraphFiles, "_measure", lambda *_, **__: None),
        patch.object(networks.Networks, "distance", lambda *_: Distance({}, 0.0)),
        patch.object(frame, "record", lambda bundle: bundle),
    ):
        yield


def kept_bundle(path: Path, export: Callable[[], Bundle]) -> Bundle:
    """The bundle at `path`, exported first if nothing is there yet."""
    if not path.is_dir():
        print(f"exporting {path.name} with random weights ...", flush=True)
        export()
    return Bundle.open(path)


def options_parser(description: str) -> argparse.ArgumentParser:
    """Options that all commands have that write a bundle of random weights."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, required=True, help="folder of the bundle")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--runtimes", type=names_of, default="onnxruntime", help="onnxruntime, torch, torchscript")
    parser.add_argument("--precisions", type=names_of, default="fp32", help="fp32, fp16, bf16 or several")
    parser.add_argument("--stages", action="store_true", help="features and network as graphs of their own too")
    return parser


def names_of(text: str) -> tuple[str, ...]:
    """Names separated by commas, as options have them."""
    return tuple(text.split(","))
