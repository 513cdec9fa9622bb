"""What both protocols offer the client: inference as a future, and the list and configuration of models."""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.client.endpoint import Endpoint
from tritone.client.parameters import Parameter
from tritone.errors import OperatorError
from tritone.transcript import Transcript

WAVEFORM = "WAV"
NUM_SAMPLES = "WAV_LENS"
TEXT = "TRANSCRIPTS"
DETAILS = "DETAILS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request: a mono waveform for a model, alone or as a chunk of the stream `sequence_id`.

    `waveform` is (samples,) float32 in [-1, 1]. `batched` tells whether the model has a batch axis. `parameters`: what
    is asked of the search; of a stream, with its first chunk.
    """

    model: str
    waveform: npt.NDArray[np.float32]
    timeout_s: float
    details: bool = False
    batched: bool = True
    sequence_id: int = 0
    start: bool = False
    end: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (TEXT, DETAILS) if self.details else (TEXT,)

    def tensors(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """`WAV` and `WAV_LENS` as they travel.

        Nothing to say (an empty file, or END after all audio has been sent) becomes one padding sample with a length
        of 0, because an engine need not accept a tensor without elements.
        """
        waveform = np.ascontiguousarray(self.waveform if self.waveform.size else np.zeros(1), dtype=np.float32)
        num_samples = np.array([self.waveform.size], dtype=np.int32)
        return (waveform[None], num_samples[None]) if self.batched else (waveform, num_samples)


def read_reply(call: Call, reply: Any, endpoint: Endpoint) -> Transcript:
    """Turn a tritonclient `InferResult` into a transcript.

    Without DETAILS only its text is filled in, that of the whole stream.

    Raises:
        OperatorError: the model answered something else than the wire contract says.
    """
    values = []
    for name in call.outputs:
        array = reply.as_numpy(name)
        if array is None or array.size != 1:
            shape = "nothing" if array is None else f"shape {array.shape}"
            raise OperatorError(
                f"{endpoint}: model '{call.model}' answered {shape} for output {name}, one string is needed. "
                "Is it a model that `tritone build` wrote?"
            )
        value = array.reshape(-1)[0]
        values.append(value.decode("utf-8") if isinstance(value, bytes) else str(value))
    if not call.details:
        return Transcript(text=values[0], is_final=call.end or not call.sequence_id)
    try:
        transcript = Transcript.from_dict(json.loads(values[1]))
        # The text of all segments is TRANSCRIPTS, that of the one under way is in DETAILS.
        return replace(transcript, history=values[0].removesuffix(transcript.text).rstrip(" "))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OperatorError(
            f"{endpoint}: output {DETAILS} of model '{call.model}' is not the JSON of a transcript ({error!r}). "
            "Use a client and a server of the same Tritone version."
        ) from error


class Transport(Protocol):
    """One open connection to a server. Every method raises the errors of `tritone.errors`, never the library's own."""

    def infer(self, call: Call) -> "Future[Transcript]":
        """Send a request and return at once. Cancelling the future abandons the request."""
        ...

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        """Name, version, state and reason of every model in the server's repositories."""
        ...

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        """The configuration that the server runs a model with, in the JSON form of Triton's `ModelConfig`."""
        ...

    def close(self) -> None:
        """Give up what is in flight and free connections and threads."""
        ...
