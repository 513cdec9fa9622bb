"""The part of the manifest of voices."""

from typing import Annotated

from pydantic import Field, model_validator

from tritone.bundle.part import KindPart, NonNegative, Parts

Character = Annotated[str, Field(min_length=1, max_length=1)]
PAD, BEGIN, END = "_", "^", "$"  # between phonemes, before them, behind them


class SynthesisPart(KindPart):
    """A voice, whose network takes the numbers of phonemes.

    `espeak_voice`: the voice of espeak-ng that writes texts in the International Phonetic Alphabet. `phonemes`: the
    numbers of each of its characters; those of `_`, `^` and `$` stand between phonemes, before them and behind them.
    `replaced`: what stands for characters that espeak-ng writes and the network does not know. `language`: as BCP 47
    has it. `noise`, `duration_noise`: of sounds and of their lengths, as parts of the deviation that was learnt.
    `length`: of sounds, times the learnt one. `speakers`: their numbers by name; empty where there is one.
    """

    key = "synthesis"
    espeak_voice: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9+_-]{0,63}$")]
    phonemes: Annotated[
        dict[Character, Annotated[tuple[NonNegative, ...], Field(max_length=8)]], Field(max_length=4096)
    ]
    replaced: Annotated[dict[Character, Annotated[str, Field(max_length=16)]], Field(max_length=4096)] = {}
    language: Annotated[str, Field(pattern=r"^([A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3})?$")] = ""
    noise: Annotated[float, Field(ge=0, le=10)] = 0.667
    duration_noise: Annotated[float, Field(ge=0, le=10)] = 0.8
    length: Annotated[float, Field(gt=0, le=10)] = 1.0
    speakers: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f,]{1,128}$")], NonNegative], Field(max_length=65536)
    ] = {}

    @model_validator(mode="after")
    def _has_marks(self) -> "SynthesisPart":
        if missing := [mark for mark in (PAD, BEGIN, END) if not self.phonemes.get(mark)]:
            raise ValueError(f"synthesis.phonemes has no number of {' '.join(missing)}")
        return self


PARTS = Parts(needs=("sample_rate",), own=(SynthesisPart,))
