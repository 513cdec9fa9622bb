"""ONNX graphs computed in numpy by ONNX's own reference implementation: slow, and every operator rounds as typed.

onnxruntime computes float16 in float32 on a CPU and rounds the weights alone, so a drift measured with it is too small,
and numbers that float16 does not have are not found. Here every result of an operator is rounded, and products are
summed in float32, as on a GPU.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from tritone.errors import ExportError
from tritone.families.convert.calls import Array, input_specs, tensor_specs
from tritone.families.convert.opset import OLDEST
from tritone.families.onnx.source import read_source
from tritone.runtime import TensorSpec


class ReferenceGraph:
    """A graph in numpy; has what comparing graphs needs."""

    def __init__(self, path: Path) -> None:
        """Open a graph.

        Raises:
            ExportError: it cannot be read, or has operators that the reference implementation does not know.
        """
        model = read_source(path, oldest=OLDEST).model
        self.inputs: Mapping[str, TensorSpec] = input_specs(model)
        self.outputs: Mapping[str, TensorSpec] = tensor_specs(model.graph.output)
        try:
            self._evaluator = ReferenceEvaluator(model)
        except Exception as error:  # of many kinds, for an operator that it lacks
            raise ExportError(f"ONNX's reference implementation cannot open {path}: {str(error)[:300]}") from error

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the graph on host arrays and return the named outputs."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers beyond float16, which the result shows
            return list(self._evaluator.run(list(outputs), dict(inputs)))
