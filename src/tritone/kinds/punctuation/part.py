"""The part of the manifest of models that write marks behind words."""

from typing import Annotated

from pydantic import Field, model_validator

from tritone.bundle.part import KindPart, NonNegative, Parts
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, ServingPart


class PunctuationPart(KindPart):
    """Marks that a model writes behind words.

    `marks`: what each of the network's labels stands for, "" for none; `full_stop`: the label of a sentence's end.
    `words`: the file of the words that it knows, in the order of their ids, of which `unknown` stands for all others.
    `dictionary`: a file of jieba's with words of its own, of a network that knows words of several characters.
    """

    key = "punctuation"
    marks: Annotated[tuple[Annotated[str, Field(max_length=4)], ...], Field(min_length=2, max_length=64)]
    full_stop: NonNegative
    words: Annotated[str, Field(min_length=1, max_length=255)] = "tokens.txt"
    unknown: NonNegative
    dictionary: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _has_a_full_stop(self) -> "PunctuationPart":
        if self.full_stop >= len(self.marks) or not self.marks[self.full_stop]:
            raise ValueError(f"full_stop is {self.full_stop}, which is none of the marks {list(self.marks)}")
        return self

    @property
    def tensors(self) -> GenericPart:
        """Those of its graph, the same in FunASR's and sherpa-onnx's files: ids (rows, words), lengths of rows, and
        scores (rows, words, marks).
        """
        return GenericPart(
            inputs=(
                GenericInput(name="inputs", type="INT32", dims=(-1,), sample=(8,)),
                GenericInput(name="text_lengths", type="INT32", dims=(1,), reshape=(), sample=(1,)),
            ),
            outputs=(GenericOutput(name="logits", type="FP32", dims=(-1, len(self.marks))),),
            max_batch_size=64,
        )

    @property
    def files(self) -> tuple[str, ...]:
        return (self.words,) if self.dictionary is None else (self.words, self.dictionary)


PARTS = Parts(needs=(), own=(GenericPart, ServingPart, PunctuationPart))
