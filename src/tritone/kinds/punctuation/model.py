"""Punctuation in process: texts without marks in, texts with marks out.

punctuator = tritone.load("ct-punc")
punctuator.punctuate("\u6211\u4eec\u90fd\u662f\u6728\u5934\u4eba\u4e0d\u4f1a\u8bb2\u8bdd")  ->  the same with marks
punctuator.transcript(transcript)                                  ->  a transcript with marks in text and words
"""

import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.vocabulary import read_tokens
from tritone.errors import BundleError, InputError, MissingDependencyError
from tritone.installing import pip_install
from tritone.kinds.punctuation.part import PunctuationPart
from tritone.pipelines.generic.pipeline import GenericPipeline
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.model import Model
from tritone.texts.marks import Cut, Marker
from tritone.transcript import Transcript

MAX_CHARACTERS = 1_000_000  # of a text


class Punctuator(Model):
    """Writes marks behind words. Its graph is opened when it is first needed; several threads may use it."""

    lacks = "writes no marks"
    instead = "a bundle of a punctuation model (ct-punc)"

    def __init__(self, bundle: Bundle, *, placement: Placement = ON_CPU) -> None:
        """Take an opened bundle.

        Args:
            placement: which graph is run, and where.

        Raises:
            BundleError: the bundle is of another kind, or its words are damaged.
            MissingDependencyError: the model knows words that jieba divides, which is not installed.
        """
        self._take(bundle)
        self._part: PunctuationPart = bundle.manifest.part(PunctuationPart)
        self._placement = placement
        self._lock = threading.Lock()
        tokens = read_tokens(bundle.file(self._part.words))
        self._ids = {token: id for id, token in enumerate(tokens)}
        if self._part.unknown >= len(tokens):
            raise BundleError(f"{bundle.path}: punctuation.unknown is {self._part.unknown} of {len(tokens)} words")
        self._silent = [id for id, mark in enumerate(self._part.marks) if mark.startswith("<")]
        cut = None if self._part.dictionary is None else words_of_jieba(bundle, self._part.dictionary)
        marks = ["" if mark.startswith("<") else mark for mark in self._part.marks]
        self._marker = Marker(marks, self._part.full_stop, self._choose, cut)

    def punctuate(self, text: str) -> str:
        """A text with marks and capitals; one that ends with a mark already stays as it is.

        Raises:
            InputError: it is too long.
            BundleError, OperatorError: the graph cannot be opened or run here.
        """
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"the text has {len(text)} characters, {MAX_CHARACTERS} are allowed; send it in parts")
        return self._marker.text(text)

    run = punctuate

    def run_iter(self, texts: Iterable[str]) -> Iterator[str]:
        """Texts with marks, one after the other."""
        return map(self.punctuate, texts)

    def stream(self, texts: Iterable[str]) -> Iterator[str]:
        """See `run_iter`."""
        return self.run_iter(texts)

    def transcript(self, transcript: Transcript) -> Transcript:
        """A transcript with marks in text and words; a partial one, whose sentence goes on, stays as it is."""
        return self._marker.transcript(transcript) if transcript.is_final else transcript

    @cached_property
    def _pipeline(self) -> GenericPipeline:
        return GenericPipeline(self.bundle, placement=self._placement)

    def _choose(self, words: Sequence[str]) -> list[int]:
        ids = np.array([[self._ids.get(word, self._part.unknown) for word in words]], np.int32)
        with self._lock:
            [found] = self._pipeline.run([{"inputs": ids, "text_lengths": np.array([[len(words)]], np.int32)}])
        if isinstance(found, Exception):
            raise found
        scores = np.array(found["logits"][0], np.float32)
        scores[:, self._silent] = -np.inf  # such as <unk>, which nobody writes
        labels: list[int] = scores.argmax(axis=1).tolist()
        return labels


def words_of_jieba(bundle: Bundle, dictionary: str) -> Cut:
    """What divides Chinese into the words of jieba's dictionary and a bundle's."""
    try:
        import jieba
    except ImportError as error:
        raise MissingDependencyError(
            f"{bundle.path} knows words of several characters, and jieba divides texts into them: "
            f"{pip_install('punctuation')}"
        ) from error
    tokenizer: Any = jieba.Tokenizer()
    jieba.setLogLevel("WARNING")
    # It would read a file of any user's in the folder for temporary files, and trust it.
    with tempfile.TemporaryDirectory() as tokenizer.tmp_dir, bundle.file(dictionary).open("rb") as lines:
        tokenizer.load_userdict(lines)
    return lambda text: list(tokenizer.cut(text, HMM=False))
