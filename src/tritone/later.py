"""What only some recordings, requests or models need: modules of ours that are imported when they are first used.

    if TYPE_CHECKING:
        from tritone.search.ctc import prefix_beam
    else:
        prefix_beam = later("prefix_beam")

A process that transcribes a file pays for what that file needs, and no request to a served model waits for an import:
the model's process calls `load` at its start, with the names that its kind says (`Kind.later`). Names are in one table,
which knows no module, so that imports still point down the packages.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = {
    # Of files: containers and pipes, and where recordings are cut that are longer than a model takes.
    "libav": "tritone.audio.libav",
    "pipes": "tritone.audio.pipes",
    "ahead": "tritone.longform.ahead",
    "cutting": "tritone.longform.cutting",
    "join": "tritone.longform.join",
    "recording": "tritone.longform.recording",
    # Of models: how those are found that are no bundle of this machine, by which schemes; tokens that stand for bytes.
    "prepare": "tritone.prepare.prepare",
    "steps": "tritone.prepare.steps",
    "schemes": "tritone.storage.known",
    "storage": "tritone.storage",
    "byte_level": "tritone.bundle.byte_level",
    # Of functions of Python.
    "function": "tritone.pipelines.generic.function",
    # Of streams.
    "live": "tritone.pipelines.live",
    "streaming": "tritone.pipelines.streaming",
    # Of detectors, by whose pauses recordings are cut.
    "activity": "tritone.longform.activity",
    "detector": "tritone.pipelines.detector",
    # Of models on a GPU; it imports torch, and loads with such a model.
    "on_device": "tritone.pipelines.searching.on_device",
    # Of large blocks of audio.
    "filling_kernel": "tritone.pipelines.graphs.filling_kernel",
    # Of searches: those that keep several hypotheses, language models, hotwords. Modules of kernels load numba.
    "addresses": "tritone.search.compiled.addresses",
    "compiling": "tritone.search.transducer.compiling",
    "decoder_sizes": "tritone.pipelines.searching.decoder_sizes",
    "expanded": "tritone.search.scoring.expanded",
    "fast_kernel": "tritone.search.transducer.fast_kernel",
    "fast_pruning": "tritone.search.transducer.fast_pruning",
    "greedy_kernel": "tritone.search.transducer.greedy_kernel",
    "marks": "tritone.search.beam.marks",
    "modified_kernel": "tritone.search.transducer.modified_kernel",
    "ngram": "tritone.search.ngram.model",
    "predictor_kernel": "tritone.search.transducer.predictor_kernel",
    "prefix_beam": "tritone.search.ctc.prefix_beam",
    "prefix_kernel": "tritone.search.ctc.prefix_kernel",
    "pruning": "tritone.search.beam.pruning",
    "rescoring": "tritone.pipelines.searching.rescoring",
    "rows": "tritone.search.transducer.rows",
    "scorer": "tritone.search.scoring.scorer",
    "top_tokens": "tritone.search.ctc.top_tokens",
    "traced": "tritone.search.transducer.traced",
}


class Later:
    """Stands for a module until something of it is used. Setting an attribute is not for it: tests patch the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = import_module(self._path)
        return getattr(self._module, name)


def later(name: str) -> Any:
    """The module of a name in `MODULES`, imported when something of it is first used."""
    return Later(MODULES[name])


def attributes(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are imported on first use; `dir` knows them before.

    Args:
        package: its `__name__`.
        names: the module of each name; none is a module of the package, which its import would put in its place.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(module, name, value)
        return value

    module: Any = sys.modules[package]
    module.__dir__ = lambda: sorted({*vars(module), *names})
    return attribute


def load(names: Iterable[str]) -> None:
    """Import modules of `MODULES` now, so that nobody waits for them later."""
    for name in names:
        import_module(MODULES[name])
