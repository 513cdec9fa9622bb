"""The weights of a stateless predictor and its joiner, read off their programs, for kernels that search by themselves.

    predictor program, joiner program  ->  StatelessWeights, or None where they compute anything else

The predictor is an embedding of the last tokens, a grouped convolution, ReLU and a linear layer; the joiner a sum,
tanh and a linear layer. Source: decoder.py and joiner.py of icefall's recipes for zipformers and conformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PREDICTOR = ("ge", "unsqueeze", "clamp", "embedding", "to", "mul", "transpose", "conv1d", "select", "relu", "linear")
JOINER = ("add", "tanh", "to", "linear")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class StatelessWeights:
    """Predictor and joiner as tables and matrices.

    `tables` (context, vocab, width) float32: what each token of the context adds to the sum before ReLU. `projection`
    (width, dim) and `output` (dim, vocab) are transposed, in the programs' half precision like their biases.
    """

    tables: Tensor
    projection: Tensor
    projection_bias: Tensor
    output: Tensor
    output_bias: Tensor

    def predict(self, contexts: Tensor) -> Tensor:
        """Contexts (rows, context) -> vectors (rows, dim) float32, as the predictor's program computes them."""
        present = (contexts >= 0).unsqueeze(2)
        parts = [table[ids] for table, ids in zip(self.tables, contexts.clamp(min=0).T, strict=True)]
        hidden = (torch.stack(parts, 1) * present).sum(1).to(self.projection.dtype).relu()
        return torch.addmm(self.projection_bias, hidden, self.projection).to(torch.float32)

    def join(self, frames: Tensor, vectors: Tensor) -> Tensor:
        """(rows, dim) both -> logits (rows, vocab) float32, as the joiner's program computes them."""
        joined = torch.tanh(frames + vectors).to(self.output.dtype)
        return torch.addmm(self.output_bias, joined, self.output).to(torch.float32)


def stateless_weights(predictor: Any, joiner: Any) -> StatelessWeights | None:
    """Read the weights off two `builder.Program`s; None where there is none, or it is of another form or in float32."""
    if predictor is None or joiner is None:
        return None
    first, second = _tensors(predictor, PREDICTOR), _tensors(joiner, JOINER)
    if first is None or second is None or len(first) != 4 or len(second) != 2:
        return None
    (embedding, conv, projection, projection_bias), (output, output_bias) = first, second
    if output.dtype not in HALVES or any(each.dtype != output.dtype for each in (*first, output_bias)):
        return None
    groups = conv.shape[0] // conv.shape[1]
    tokens = embedding.to(torch.float32).unsqueeze(2)
    tables = [
        torch.nn.functional.conv1d(tokens, conv[:, :, place : place + 1].to(torch.float32), groups=groups)[:, :, 0]
        for place in range(conv.shape[2])
    ]
    return StatelessWeights(
        tables=torch.stack(tables).contiguous(),
        projection=projection.T.contiguous(),
        projection_bias=projection_bias,
        output=output.T.contiguous(),
        output_bias=output_bias,
    )


def _tensors(program: Any, names: Sequence[str]) -> list[Tensor] | None:
    """The constants of a program in the order in which it uses them; None if its operators are not of these names."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    operators = [node.target.__name__.partition(".")[0] for node in calls]
    operators = [name for name in operators if name != "slice"]  # of everything
    if tuple(operators[: len(names)]) != tuple(names) or operators[len(names) :] != ["to"]:
        return None
    return [
        program.constants[each.target] for node in calls for each in node.args if getattr(each, "op", "") == "get_attr"
    ]
