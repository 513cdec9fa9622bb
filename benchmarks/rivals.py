"""Other CTC beam searches, for comparison: each takes log-probabilities and gives token ids.

They are no dependencies of Tritone. Install them apart, and name the folder with `--rivals`:

    pip install --target DIR pyctcdecode flashlight-text
    pip install --target DIR https://github.com/kpu/kenlm/archive/master.zip    (needs a C++ compiler and cmake)
"""

import importlib
import importlib.util
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posteriors import BLANK, LogProbs, Speech

LM_WEIGHT = 0.5
WORD_BONUS = 1.0
UNKNOWN = 10.0  # log10 units that an unknown word costs beside its language model score
FLASHLIGHT_THRESHOLD = 25.0  # as its examples have it: hypotheses this much worse than the best are dropped
NO_LIMIT = 1e9


def use_folder(folder: Path | None) -> None:
    """Let what is installed in a folder be imported, after everything that is installed properly."""
    if folder is not None:
        sys.path.append(str(folder.resolve()))


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


class Flashlight:
    """The lexicon-free decoder of flashlight-text (C++) with ZeroLM: `beam` hypotheses, `beam` tokens a frame, sums."""

    def __init__(self, speech: Speech, beam: int) -> None:
        decoder = importlib.import_module("flashlight.lib.text.decoder")
        options = decoder.LexiconFreeDecoderOptions(
            beam_size=beam,
            beam_size_token=beam,
            beam_threshold=FLASHLIGHT_THRESHOLD,
            lm_weight=0.0,
            sil_score=0.0,
            log_add=True,
            criterion_type=decoder.CriterionType.CTC,
        )
        self._decoder = decoder.LexiconFreeDecoder(options, decoder.ZeroLM(), BLANK, BLANK, [])

    def __call__(self, log_probs: LogProbs) -> list[int]:
        frames, vocab = log_probs.shape
        [best, *_] = self._decoder.decode(log_probs.ctypes.data, frames, vocab)
        said = np.array(best.tokens[1:-1])  # a start and an end that are no frames
        changed = np.concatenate(([True], said[1:] != said[:-1]))
        return [int(token) for token in said[changed] if token != BLANK and token >= 0]


class Pyctcdecode:
    """pyctcdecode with its own pruning, or without any: `exact` looks at as much as ours does, and takes far longer."""

    def __init__(self, speech: Speech, beam: int, arpa: Path | None = None, exact: bool = False) -> None:
        package = importlib.import_module("pyctcdecode")
        self._speech, self._beam = speech, beam
        self._limits = {"beam_prune_logp": -NO_LIMIT, "token_min_logp": -NO_LIMIT} if exact else {}
        self._decoder = package.build_ctcdecoder(
            speech.labels,
            kenlm_model_path=None if arpa is None else str(arpa),
            unigrams=None if arpa is None else speech.words,
            alpha=LM_WEIGHT,
            beta=WORD_BONUS,
            unk_score_offset=-UNKNOWN,
        )

    def text(self, log_probs: LogProbs) -> str:
        [best, *_] = self._decoder.decode_beams(log_probs, beam_width=self._beam, **self._limits)
        return str(best[0])

    def __call__(self, log_probs: LogProbs) -> list[int]:
        return self._speech.tokens(self.text(log_probs))


_worker: Any = None


class Processes:
    """A search in two processes: these libraries keep the interpreter's lock. Log-probabilities are there already."""

    def __init__(self, search: Any, batch: Sequence[LogProbs], count: int) -> None:
        global _worker
        _worker = (search, batch)
        self._size = len(batch)
        self._pool = multiprocessing.get_context("fork").Pool(count)

    def __call__(self) -> list[list[int]]:
        return self._pool.map(_work, range(self._size), chunksize=1)

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


def _work(row: int) -> list[int]:
    search, batch = _worker
    found: list[int] = search(batch[row])
    return found
