"""Names of speakers, from enrolled voices.

name_speakers(voices, {"anna": vector}, cosine=0.4)  ->  [Name("anna", 0.72), None]
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tritone.diarization.assignment import best_pairs
from tritone.diarization.voices import Floats
from tritone.errors import InputError


@dataclass(frozen=True)
class Name:
    """An enrolled speaker, and the cosine with the enrolled voice."""

    name: str
    similarity: float


def name_speakers(voices: Floats, enrolled: Mapping[str, Floats], *, cosine: float) -> list[Name | None]:
    """The names of speakers; nobody is named twice, and the sum of cosines decides who gets which name.

    Args:
        voices: (speakers, dim), one mean embedding each, of any length but zero.
        enrolled: (dim,) each, by name, of the same model.
        cosine: from which a speaker may be somebody.

    Raises:
        InputError: enrolled voices are of another length.
    """
    found: list[Name | None] = [None] * len(voices)
    if not enrolled or not len(voices):
        return found
    names = list(enrolled)
    if (stored := len(enrolled[names[0]])) != voices.shape[1]:
        raise InputError(
            f"enrolled voices have {stored} values, those of the recording {voices.shape[1]}: they are of different "
            "speaker models. Use the model that the voices were enrolled with"
        )
    near = _units(voices) @ _units(np.stack([enrolled[name] for name in names])).T
    fits = near >= cosine
    for speaker, index in best_pairs(np.where(fits, near - cosine + 1e-9, 0.0)):
        if fits[speaker, index]:
            found[speaker] = Name(names[index], float(np.clip(near[speaker, index], -1, 1)))
    return found


def _units(vectors: Floats) -> Floats:
    result: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return result
