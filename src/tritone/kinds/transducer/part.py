"""The part of the manifest of transducers: the predictor and the joiner."""

from typing import Annotated

from pydantic import Field, model_validator

from tritone.bundle.manifest import State
from tritone.bundle.part import ASKED, MAX_COUNT, MAX_STATE_BYTES, TEXT, KindPart, Parts


class TransducerPart(KindPart):
    """The predictor and the joiner, which say what follows a frame and the tokens before it.

    `context_size`: tokens that the predictor sees. `start`: what they are before the first token; -1 is none at all,
    and has no vector. `max_symbols`: the most tokens of one frame, unless a request says otherwise.

    `states`: of a predictor that remembers all tokens (an LSTM): tensors that it hands from token to token, zeros
    before the first. `durations`: of a token-and-duration transducer (TDT): frames that a token or a blank may take, in
    the order of the joiner's last logits.
    """

    key = "transducer"
    context_size: Annotated[int, Field(gt=0, le=16)]
    start: tuple[Annotated[int, Field(ge=-1, le=MAX_COUNT)], ...]
    max_symbols: Annotated[int, Field(ge=1, le=10)] = 1
    states: Annotated[tuple[State, ...], Field(max_length=16)] = ()
    durations: Annotated[tuple[Annotated[int, Field(ge=0, le=1024)], ...], Field(max_length=256)] = ()

    @model_validator(mode="after")
    def _fit(self) -> "TransducerPart":
        if len(self.start) != self.context_size:
            raise ValueError(f"start has {len(self.start)} tokens, context_size is {self.context_size}")
        if self.states and self.context_size != 1:
            raise ValueError(f"a predictor with states sees one token at a time, context_size is {self.context_size}")
        if self.durations and not (self.states and any(self.durations)):
            raise ValueError("durations need a predictor with states, and one of them above 0")
        names = [state.name for state in self.states]
        if len(set(names)) < len(names) or "context" in names or any(state.is_history for state in self.states):
            raise ValueError(f"states of a predictor need names of their own and fixed shapes, got {names}")
        if (size := sum(state.num_bytes() for state in self.states)) > MAX_STATE_BYTES:
            raise ValueError(f"the states of one predictor take {size} bytes, at most {MAX_STATE_BYTES} are allowed")
        return self


PARTS = Parts(needs=TEXT, may_have=ASKED, own=(TransducerPart,))
