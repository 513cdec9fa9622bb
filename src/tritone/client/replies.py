"""The outputs that a request asks for, and how they are read.

    TextReply(details=True).outputs               ->  the tensors to ask for
    TextReply(...).read(model, reply, ...)        ->  Transcript
    EmbeddingReply().read(model, reply, ...)      ->  (dim,) float32
    ActivityReply().read(model, reply, ...)       ->  SpeechActivity
    SpokenReply(22050).read(model, reply, ...)    ->  Spoken
    TensorReply({"OUT": 2}).read(model, ...)      ->  {"OUT": array}

`reply` has the tensors of an answer: `as_numpy(name)` as tritonclient has it, and `raw(name)`, the bytes as they came.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.spoken import Spoken
from tritone.audio.waveform import widened
from tritone.client.endpoint import Endpoint
from tritone.errors import OperatorError
from tritone.transcript import Transcript

TEXT = "TRANSCRIPTS"
DETAILS = "DETAILS"
EMBEDDING = "EMBEDDINGS"
SEGMENTS = "SEGMENTS"
PROBABILITIES = "PROBABILITIES"
PCM = "PCM"  # samples as int16
SPOKEN = "SENTENCE"

Vector = npt.NDArray[np.float32]
Answer_co = TypeVar("Answer_co", covariant=True)


class Reply(Protocol[Answer_co]):
    """The outputs that a request asks for, and their reader."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that the model is asked for."""
        ...

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> Answer_co:
        """Read them; `is_final`: whether nothing follows, as more of a stream would.

        Raises:
            OperatorError: the model returned something else than the wire contract says.
        """
        ...


@dataclass(frozen=True)
class TextReply:
    """A transcript; without `details` only its text is filled in, that of the whole stream."""

    details: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return (TEXT, DETAILS) if self.details else (TEXT,)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> Transcript:
        values = [_string(model, name, reply, endpoint) for name in self.outputs]
        if not self.details:
            return Transcript(text=values[0], is_final=is_final)
        try:
            transcript = Transcript.from_dict(json.loads(values[1]))
            # The text of all segments is TRANSCRIPTS, that of the one under way is in DETAILS.
            history = values[0].removesuffix(transcript.text).rstrip(" ")
            return replace(transcript, history=history) if history else transcript
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OperatorError(
                f"{endpoint}: output {DETAILS} of model '{model}' is not the JSON of a transcript ({error!r}). "
                "Use a client and a server of the same Tritone version."
            ) from error


@dataclass(frozen=True)
class EmbeddingReply:
    """A vector."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return (EMBEDDING,)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> Vector:
        array = reply.as_numpy(EMBEDDING)
        # One row, with or without an axis for the rows.
        if array is None or array.size == 0 or array.size != array.shape[-1] or array.dtype.kind != "f":
            raise _unexpected(model, EMBEDDING, array, "one vector of numbers", endpoint)
        # tritonclient gives a view of the whole message, which must not live as long as the vector does.
        vector: Vector = array.reshape(-1).astype(np.float32)
        return vector


@dataclass(frozen=True)
class ActivityReply:
    """Where audio has speech; with `probabilities` also those of its frames.

    `speakers`: whether frames have a probability for each of some speakers.
    """

    probabilities: bool = False
    speakers: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return (SEGMENTS, PROBABILITIES) if self.probabilities else (SEGMENTS,)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> SpeechActivity:
        text = _string(model, SEGMENTS, reply, endpoint)
        found: Vector | None = None
        if self.probabilities:
            found = _numbers(model, PROBABILITIES, reply, endpoint, axes=2 if self.speakers else 1)
        try:
            return SpeechActivity.from_dict(json.loads(text), found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise OperatorError(
                f"{endpoint}: output {SEGMENTS} of model '{model}' is not the JSON of speech segments ({error!r}). Use "
                "a client and a server of the same Tritone version."
            ) from error


@dataclass(frozen=True)
class FramesReply:
    """Who talks in the frames of a window, (frames, speakers) of 0 and 1."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return (PROBABILITIES,)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> Vector:
        return _numbers(model, PROBABILITIES, reply, endpoint, axes=2)


@dataclass(frozen=True)
class SpokenReply:
    """A sentence of a text, as it was spoken. `sample_rate`: of the model, in Hz."""

    sample_rate: int
    types: ClassVar[Mapping[str, Any]] = {PCM: np.int16}
    """Of outputs that are no texts, for answers in JSON."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return (PCM, SPOKEN)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> Spoken:
        samples = reply.as_numpy(PCM)
        # One row, with or without an axis for the rows.
        if samples is None or samples.dtype != np.int16 or samples.size != samples.shape[-1]:
            raise _unexpected(model, PCM, samples, "one row of int16", endpoint)
        text = _string(model, SPOKEN, reply, endpoint)
        return Spoken(text=text, waveform=widened(samples.reshape(-1)), sample_rate=self.sample_rate)


@dataclass(frozen=True)
class TensorReply:
    """Arrays by name, without the axis of rows that a batch has. `axes`: how many each output has in the model."""

    axes: Mapping[str, int]

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.axes)

    def read(self, model: str, reply: Any, endpoint: Endpoint, *, is_final: bool) -> dict[str, npt.NDArray[Any]]:
        found = {}
        for name, axes in self.axes.items():
            array = reply.as_numpy(name)
            if array is None:
                raise _unexpected(model, name, array, "an array", endpoint)
            # A copy: tritonclient returns a view of the whole message.
            if array.dtype.name == "bfloat16":  # of ml_dtypes; without it tritonclient returns float32
                array = array.astype(np.float32)
            found[name] = np.array(array[0] if array.ndim == axes + 1 and len(array) == 1 else array)
        return found


def _numbers(model: str, name: str, reply: Any, endpoint: Endpoint, *, axes: int) -> Vector:
    """An output of one row of numbers, with or without an axis for the rows."""
    array = reply.as_numpy(name)
    own = () if array is None else array.shape[-axes:]
    if array is None or len(own) != axes or array.size != math.prod(own) or array.dtype.kind != "f":
        raise _unexpected(model, name, array, f"one {'matrix' if axes == 2 else 'vector'} of numbers", endpoint)
    found: Vector = array.reshape(own).astype(np.float32)  # a copy, as of an embedding
    return found


def _string(model: str, name: str, reply: Any, endpoint: Endpoint) -> str:
    """An output of one string."""
    # Of most requests texts are all there is to read; arrays of objects would take most of the time.
    if (raw := reply.raw(name)) is not None and len(raw) == 4 + int.from_bytes(raw[:4], "little"):
        return str(raw[4:], "utf-8")
    array = reply.as_numpy(name)
    if array is None or array.size != 1:
        raise _unexpected(model, name, array, "one string", endpoint)
    value = array.reshape(-1)[0]
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _unexpected(model: str, name: str, array: Any, needed: str, endpoint: Endpoint) -> OperatorError:
    shape = "nothing" if array is None else f"shape {array.shape}"
    return OperatorError(
        f"{endpoint}: model '{model}' answered {shape} for output {name}, {needed} is needed. "
        "Is it a model that `tritone build` wrote?"
    )
