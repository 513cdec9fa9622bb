"""Nodes of a graph that a conversion leaves as they are."""

from collections.abc import Collection

import onnx

SHOWN = 12


def by_type_and_name(model: onnx.ModelProto, keep: Collection[str]) -> tuple[list[str], list[str]]:
    """Split what was chosen into types of operators and names of nodes.

    Raises:
        ValueError: the graph has no such nodes.
    """
    types = {node.op_type for node in model.graph.node}
    names = {node.name for node in model.graph.node}
    if unknown := sorted(set(keep) - types - names):
        known = sorted(types)
        raise ValueError(
            f"the graph has no operators or nodes called {', '.join(unknown)}; its operators are "
            f"{', '.join(known[:SHOWN])}{' ...' if len(known) > SHOWN else ''}"
        )
    return sorted(set(keep) & types), sorted(set(keep) & names - types)
