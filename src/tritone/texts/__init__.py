"""Texts as people write them: numbers, capitals, punctuation, and words that nobody wants to read.

tidy(transcript, TextOptions(numbers=True, punctuate=True))
"it costs five dollars and twenty cents"  ->  "It costs $5.20."
"""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.texts.options import TextOptions
    from tritone.texts.tidy import tidy

__all__ = ["TextOptions", "tidy"]

__getattr__ = attributes(
    __name__,
    {
        "TextOptions": "tritone.texts.options",
        "tidy": "tritone.texts.tidy",
    },
)
