"""How models of each kind are searched."""

from functools import partial
from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.pipelines.ctc import CtcSearching
from tritone.pipelines.rescoring import Rescorer
from tritone.pipelines.searching import Searching, SearchSettings
from tritone.pipelines.transducer import GraphNetwork, TransducerSearching
from tritone.runtime.graph import Graph
from tritone.search.options import SearchMode


def open_searching(bundle: Bundle, graph: Graph, settings: SearchSettings | None, place: dict[str, Any]) -> Searching:
    """Open what a bundle's kind is searched with.

    Args:
        graph: the encoder, offline or streaming.
        settings: how to search; None takes greedy.
        place: where graphs run: `runtime`, `precision`, `device` and `threads` as of `open_chosen`.

    Raises:
        BundleError, InputError, LanguageModelError: see `Searching`.
    """
    if bundle.manifest.kind == "transducer":
        network = GraphNetwork(bundle, **place)
        return TransducerSearching(bundle, network, settings, threads=place["threads"], device=place["device"])
    return CtcSearching(
        bundle, graph, settings, threads=place["threads"], open_rescorer=partial(Rescorer, bundle, **place)
    )


def is_compiled(kind: str, mode: SearchMode) -> bool:
    """Whether searching in models of a kind in this way takes code that is compiled for the machine."""
    return kind == "transducer" or mode != "greedy"


def compile_search(kind: str, mode: SearchMode) -> None:
    """Compile what models of a kind need to be searched in this way, or load it from the cache."""
    if kind == "transducer":
        from tritone.search.transducer import compiling

        compiling.compile_search(mode)
    elif is_compiled(kind, mode):
        from tritone.search import prefix_beam

        prefix_beam.compile_search()
