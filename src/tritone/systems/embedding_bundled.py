"""A bundle with a speaker model that runs in this process."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from tritone.audio.waveform import Waveform
from tritone.errors import OperatorError, TritoneError
from tritone.systems.embedding import EmbeddingOutcome, EmbeddingOutcomes, Vector
from tritone.systems.read_ahead import read_ahead

if TYPE_CHECKING:
    from tritone.pipelines.embedder import Embedder

# Files are given to the model in piles, which it cuts into calls of similar length. The more there are to choose from,
# the less padding; what is in a pile is lost when the process is killed.
PILE_S = 240.0  # audio of a pile, in seconds
PILE_FILES = 512
WARM_UP_S = 10.0  # longest silence of a warm-up


class BundleEmbedding:
    """See `EmbeddingSystem`. The next files are decoded while the model computes."""

    def __init__(
        self, embedder: "Embedder", *, name: str | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        """Take an embedder.

        Args:
            name: what reports call it; the bundle's own name if not given.
            options: what the embedder was opened with, for `describe`.
        """
        self.name = name or embedder.bundle.manifest.name
        self._open: Embedder | None = embedder
        self._options = dict(options or {})

    @property
    def dim(self) -> int:
        """See `EmbeddingSystem`; the manifest tells."""
        return self._embedder.bundle.manifest.encoder.output_dim

    def describe(self) -> Mapping[str, str]:
        """The manifest has the checksums of all graphs and weights, so its own stands for the whole model.

        Where the bundle lies, how many threads compute and which device do not decide the vectors.
        """
        bundle = self._embedder.bundle
        part = bundle.manifest.embedding
        decisive = ("runtime", "precision", "window_s", "shift_s")
        return {
            "kind": "bundle",
            "model": bundle.manifest.name,
            "manifest_sha256": hashlib.sha256((bundle.path / "manifest.json").read_bytes()).hexdigest(),
            **({"mean_subtracted": "true"} if part is not None and part.mean_subtracted else {}),
            **{key: _text(self._options[key]) for key in decisive if self._options.get(key)},
        }

    def prepare(self, *, warm_up: bool = False) -> None:
        pipeline = self._embedder.pipeline
        if warm_up:
            pipeline.warm_up(WARM_UP_S)

    def embed(self, paths: Iterable[str]) -> EmbeddingOutcomes:
        embedder = self._embedder
        rate = embedder.sample_rate
        pile: list[tuple[int, str, Waveform]] = []
        waiting = 0
        # Closing it ends the decoders, also when the caller leaves the loop.
        with closing(read_ahead(map(str, paths), rate, max_audio_s=embedder.max_audio_s)) as recordings:
            for each in recordings:
                if each.waveform is None:
                    yield EmbeddingOutcome(index=each.index, path=each.path, error=each.error)
                    continue
                pile.append((each.index, each.path, each.waveform))
                waiting += len(each.waveform)
                if len(pile) >= PILE_FILES or waiting >= PILE_S * rate:
                    yield from self._embed(pile)
                    pile, waiting = [], 0
            if pile:
                yield from self._embed(pile)

    def close(self) -> None:
        """Let go of the embedder; its memory is free when nobody else holds it."""
        self._open = None

    @property
    def _embedder(self) -> "Embedder":
        if self._open is None:
            raise RuntimeError(f"{self.name} has been closed")
        return self._open

    def _embed(self, pile: list[tuple[int, str, Waveform]]) -> Iterator[EmbeddingOutcome]:
        rate = self._embedder.sample_rate
        started = time.perf_counter()
        rows: Sequence[Vector | TritoneError]
        try:
            rows = self._embedder.pipeline.run([waveform for _, _, waveform in pile])
        except Exception as error:  # runtimes raise what they like
            if len(pile) > 1:  # whoever broke the pile shall break only its own place
                for item in pile:
                    yield from self._embed([item])
                return
            failure = OperatorError(f"{pile[0][1]}: embedding failed ({type(error).__name__}: {error})")
            failure.__cause__ = error
            rows = [error if isinstance(error, TritoneError) else failure]
        took_s = time.perf_counter() - started
        for (index, path, waveform), row in zip(pile, rows, strict=True):
            outcome = EmbeddingOutcome(index=index, path=path, audio_s=len(waveform) / rate, latency_s=took_s)
            if isinstance(row, TritoneError):
                yield replace(outcome, error=row)
            else:
                yield replace(outcome, embedding=row)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
