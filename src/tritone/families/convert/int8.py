"""ONNX graphs with int8 weights: only stored so, or multiplied in int8.

    int8-weights   stored as int8 with a scale per channel, computed in float32
    int8-dynamic   products of matrices in int8; each row of their inputs gets a scale when the graph runs
    int8-static    products and convolutions in int8; their inputs have scales from a calibration set

Static quantisation is onnxruntime's; `tritone.families.onnx.int8` has the dynamic one, whose rows are independent.
"""

import contextlib
import logging
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy.typing as npt
import onnx
import onnxruntime

from tritone.errors import ExportError
from tritone.families.convert.calls import InputFiles, input_specs
from tritone.families.convert.chosen import by_type_and_name
from tritone.families.onnx.int8 import quantise_products
from tritone.families.onnx.large import inner_graphs
from tritone.families.onnx.storage import compress

STATIC = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that have most of the arithmetic. Norms, softmax and sums stay float32."""


def store_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose weights of 2,048 numbers or more are stored as int8; runtimes widen them when they open it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in list(inner_graphs(copy.graph)):
        compress(graph, "int8")
    if copy == model:
        raise ValueError("the graph has no float32 weights that are large enough to be worth it")
    return copy


def multiply_int8(model: onnx.ModelProto, keep: Collection[str] = ()) -> onnx.ModelProto:
    """A copy that multiplies matrices in int8; `keep`: types or names of nodes whose products stay float32.

    Raises:
        ValueError: there is nothing to quantise, or nothing of a name in `keep`.
    """
    types, names = by_type_and_name(model, keep)
    weights = {name for node in model.graph.node if node.op_type in types or node.name in names for name in node.input}
    return quantise_products(model, keep=weights)


def calibrate(
    model: onnx.ModelProto, files: InputFiles, keep: Collection[str] = (), *, symmetric: bool = False
) -> onnx.ModelProto:
    """A copy that multiplies and convolves in int8, with ranges of activations from a calibration set.

    Args:
        files: the calibration set, inputs such as the graph will get; some hundred are enough.
        keep: types or names of nodes that stay float32.
        symmetric: activations are int8 around 0, as TensorRT wants them; otherwise uint8, which CPUs are fast at.

    Raises:
        ExportError: the graph fails with these inputs, or onnxruntime cannot quantise it.
        InputError: the files do not fit the graph.
        ValueError: there is nothing to quantise, or nothing of a name in `keep`.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    inputs = input_specs(model)
    calls = list(files.calls(inputs))

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._calls = iter(calls)

        def get_next(self) -> dict[str, npt.NDArray] | None:
            call = next(self._calls, None)
            return None if call is None else dict(call)

    types, names = by_type_and_name(model, keep)
    with tempfile.TemporaryDirectory(prefix="tritone-int8-") as folder, _quiet():
        prepared, quantised = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        fused = _fused(model, prepared)
        chosen = [each for each in STATIC if each not in types]
        if not any(node.op_type in chosen for node in fused.graph.node):
            raise ValueError(f"the graph has no {', '.join(chosen)} to quantise")
        try:
            quantize_static(
                prepared,
                quantised,
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                # CPUs without VNNI add two products of 8 bits in 16, which saturate: weights have 7 bits.
                reduce_range=True,
                activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=chosen,
                nodes_to_exclude=names,
                # TensorRT takes biases in float32 alone.
                extra_options={"ActivationSymmetric": symmetric, "QuantizeBias": not symmetric},
            )
        except Exception as error:  # its errors and those of onnxruntime have no common base
            raise ExportError(f"onnxruntime cannot quantise the graph: {str(error)[:500]}") from error
        return onnx.load(quantised)


def _fused(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Write the graph with folded constants and norms, as quantisation wants it, and with the types of all tensors."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fused = onnx.shape_inference.infer_shapes(onnx.load(path))
    onnx.save(fused, path)
    return fused


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log of onnxruntime's quantiser, which warns of every weight that has one axis."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
