"""The classifier of ends of turns: has the speaker finished, by the last seconds of what was said?

classifier = await classifier_of(speech, TurnOptions(), 48000, caller)
await classifier.probability(samples)  ->  0.97

It is any served model with one input, so many samples of float32 as it hears at once, and one output, a probability.
`tritone export smart-turn` makes one.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tritone.audio.files import resample
from tritone.audio.waveform import Samples, Waveform, widened
from tritone.errors import OperatorError
from tritone.gateway.ask import TurnOptions
from tritone.gateway.callers import Caller
from tritone.gateway.refusal import GatewayRefusal

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech

BEFORE_S = 0.5  # audio before the speech of a turn that the classifier gets, too


@dataclass(frozen=True, kw_only=True)
class TurnClassifier:
    """A served classifier for one stream. `rate`: of the stream, `model_rate`: of its input `tensor`, both in Hz."""

    speech: "Speech"
    caller: Caller
    model: str
    tensor: str
    size: int
    model_rate: int
    rate: int

    @property
    def window_s(self) -> float:
        """How much audio it hears, in seconds."""
        return self.size / self.model_rate

    async def probability(self, samples: Samples) -> float:
        """The probability that the turn, of which `samples` (samples,) are the latest, has ended.

        Raises:
            OperatorError: the answer is none.
            TritoneError: the server failed.
        """
        window = await asyncio.to_thread(self._window, samples)  # resampling leaves the loop to others
        answer = await self.speech.classified(self.model, self.tensor, window, self.caller)
        value = float(answer.reshape(-1)[0])
        if not 0 <= value <= 1:
            raise OperatorError(
                f"model '{self.model}' answers {value:g}, which is no probability that a turn has ended"
            )
        return value

    def _window(self, samples: Samples) -> Waveform:
        """The last samples at the model's rate, (size,), with silence before them where there are fewer."""
        latest = samples[max(0, len(samples) - round(self.window_s * self.rate)) :]
        window = resample(widened(latest), self.rate, self.model_rate)[-self.size :]
        return np.pad(window, (self.size - len(window), 0))


async def classifier_of(speech: "Speech", wanted: TurnOptions, sample_rate: int, caller: Caller) -> TurnClassifier:
    """The classifier that is wanted, for a stream at `sample_rate` Hz.

    Raises:
        GatewayRefusal: there is no such model, or it is of another form.
        RetryError: the server cannot be asked.
    """
    info = await speech.turn_model(wanted.model)
    inputs, outputs = list(info.inputs.items()), list(info.outputs.values())
    if len(inputs) == len(outputs) == 1 and not info.is_sequence:
        ((name, taken),), (made,) = inputs, outputs
        if (taken.dtype, made.dtype) == ("FP32", "FP32") and len(taken.dims) == 1 and made.dims == (1,):
            (size,) = taken.dims
            if size > 0:
                return TurnClassifier(
                    speech=speech,
                    caller=caller,
                    model=info.name,
                    tensor=name,
                    size=size,
                    model_rate=info.sample_rate,
                    rate=sample_rate,
                )
    raise GatewayRefusal(
        404,
        f"model '{info.name}' finds no ends of turns: one that does takes so many samples as it hears, FP32 [samples], "
        "and gives one probability, FP32 [1]",
        code="model_not_found",
    )
