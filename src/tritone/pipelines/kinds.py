"""How models of each kind are searched."""

from collections.abc import Iterable
from functools import partial

from tritone.bundle.bundle import Bundle
from tritone.pipelines.embedding import EMBEDDINGS
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.ctc import BEST, CtcSearching, Says, ctc_outputs
from tritone.pipelines.searching.rescoring import Rescorer
from tritone.pipelines.searching.transducer import OUTPUTS, GraphNetwork, TransducerSearching
from tritone.search.options import SearchMode


def open_searching(bundle: Bundle, graph: Says, settings: SearchSettings | None, placement: Placement) -> Searching:
    """Open what a bundle's kind is searched with.

    Args:
        graph: the encoder, offline or streaming, or whatever else tells what there is of its outputs.
        settings: how to search; None takes greedy.
        placement: where the graphs run that the search itself needs.

    Raises:
        BundleError, InputError, LanguageModelError: see `Searching`.
    """
    if bundle.manifest.kind == "transducer":
        network = GraphNetwork(bundle, placement)
        return TransducerSearching(bundle, network, settings, threads=placement.threads, device=placement.device)
    return CtcSearching(
        bundle, graph, settings, threads=placement.threads, open_rescorer=partial(Rescorer, bundle, placement)
    )


def outputs_for(kind: str, mode: SearchMode, available: Iterable[str]) -> tuple[str, ...]:
    """What the encoder of a model of a kind is asked for to search in this way, of the outputs that there are."""
    if kind == "embedding":
        return EMBEDDINGS  # all there is to it
    if kind == "transducer":
        return OUTPUTS
    return ctc_outputs([mode], has_best=set(BEST) <= set(available))


def is_compiled(kind: str, mode: SearchMode) -> bool:
    """Whether searching in models of a kind in this way takes code that is compiled for the machine."""
    return kind == "transducer" or mode != "greedy"


def compile_search(kind: str, mode: SearchMode) -> None:
    """Compile what models of a kind need to be searched in this way, or load it from the cache."""
    if kind == "transducer":
        from tritone.search.transducer import compiling

        compiling.compile_search(mode)
    elif is_compiled(kind, mode):
        from tritone.search.ctc import prefix_beam

        prefix_beam.compile_search()
