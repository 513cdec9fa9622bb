"""The part of the manifest of encoder-decoders without windows of one length."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tritone.bundle.attending import NUM_FRAMES, AttendingPart
from tritone.bundle.part import MAX_COUNT, TEXT, NonNegative, Parts, Positive

Activation = Literal["gelu", "relu", "gated-silu"]
Slot = Literal["language", "target_language", "task", "punctuation", "word_times"]
Switch = tuple[NonNegative, NonNegative]


class EncoderDecoderPart(AttendingPart):
    """A decoder that attends to audio of any length up to `max_samples`, as Moonshine's and Canary's; see `Attending`.

    `max_positions`: encoder frames of so much audio. `form`: what its layers compute between two products, see
    `families.layers.text_decoder`; `silent`: ids that are no text.

    `prompt`: the tokens before a text, and what stands in their places: a token of `languages`, for the audio's and for
    the text's; or the first of two tokens for no, the second for yes, of `task` to whether these differ. `language`:
    the one that is taken where nobody names one, empty if the model has no choice. `times`: the first and the last id
    of the tokens that are times, before and after each word, `time_precision` seconds apart. `tokens_per_second`: the
    most of a text; None: no limit.
    """

    key = "encoder_decoder"
    max_samples: Positive
    max_positions: Positive
    form: Activation
    prompt: Annotated[tuple[NonNegative | Slot, ...], Field(min_length=1, max_length=64)]
    silent: tuple[NonNegative, ...] = ()
    languages: dict[Annotated[str, Field(pattern=r"^[a-z]{2,8}$")], NonNegative] = {}
    language: str = ""
    task: Switch | None = None
    punctuation: Switch | None = None
    word_times: Switch | None = None
    times: Switch | None = None
    time_precision: Annotated[float, Field(gt=0, le=10)] = 0.08
    tokens_per_second: Annotated[float, Field(gt=0, le=1000)] | None = None

    # What Whisper has and these models have not; no token is a time by Whisper's rules.
    no_speech: ClassVar[None] = None
    suppress_first: ClassVar[tuple[int, ...]] = ()
    alignment_heads: ClassVar[tuple[tuple[int, int], ...]] = ()
    timestamp_begin: ClassVar[int] = MAX_COUNT

    @model_validator(mode="after")
    def _has_what_its_prompt_needs(self) -> "EncoderDecoderPart":
        needed = {"language": self.languages, "target_language": self.languages}
        needed |= {name: getattr(self, name) for name in ("task", "punctuation", "word_times")}
        if lacking := [each for each in self.prompt if isinstance(each, str) and not needed[each]]:
            raise ValueError(f"the prompt has a place for {lacking[0]}, of which there are no tokens")
        if (self.language in self.languages) != bool(self.languages):
            raise ValueError(f"language is {self.language!r}, which is not one of languages")
        if (self.word_times is None) != (self.times is None) or (self.times and self.times[0] > self.times[1]):
            raise ValueError(f"times are {self.times} with word_times {self.word_times}; expected both, in order")
        if len(self.prompt) >= self.text_context:
            raise ValueError(f"the prompt has {len(self.prompt)} tokens, text_context is {self.text_context}")
        return self

    @property
    def sot(self) -> int:
        """The token that is read first."""
        [first, *_] = (each for each in self.prompt if isinstance(each, int))
        return first

    @property
    def no_timestamps(self) -> int:
        return self.eot

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return (NUM_FRAMES, *self.cross_names)

    def missing(self, frames: int) -> int:
        """Samples that a window with so many is filled up with: none."""
        return 0

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that the vocabulary must have."""
        given = (self.task, self.punctuation, self.word_times, self.times)
        switches = (id for each in given for id in each or ())
        prompt = (each for each in self.prompt if isinstance(each, int))
        return (self.eot, *prompt, *self.languages.values(), *switches, *self.silent, *self.suppress)


PARTS = Parts(needs=TEXT, own=(EncoderDecoderPart,))
