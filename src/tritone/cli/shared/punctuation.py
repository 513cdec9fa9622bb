"""The model of --punctuation-model, opened."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritone.pipelines.punctuation import Punctuator


def punctuator(name: str, device: str = "cpu") -> "Punctuator":
    """A punctuation model that runs here.

    Raises:
        TritoneError: there is none of that name, or it cannot be run here.
    """
    from tritone import load_as
    from tritone.pipelines.punctuation import Punctuator

    opened = load_as(Punctuator, name, device=device)
    opened.punctuate("ok")  # opens the graph: what is wrong with it concerns all texts
    return opened
