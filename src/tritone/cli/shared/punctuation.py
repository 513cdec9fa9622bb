"""The option --punctuation-model, and its model, opened."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tritone.kinds.punctuation.model import Punctuator

PunctuationModel = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="A model that writes punctuation (FunASR's ct-punc), a bundle or a folder; it runs here, in place "
        "of the rules of punctuate.",
    ),
]


def punctuator(name: str, device: str = "cpu") -> "Punctuator":
    """A punctuation model that runs here.

    Raises:
        TritoneError: there is none of that name, or it cannot be run here.
    """
    from tritone import load_as
    from tritone.kinds.punctuation.model import Punctuator

    opened = load_as(Punctuator, name, device=device)
    opened.punctuate("ok")  # opens the graph: what is wrong with it concerns all texts
    return opened
