"""Numbers by the rules of nemo-text-processing (Apache-2.0), an optional package.

Its grammars are weighted automata (Zhang et al., "NeMo Inverse Text Normalization", 2021). They are read in a few
seconds once in a process, and take some 20 ms for a sentence, ten times more than ours; they know more forms.
"""

from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any

from tritone.errors import MissingDependencyError
from tritone.installing import pip_install
from tritone.texts.written import Written, matched

_lock = Lock()  # its automata say nothing about threads


LANGUAGES = ("en", "de", "es", "fr", "pt")  # of ours, those that the package has grammars of


def written_numbers(words: Sequence[str], language: str = "en") -> list[Written]:
    """Write the numbers in some spoken words, in lower case, as the package does; those of other languages stay words.

    Raises:
        MissingDependencyError: it is not installed.
    """
    if language not in LANGUAGES:
        return [Written(word, at, at + 1) for at, word in enumerate(words)]
    if not words:
        return []
    with _lock:
        return matched(words, _rules(language).inverse_normalize(" ".join(words), verbose=False))


@cache
def _rules(language: str) -> Any:
    try:
        from nemo_text_processing.inverse_text_normalization.inverse_normalize import InverseNormalizer
    except ImportError as error:
        raise MissingDependencyError(
            f"number_rules=nemo needs the package nemo-text-processing ({error}). Run {pip_install('texts')}, or "
            "leave number_rules out: our own rules need nothing."
        ) from error
    return InverseNormalizer(lang=language)
