"""Requests of a model's own inputs, as bytes.

Target, Samples  ->  encode_samples  ->  Body
Target, Samples or waveforms  ->  encoded  ->  Body
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.utils import serialize_byte_tensor

from tritone.audio.waveform import Waveform
from tritone.client.parameters import Parameter
from tritone.loadtest.options import TENSORS
from tritone.loadtest.senders.wire import Body, Place, Target, Tensor, body_of, encode


class Input(NamedTuple):
    """An input of a sample: of bfloat16 `array` has the bits, of strings objects of type bytes."""

    name: str
    datatype: str
    array: npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A request of a model's own inputs. `outputs`: those that it asks for with how many classes; none asks for all."""

    inputs: tuple[Input, ...]
    parameters: tuple[tuple[str, Parameter], ...] = ()
    outputs: tuple[tuple[str, int], ...] = ()


def encode_samples(target: Target, samples: Sequence[Sample], *, place: Place | None = None) -> Body:
    """Write a request of some samples, one after the other along the axis of rows.

    Raises:
        ValueError: several for a model without that axis, or such that do not fit together.
    """
    first = samples[0]
    if len(samples) > 1 and not target.batched:
        raise ValueError(
            f"model '{target.model}' has no axis of rows, so a request holds one sample. Use batch size 1."
        )
    joined = []
    for index, (name, datatype, array) in enumerate(first.inputs):
        parts = [array, *(each.inputs[index].array for each in samples[1:] if len(each.inputs) == len(first.inputs))]
        if len(parts) < len(samples) or len({part.shape[1:] for part in parts}) > 1:
            shapes = ", ".join(sorted({str(list(part.shape)) for part in parts}))
            raise ValueError(
                f"samples of one request must have equal inputs, but {name} has {shapes}. Use batch size 1."
            )
        joined.append(Input(name, datatype, np.concatenate(parts) if len(parts) > 1 else array))
    if any((each.parameters, each.outputs) != (first.parameters, first.outputs) for each in samples):
        raise ValueError("samples of one request must have equal parameters and outputs. Use batch size 1.")
    tensors = []
    for name, datatype, array in joined:
        placed = None if place is None or datatype == "BYTES" else place(array)
        is_text = datatype == "BYTES" and array.size
        content = b"" if placed else serialize_byte_tensor(array).item() if is_text else array.tobytes()
        tensors.append(Tensor(name, datatype, list(array.shape), content, placed))
    body = body_of(target, tensors, (*target.parameters, *first.parameters), first.outputs)
    return replace(body, audio_s=(0.0,) * len(samples), output=TENSORS, has_many=target.usage == "answers")


def encoded(target: Target, members: Sequence[Waveform | Sample], place: Place | None = None) -> Body:
    """A request of some utterances, or of some samples."""
    if samples := [each for each in members if isinstance(each, Sample)]:
        return encode_samples(target, samples, place=place)
    return encode(target, [each for each in members if not isinstance(each, Sample)], place=place)


def num_bytes(target: Target, members: Sequence[Waveform | Sample]) -> int:
    """How many bytes the arrays of a request have."""
    if samples := [each for each in members if isinstance(each, Sample)]:
        return sum(each.array.nbytes for sample in samples for each in sample.inputs)
    return len(members) * max(len(each) for each in members if not isinstance(each, Sample)) * target.bytes_per_sample
