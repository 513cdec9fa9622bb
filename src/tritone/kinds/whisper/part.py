"""The part of the manifest of Whisper models."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tritone.bundle.attending import AttendingPart
from tritone.bundle.part import TEXT, NonNegative, Parts, Positive


class WhisperPart(AttendingPart):
    """A Whisper model: sizes of its decoder, its special tokens, and what it never writes; see also `Attending`.

    `window_frames`: feature frames of a window, which is all that the encoder takes. `encoder_heads`: of the encoder;
    None in bundles of before.

    `sot`, `sot_prev`, `no_timestamps`, `timestamp_begin`: ids of tokens; the ids from `timestamp_begin` on are
    times, `time_precision` seconds apart. `no_speech`: the token whose probability after `sot` is that of silence.
    `languages`: ids by code, `tasks`: ids by name; both empty for models of English alone.

    `suppress_first`: ids that no text begins with. `max_initial_timestamp`: the latest first time, as a count of steps;
    None has no limit. `alignment_heads`: (layer, head) of the cross-attention that follows the audio, which times of
    words are made of.
    """

    key = "whisper"
    window_frames: Positive
    encoder_heads: Annotated[int, Field(gt=0, le=1024)] | None = None
    sot: NonNegative
    sot_prev: NonNegative | None = None
    no_timestamps: NonNegative
    timestamp_begin: NonNegative
    time_precision: Annotated[float, Field(gt=0, le=10)] = 0.02
    no_speech: NonNegative | None = None
    languages: dict[Annotated[str, Field(pattern=r"^[a-z]{2,8}$")], NonNegative] = {}
    tasks: dict[Literal["transcribe", "translate"], NonNegative] = {}
    suppress_first: tuple[NonNegative, ...] = ()
    max_initial_timestamp: NonNegative | None = None
    alignment_heads: tuple[tuple[NonNegative, NonNegative], ...] = ()

    @model_validator(mode="after")
    def _ids_in_order(self) -> "WhisperPart":
        if not self.eot < self.timestamp_begin or not self.no_timestamps < self.timestamp_begin:
            raise ValueError(
                f"times must have the largest ids: timestamp_begin is {self.timestamp_begin}, eot {self.eot}, "
                f"no_timestamps {self.no_timestamps}"
            )
        return self

    @model_validator(mode="after")
    def _heads_exist(self) -> "WhisperPart":
        if any(layer >= self.layers or head >= self.heads for layer, head in self.alignment_heads):
            raise ValueError(f"alignment_heads must be of {self.layers} layers with {self.heads} heads")
        return self

    def missing(self, frames: int) -> int:
        """Feature frames that a window with so many is filled up with."""
        return self.window_frames - frames

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that the vocabulary must have."""
        single = (self.sot, self.eot, self.sot_prev, self.no_timestamps, self.timestamp_begin, self.no_speech)
        found = [*(id for id in single if id is not None), *self.languages.values(), *self.tasks.values()]
        return (*found, *self.suppress, *self.suppress_first)


PARTS = Parts(needs=TEXT, own=(WhisperPart,))
