"""The part of the manifest of Paraformers: phrases that the network itself takes."""

from typing import Annotated

from pydantic import Field

from tritone.bundle.part import ASKED, TEXT, KindPart, NonNegative, Parts, Positive


class HotwordsPart(KindPart):
    """Phrases that the network itself takes.

    `no_bias`: the id that it writes where there is none of them (SeACo); None if all of its tokens stand. `words`: a
    file of words and the tokens that they are written with, one word a line, as FunASR's `seg_dict`. `max_phrases`:
    that it can be told at once; None for as many as requests may have.
    """

    key = "hotwords"
    optional = True
    no_bias: NonNegative | None
    words: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    max_phrases: Positive | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return () if self.words is None else (self.words,)


PARTS = Parts(needs=TEXT, may_have=ASKED, own=(HotwordsPart,))
