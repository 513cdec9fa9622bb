"""The weights of silero-vad in its ONNX files.

    silero_vad.onnx, 16000  ->  Weights

The file has one network for each sample rate, in the branches of an `If`. They differ in the sizes of the spectrum, and
their weights are found by the ends of their names, which are those of upstream's modules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tritone.errors import ExportError
from tritone.families.onnx.source import Source

Floats = npt.NDArray[np.float32]

PACKAGE = "silero-vad"
FILE = "silero_vad/data/silero_vad.onnx"  # in the package
WINDOWS = {16000: 256, 8000: 128}  # samples of a window of the spectrum, by sample rate in Hz
HIDDEN = 128  # of the LSTM
BASIS = "stft.forward_basis_buffer"
STRIDES = (1, 2, 2, 1)  # of the convolutions


@dataclass(frozen=True)
class Weights:
    """One network, by the names of upstream's modules.

    `basis` (2 * bins, 1, window): cosines and sines of the spectrum. `convolutions`: weight (out, in, 3) and bias of
    each. `weight_ih`, `weight_hh` (4 * hidden, hidden), `bias_ih`, `bias_hh` (4 * hidden,): of an LSTM cell of torch,
    its gates in the order input, forget, cell, output. `head` (1, hidden, 1), `head_bias` (1,): from its output to one
    number.
    """

    basis: Floats
    convolutions: tuple[tuple[Floats, Floats], ...]
    weight_ih: Floats
    weight_hh: Floats
    bias_ih: Floats
    bias_hh: Floats
    head: Floats
    head_bias: Floats

    @property
    def window(self) -> int:
        """Samples of a window of the spectrum; its hop is half of it."""
        return int(self.basis.shape[2])

    @property
    def bins(self) -> int:
        """Bands of the spectrum."""
        return int(self.basis.shape[0]) // 2

    @property
    def frame(self) -> int:
        """Samples from one probability to the next."""
        return 2 * self.window

    @property
    def context(self) -> int:
        """Samples before a frame that its probability depends on, and samples mirrored after it."""
        return self.window // 4

    @property
    def count(self) -> int:
        """Number of parameters."""
        layers = [array for layer in self.convolutions for array in layer]
        rest = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.head, self.head_bias)
        return sum(array.size for array in (*layers, *rest))


def installed_file() -> Path:
    """The ONNX file of the installed package silero-vad, which is not imported.

    Raises:
        ExportError: it is not installed, or has no such file.
    """
    try:
        path = Path(str(distribution(PACKAGE).locate_file(FILE)))
    except PackageNotFoundError as error:
        raise ExportError(
            f"the package {PACKAGE}, whose file is exported by default, is not installed: pip install {PACKAGE}, or "
            "give the path of its silero_vad.onnx"
        ) from error
    if not path.is_file():
        raise ExportError(f"the installed package {PACKAGE} has no {FILE}; give the path of its silero_vad.onnx")
    return path


def read_weights(source: Source, sample_rate: int) -> Weights:
    """The network for a sample rate.

    Raises:
        ExportError: the file has none, or other weights than silero-vad 5 and 6.
        ValueError: there is no such network for any model.
    """
    if sample_rate not in WINDOWS:
        raise ValueError(f"sample_rate must be {' or '.join(map(str, WINDOWS))} Hz, got {sample_rate}")
    window = WINDOWS[sample_rate]
    bins = window // 2 + 1
    tensors = dict(_tensors(source.model.graph))
    networks = {name.removesuffix(BASIS): array for name, array in tensors.items() if name.endswith(BASIS)}
    prefix = next((prefix for prefix, basis in networks.items() if basis.shape == (2 * bins, 1, window)), None)
    if prefix is None:
        found = ", ".join(str(list(basis.shape)) for basis in networks.values()) or "none"
        raise ExportError(
            f"{source.path} has no network of silero-vad for {sample_rate} Hz: its matrix of the spectrum should be "
            f"[{2 * bins}, 1, {window}], found {found}. Take the file silero_vad.onnx of the package {PACKAGE}, "
            "version 5 or 6."
        )
    sizes = ((bins, 128), (128, 64), (64, 64), (64, HIDDEN))

    def read(name: str, *shape: int) -> Floats:
        array = tensors.get(prefix + name)
        if array is None or array.shape != shape or array.dtype != np.float32:
            has = "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise ExportError(
                f"{source.path}: {name} should be float32 {list(shape)}, found {has}. It is not the network of "
                "silero-vad 5 or 6."
            )
        return array

    return Weights(
        basis=read(BASIS, 2 * bins, 1, window),
        convolutions=tuple(
            (read(f"{layer}.weight", after, before, 3), read(f"{layer}.bias", after))
            for layer, (before, after) in ((f"encoder.{i}.reparam_conv", size) for i, size in enumerate(sizes))
        ),
        weight_ih=read("decoder.rnn.weight_ih", 4 * HIDDEN, HIDDEN),
        weight_hh=read("decoder.rnn.weight_hh", 4 * HIDDEN, HIDDEN),
        bias_ih=read("decoder.rnn.bias_ih", 4 * HIDDEN),
        bias_hh=read("decoder.rnn.bias_hh", 4 * HIDDEN),
        head=read("decoder.decoder.2.weight", 1, HIDDEN, 1),
        head_bias=read("decoder.decoder.2.bias", 1),
    )


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, Floats]]:
    """All constants of a graph and of those inside of it, by name."""
    for tensor in graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], numpy_helper.to_array(attribute.t)
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _tensors(inner)
