"""An engine of one ONNX file, without a bundle.

    model.onnx, profiles  ->  model.plan, model.plan.json

The second file says what the plan was built with, and its inputs and outputs, which TensorRT shows only where a GPU is.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tritone.bundle.manifest import Engine
from tritone.errors import BundleError
from tritone.tensorrt import onnx_graph
from tritone.tensorrt.library import Tools
from tritone.tensorrt.shaped import ShapeProfile, default_profile
from tritone.tensorrt.trtexec import trtexec_line

PARTS = ("inputs", "outputs")


def build_engine(
    graph: Path,
    output: Path,
    *,
    tools: Tools,
    profiles: Sequence[ShapeProfile] = (),
    workspace_mib: int | None = None,
    timing_cache: Path | None = None,
    level: int | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Engine:
    """Build an engine of an ONNX file; it computes in the precision of the graph.

    Args:
        graph: the file; its weights lie beside it.
        output: the plan to write; `<output>.json` is written beside it.
        tools, workspace_mib, timing_cache, level: see `tritone.tensorrt.build_engines`.
        profiles: none is enough if no input varies.
        progress: is called with what is done next, and which `trtexec` would do the same.

    Raises:
        BundleError: the file is no ONNX graph.
        ExportError: TensorRT does not take the graph or its shapes.
        ValueError: shapes do not fit the inputs, or the graph quantises its activations as it runs.
    """
    inputs = onnx_graph.input_axes(graph)
    chosen = list(profiles) or [each for each in [default_profile(inputs, 0)] if each is not None]
    ranges = [profile.shapes(inputs) for profile in chosen]
    if not any(ranges):
        ranges = []
    progress(f"the same with trtexec: {trtexec_line(graph, output, ranges, level=level, workspace_mib=workspace_mib)}")
    builder = tools.builder(workspace_mib=workspace_mib, timing_cache=timing_cache, level=level, progress=progress)
    stamp = tools.stamp(tuple(map(str, chosen)))
    with tempfile.TemporaryDirectory(prefix=".tritone-engine-", dir=output.parent) as folder:
        progress(f"building {output.name}")
        plan, description = Path(folder) / output.name, Path(folder) / description_of(output).name
        plan.write_bytes(builder.build(onnx_graph.with_wide_weights(graph, Path(folder)), ranges))
        fields = {"engine": stamp.model_dump(), **onnx_graph.tensors(graph)}
        description.write_text(json.dumps(fields, indent=2), encoding="utf-8")
        description.replace(description_of(output))
        plan.replace(output)
    return stamp


def description_of(plan: Path) -> Path:
    """The file beside a plan with its stamp, inputs and outputs."""
    return plan.with_name(f"{plan.name}.json")


def read_description(plan: Path) -> tuple[Engine, Mapping[str, Mapping[str, tuple[str, Sequence[int | None]]]]]:
    """Read what lies beside a plan: its stamp; and `inputs` and `outputs`, by name (type of ONNX, axes).

    Raises:
        BundleError: there is nothing, or something else.
    """
    path = description_of(plan)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        described = {key: {name: (kind, axes) for name, (kind, axes) in fields[key].items()} for key in PARTS}
        return Engine(**fields["engine"]), described
    except FileNotFoundError as error:
        raise BundleError(
            f"{plan} has no {path.name} beside it, which says what it was built with and takes. Build the plan with "
            "`tritone engine MODEL.onnx`, which writes both"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path} is damaged ({str(error)[:200]}). Build the plan again: tritone engine") from error
