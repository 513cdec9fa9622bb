"""The part of the manifest of speaker models."""

from typing import Annotated

from pydantic import Field

from tritone.bundle.part import KindPart, Parts


class EmbeddingPart(KindPart):
    """One vector for each utterance.

    `mean_subtracted`: the graph has subtracted the mean of many speakers' embeddings already, and code that compares
    embeddings must not do it again. `threshold`: the cosine at the equal error rate on the data that the model card
    names; above it two recordings are taken for one speaker's. None where nobody measured it.
    """

    key = "embedding"
    mean_subtracted: bool = False
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None


PARTS = Parts(own=(EmbeddingPart,))
