"""Other opsets: the version of ONNX's operators that a graph is written in.

    onnx.ModelProto in opset 17  ->  the same graph in opset 13 or 21

onnx.version_converter does it, one version at a time. Downwards it lacks steps for operators that only gained types
or attributes, such as Relu of opset 14, which is Relu of 13 and of bfloat16. Where every node of a graph means the same
in the older version by the operators' schemas, the number alone is changed. Operators that the older version does not
have, such as LayerNormalization before 17, are written as the operators that ONNX defines them by.
"""

from collections.abc import Iterator

import onnx
from onnx import defs, helper, inliner, version_converter

from tritone.errors import ExportError
from tritone.families.onnx.large import inner_graphs

ONNX = ("", "ai.onnx")

OLDEST = 7
"""The first opset that onnxruntime takes; the rest of Tritone wants 13."""


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators."""
    return max((each.version for each in model.opset_import if each.domain in ONNX), default=0)


def to_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """A copy in another opset.

    Raises:
        ExportError: an operator cannot be written in it; names the operator.
        ValueError: there is no such opset, or this Tritone does not take it.
    """
    newest = defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise ValueError(f"opset is {OLDEST} to {newest} with onnx {onnx.__version__}; got {opset}")
    result = onnx.ModelProto()
    result.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    while (seen := opset_of(result)) != opset:
        step = seen + 1 if seen < opset else seen - 1
        if step < seen:
            result = _without_new(result, seen)
        if step < seen and all(_is_same(node, seen) for node in _nodes(result)):
            _relabel(result, seen)
            continue
        try:
            result = version_converter.convert_version(result, step)
        except (RuntimeError, ValueError) as error:
            raise ExportError(
                f"the graph is in opset {opset_of(model)} and cannot be written in {opset}: onnx stops at "
                f"{seen} → {step} ({_reason(error)}). Export the model again with opset_version={opset}"
            ) from error
    least = helper.find_min_ir_version_for(result.opset_import, ignore_unknown=True)
    result.ir_version = least if opset < opset_of(model) else max(least, result.ir_version)
    return result


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in inner_graphs(model.graph):
        yield from graph.node


def _without_new(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """A graph without those operators of `opset` that came with it, as far as ONNX defines them by others."""
    new = {
        node.op_type
        for node in _nodes(model)
        if node.domain in ONNX and defs.has(node.op_type, opset) and not defs.has(node.op_type, opset - 1)
    }
    schemas = [defs.get_schema(name, opset) for name in sorted(new)]
    defined = [
        ("", each.name)
        for each in schemas
        if each.has_function or each.has_context_dependent_function  # type: ignore[attr-defined]
    ]
    if not defined:
        return model
    typed = onnx.shape_inference.infer_shapes(model)  # what they are defined by may depend on types
    for tensor in typed.graph.initializer:
        typed.graph.value_info.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        written = inliner.inline_selected_functions(typed, defined, inline_schema_functions=True)
    except RuntimeError:  # the step that follows says which operator it cannot take
        return model
    del written.graph.value_info[:]
    return written


def _reason(error: Exception) -> str:
    """What an assertion of onnx's C++ says, without where it is."""
    return str(error).strip().rpartition("failed: ")[2][:200]


def _is_same(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node means in `opset` - 1 what it means in `opset`, which its results are compared for as well."""
    if node.domain not in ONNX or not defs.has(node.op_type, opset):
        return True
    new = defs.get_schema(node.op_type, opset)
    if new.since_version < opset:
        return True
    if not defs.has(node.op_type, opset - 1):
        return False
    old = defs.get_schema(node.op_type, opset - 1)
    given = {each.name for each in node.attribute if not _adds_nothing(each, new, old)}
    given_inputs = [name for name in node.input if name]
    return (
        given <= set(old.attributes)
        and old.min_input <= len(given_inputs) <= len(node.input) <= old.max_input
        and old.min_output <= len(node.output) <= old.max_output
        and all(one.name == other.name for one, other, _ in zip(old.inputs, new.inputs, node.input, strict=False))
        and all(
            name in given or name not in new.attributes or _default(new.attributes[name]) == _default(attribute)
            for name, attribute in old.attributes.items()
        )
    )


def _adds_nothing(attribute: onnx.AttributeProto, new: defs.OpSchema, old: defs.OpSchema) -> bool:
    """Whether an attribute that the older operator lacks has the default that stands for what that one does."""
    known = new.attributes.get(attribute.name)
    if known is None or attribute.name in old.attributes or not known.default_value.name:
        return False
    return bool(helper.get_attribute_value(attribute) == helper.get_attribute_value(known.default_value))


def _relabel(model: onnx.ModelProto, opset: int) -> None:
    """Write the same operators in `opset` - 1."""
    for node in _nodes(model):
        if node.domain in ONNX and defs.has(node.op_type, opset):
            schemas = defs.get_schema(node.op_type, opset), defs.get_schema(node.op_type, opset - 1)
            kept = [each for each in node.attribute if not _adds_nothing(each, *schemas)]
            del node.attribute[:]
            node.attribute.extend(kept)
    for each in model.opset_import:
        if each.domain in ONNX:
            each.version = opset - 1


def _default(attribute: defs.OpSchema.Attribute) -> bytes:
    return bytes(attribute.default_value.SerializeToString())
