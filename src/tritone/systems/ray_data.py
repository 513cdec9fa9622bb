"""Models for pipelines of Ray Data: classes for `map_batches`, which need no Ray themselves.

    dataset.map_batches(
        TranscribeBatch, fn_constructor_kwargs={"bundle": "demo-asr"}, batch_size=32, concurrency=2, num_cpus=1
    )

A batch is a dictionary of columns. A row has a path or address in the column `path`, the bytes of an audio file in
`bytes`, or samples in `audio`, with their rate in `sample_rate` (Hz) if it is not the model's. Results are new columns.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Generic

import numpy as np

from tritone import Embedder, load, load_as
from tritone.audio.files import StoredAudio
from tritone.errors import InputError
from tritone.result import AnyResult, EmbeddingResult, TranscriptResult
from tritone.systems.stored_audio import audio_inputs

COLUMNS = ("path", "bytes", "audio")


class _Batches(Generic[AnyResult]):
    """What both classes share: rows become inputs of a model, results become columns."""

    def __init__(self, model: Any) -> None:
        self._model = model
        model.open(streaming=False)  # what is wrong with it concerns all batches

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with the columns of the results, and with `audio_s` (seconds) and `error` ("" if all is well).

        Raises:
            InputError: not exactly one of the columns `path`, `bytes` and `audio` is there.
        """
        given = [name for name in COLUMNS if name in batch]
        if len(given) != 1:
            raise InputError(
                f"a batch needs one column of {', '.join(COLUMNS)}; this one has {', '.join(batch) or 'no column'}"
            )
        rows, rates = list(batch[given[0]]), batch.get("sample_rate")
        by_rate: dict[int | None, list[int]] = {}  # files know their own
        for place in range(len(rows)):
            rate = None if given[0] != "audio" or rates is None else int(rates[place])
            by_rate.setdefault(rate, []).append(place)
        results: dict[int, AnyResult] = {}
        for rate, places in by_rate.items():
            inputs = [_input(given[0], rows[place], place) for place in places]
            with closing(self._model.run_iter(inputs, sample_rate=rate, concurrency=len(inputs))) as found:
                results.update((places[each.index], each) for each in found)
        ordered = [results[place] for place in range(len(rows))]
        errors = np.array(["" if each.error is None else str(each.error) for each in ordered], object)
        return {
            **batch,
            **self._columns(ordered),
            "audio_s": np.array([each.audio_s for each in ordered], np.float64),
            "error": errors,
        }

    def _columns(self, results: Sequence[AnyResult]) -> dict[str, Any]:
        raise NotImplementedError


class TranscribeBatch(_Batches[TranscriptResult]):
    """A model that adds the columns `text` and `confidence` to a batch; "" and NaN in rows that failed."""

    def __init__(self, bundle: str, **options: Any) -> None:
        """Load a bundle; options and errors as of `tritone.load`."""
        super().__init__(load(bundle, **options))

    def _columns(self, results: Sequence[TranscriptResult]) -> dict[str, Any]:
        found = [each.transcript for each in results]
        return {
            "text": np.array(["" if each is None else each.text for each in found], object),
            "confidence": np.array([np.nan if each is None else each.confidence for each in found], np.float64),
        }


class EmbedBatch(_Batches[EmbeddingResult]):
    """A model that adds the column `embedding`, (rows, dim) float32, to a batch; NaN in rows that failed."""

    def __init__(self, bundle: str, **options: Any) -> None:
        """Load a bundle; options and errors as of `tritone.load`."""
        super().__init__(load_as(Embedder, bundle, **options))

    def _columns(self, results: Sequence[EmbeddingResult]) -> dict[str, Any]:
        vectors = np.full((len(results), self._model.dim), np.nan, np.float32)
        for row, result in zip(vectors, results, strict=True):
            if result.embedding is not None:
                row[:] = result.embedding
        return {"embedding": vectors}


def _input(column: str, value: Any, place: int) -> Any:
    if column == "path":
        return next(audio_inputs([str(value)]))
    if column == "bytes":
        content = bytes(value)
        return StoredAudio(f"row {place}", lambda: content)
    return np.asarray(value)
