"""A model on a Triton server, through the client."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tritone.systems.outcome import Mode, Outcome, Outcomes, PartialListener, Playback
from tritone.systems.streams import play_files

if TYPE_CHECKING:
    from tritone.client import Client
    from tritone.client.models import ModelInfo
    from tritone.client.parameters import Search

DEFAULT_CONCURRENCY = 8


class ServedSystem:
    """See `System`. Closing it closes the client."""

    def __init__(
        self,
        client: "Client",
        model: str | None = None,
        *,
        name: str | None = None,
        playback: Playback | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        details: bool = False,
        search: "Search | None" = None,
    ) -> None:
        """Take a client.

        Args:
            model: which model; None takes the only fitting one.
            name: what reports call it; the model's own name if not given.
            playback: how files are streamed; None sends whole files.
            concurrency: requests, or streams, in flight.
            details: also ask for tokens, words, times and confidences.
            search: what requests ask of the search, see `Client.transcribe`.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.name = name or model or str(client.endpoint)
        self.mode: Mode = "offline" if playback is None else "streaming"
        self.concurrency = concurrency
        self._named = name is not None
        self._client = client
        self._model = model
        self._playback = playback
        self._details = details
        self._search = dict(search or {})

    def describe(self) -> Mapping[str, str]:
        """Of the model itself a server tells no more than its name: a new model under an old name looks the same."""
        played = {} if self._playback is None else _describe(self._playback)
        model = self._model or self._info().name
        asked = {name: str(value) for name, value in sorted(self._search.items())}
        server = {"kind": "server", "address": str(self._client.endpoint), "model": model, "mode": self.mode}
        return {**server, **played, **asked}

    def prepare(self, *, warm_up: bool = False) -> None:
        """See `System`. Served models have warmed up before they are ready."""
        info = self._info()
        if not self._named:
            self.name = info.name

    def transcribe(self, paths: Iterable[str], on_partial: PartialListener | None = None) -> Outcomes:
        info = self._info()
        if self._playback is not None:
            chunk_ms = self._playback.chunk_ms
            yield from play_files(
                paths,
                lambda: self._client.stream(info.name, details=self._details, chunk_ms=chunk_ms, search=self._search),
                sample_rate=info.sample_rate,
                playback=self._playback,
                concurrency=self.concurrency,
                on_partial=on_partial,
            )
            return
        for result in self._client.transcribe_iter(
            paths, info.name, details=self._details, concurrency=self.concurrency, search=self._search
        ):
            yield Outcome(
                index=result.index,
                path=result.source,
                transcript=result.transcript,
                error=result.error,
                audio_s=result.audio_s,
                latency_s=result.latency_s,
                compute_s=result.latency_s,
            )

    def close(self) -> None:
        self._client.close()

    def _info(self) -> "ModelInfo":
        return self._client.model(self._model, kind=self.mode)


def _describe(playback: Playback) -> dict[str, str]:
    return {"chunk_ms": f"{playback.chunk_ms:g}", "realtime": str(playback.realtime).lower()}
