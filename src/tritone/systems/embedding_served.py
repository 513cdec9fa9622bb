"""A speaker model on a Triton server, through the client."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from tritone.audio.waveform import Waveform
from tritone.systems.embedding import EmbeddingOutcome, EmbeddingOutcomes
from tritone.systems.read_ahead import read_ahead

if TYPE_CHECKING:
    from tritone.client import Client
    from tritone.client.models import ModelInfo

DEFAULT_CONCURRENCY = 64  # enough for the server to have a full batch waiting while it computes another


class ServedEmbedding:
    """See `EmbeddingSystem`. Closing it closes the client."""

    def __init__(
        self,
        client: "Client",
        model: str | None = None,
        *,
        name: str | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        window_s: float | None = None,
        shift_s: float | None = None,
    ) -> None:
        """Take a client.

        Args:
            model: which model; None takes the only one for embeddings.
            name: what reports call it; the model's own name if not given.
            concurrency: requests in flight.
            window_s, shift_s: as of `Client.embed`, in seconds; None leaves it to the model.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.name = name or model or str(client.endpoint)
        self.concurrency = concurrency
        self._named = name is not None
        self._client = client
        self._model = model
        self._window_s = window_s
        self._shift_s = shift_s

    @property
    def dim(self) -> int | None:
        """See `EmbeddingSystem`; the server is asked, once."""
        return self._info().dim

    def describe(self) -> Mapping[str, str]:
        """Of the model itself a server tells no more than its name: a new model under an old name looks the same.

        Its address does not count: a server may move.
        """
        windows = {"window_s": self._window_s, "shift_s": self._shift_s}
        asked = {key: f"{value:g}" for key, value in windows.items() if value is not None}
        return {"kind": "server", "model": self._model or self._info().name, **asked}

    def prepare(self, *, warm_up: bool = False) -> None:
        """See `EmbeddingSystem`. Served models have warmed up before they are ready."""
        info = self._info()
        if not self._named:
            self.name = info.name

    def embed(self, paths: Iterable[str]) -> EmbeddingOutcomes:
        info = self._info()
        sent: dict[int, tuple[int, str]] = {}  # by its place among what was sent
        places = itertools.count()
        unread: deque[EmbeddingOutcome] = deque()
        with closing(read_ahead(map(str, paths), info.sample_rate)) as recordings:

            def waveforms() -> Iterator[Waveform]:
                for each in recordings:
                    if each.waveform is None:
                        unread.append(EmbeddingOutcome(index=each.index, path=each.path, error=each.error))
                    else:
                        sent[next(places)] = each.index, each.path
                        yield each.waveform

            answers = self._client.embed_iter(
                waveforms(),
                info.name,
                window_s=self._window_s,
                shift_s=self._shift_s,
                concurrency=self.concurrency,
            )
            for answer in answers:
                index, path = sent.pop(answer.index)
                yield EmbeddingOutcome(
                    index=index,
                    path=path,
                    embedding=answer.embedding,
                    error=answer.error,
                    audio_s=answer.audio_s,
                    latency_s=answer.latency_s,
                )
                while unread:
                    yield unread.popleft()
            yield from unread

    def close(self) -> None:
        self._client.close()

    def _info(self) -> "ModelInfo":
        return self._client.model(self._model, kind="embedding")
