"""A bundle of a TensorRT plan of any use.

    model.plan, what lies beside it  ->  GraphFacts  ->  manifest.json, model.plan, labels

A plan runs on the GPU that it was built for alone, so it is not tried: its tensors are those of the ONNX graph that it
was built of.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import TensorProto

from tritone.bundle.manifest import Engine, Precision
from tritone.errors import ExportError
from tritone.families.graphs.onnx_file import TYPES
from tritone.families.graphs.proposal import GraphFacts, Proposal, TensorFacts, TensorOptions, propose
from tritone.families.graphs.writer import GraphReport, write_graph
from tritone.kinds.generic.part import ServingPart

PLAN = "model.plan"
Described = Mapping[str, Sequence[Any]]
"""Tensors by name: type, by ONNX's name of it, and axes, None for those that vary."""


def export_tensorrt(
    *,
    plan: Path,
    engine: Engine,
    inputs: Described,
    outputs: Described,
    rows: int | None,
    output: Path | None,
    precision: Precision = "fp32",
    name: str | None = None,
    options: TensorOptions | None = None,
    serving: ServingPart | None = None,
    propose_only: Callable[[Proposal], None] = lambda proposal: None,
) -> GraphReport | Proposal:
    """Make a bundle of a plan.

    Args:
        plan: the file.
        engine, inputs, outputs: as of `tritone.tensorrt.single.read_description`.
        rows: the most rows that the plan takes, None if it has no profile.
        output: the bundle's folder, a bundle there is replaced; None returns the proposal and writes nothing.
        precision: of the plan's arithmetic, for the manifest.
        name, options, serving, propose_only: as of `tritone.families.generic.onnx.export_onnx`.

    Raises:
        ExportError: a tensor or an option cannot be used, or the plan takes fewer rows; nothing is written then.
        BundleError: the output is in the way.
    """
    options = options or TensorOptions()
    if options.max_batch_size is None and rows is not None:
        options = replace(options, max_batch_size=rows)
    if rows is not None and (options.max_batch_size or 0) > rows:
        raise ExportError(
            f"--max-batch-size {options.max_batch_size}: {plan} takes up to {rows} rows. Build it again with a larger "
            "--max, or choose fewer rows"
        )
    built = f"{engine.library} {engine.version}" + (f" on {engine.gpu}" if engine.gpu else "")
    facts = GraphFacts(
        name=plan.stem,
        inputs=tuple(_facts(plan, *each) for each in inputs.items()),
        outputs=tuple(_facts(plan, *each) for each in outputs.items()),
        about=(plan.name, built, f"{plan.stat().st_size / 1e6:.2f} MB"),
    )
    proposal = propose(facts, options, None, name=name, output=output)
    propose_only(proposal)
    if output is None:
        return proposal
    return write_graph(
        lambda target: shutil.copyfile(plan, target),  # type: ignore[arg-type]
        PLAN,
        runtime="tensorrt",
        family="tensorrt",
        original=plan,
        proposal=proposal,
        output=output,
        serving=serving or ServingPart(),
        options={},
        packages=(),
        opened=None,
        precision=precision,
        weight_storage=precision,
        engine=engine,
    )


def _facts(plan: Path, name: str, described: Sequence[Any]) -> TensorFacts:
    try:
        kind, axes = described
        return TensorFacts(name, TYPES[TensorProto.DataType.Value(kind)], tuple(axes))
    except (KeyError, ValueError, TypeError) as error:
        raise ExportError(
            f"{plan.name}.json says of {name} {str(described)[:100]}, which is no type and axes. Build the plan again: "
            "tritone engine MODEL.onnx"
        ) from error
