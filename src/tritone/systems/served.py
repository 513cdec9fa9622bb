"""A model on a Triton server, through the client."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from tritone.audio.files import Selection
from tritone.audio.read_ahead import read_ahead
from tritone.client.defaults import DEFAULT_CONCURRENCY, EMBEDDING_CONCURRENCY
from tritone.longform.longform import read
from tritone.result import ActivityResult, AnyResult, EmbeddingResult, TranscriptResult
from tritone.systems.stored_audio import audio_inputs
from tritone.systems.streams import PartialListener, Playback, play_files
from tritone.systems.system import Mode

if TYPE_CHECKING:
    from tritone.client import Client
    from tritone.client.models import Kind, ModelInfo
    from tritone.client.parameters import Search


class ServedSystem(Generic[AnyResult]):
    """A served model; `transcriber`, `embedder` and `activity_system` make one.

    The next files are decoded while requests are in flight. Closing it closes the client.
    """

    def __init__(
        self,
        client: "Client",
        model: str | None,
        *,
        kind: "Kind",
        send: Callable[..., Iterable[AnyResult]],
        request: Mapping[str, Any],
        described: Mapping[str, str],
        name: str | None,
        concurrency: int,
        playback: Playback | None = None,
    ) -> None:
        """Take a client.

        Args:
            model: which model; None takes the only one of its kind.
            send: the method of the client that sends whole files and yields results.
            request: its options, which `Client.stream` has too where the model is for streams.
            described: what decides the results besides the model, for `describe`.
            name: what reports call it; the model's own name if not given.
            concurrency: requests, or streams, in flight.
            playback: how files are streamed; None sends whole files.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.name = name or model or str(client.endpoint)
        self.mode: Mode = "offline" if playback is None else "streaming"
        self.concurrency = concurrency
        self.batch = 1  # a server makes batches of whatever comes
        self._named = name is not None
        self._client, self._model, self._kind = client, model, kind
        self._send, self._request, self._described = send, request, described
        self._playback = playback

    def describe(self) -> Mapping[str, str]:
        """A server reports no more of a model than its name: a new model under an old name looks the same."""
        return {"kind": "server", "model": self._model or self._info().name, **self._described}

    def prepare(self, *, warm_up: bool = False) -> None:
        """Find the model. Served models have warmed up before they are ready."""
        info = self._info()
        if not self._named:
            self.name = info.name

    def run(
        self, paths: Iterable[str | Selection], on_partial: PartialListener | None = None
    ) -> Generator[AnyResult, None, None]:
        info = self._info()
        pcm = self._client.pcm_of(info)
        if self._playback is not None:
            results: Any = play_files(
                paths,
                partial(self._client.stream, info.name, chunk_ms=self._playback.chunk_ms, **self._request),
                sample_rate=info.sample_rate,
                playback=self._playback,
                concurrency=self.concurrency,
                on_partial=on_partial,
                pcm=pcm is not False,
            )
            yield from results
            return
        # Long recordings are cut where they are transcribed; what embeds takes them whole.
        longest_s = info.max_audio_s if info.kind == "offline" else None
        opened = partial(read, sample_rate=None, wanted=info.sample_rate, longest_s=longest_s, pcm=pcm)
        with closing(read_ahead(audio_inputs(paths), opened, info.sample_rate)) as recordings:
            yield from self._send(recordings, info.name, concurrency=self.concurrency, **self._request)

    def close(self) -> None:
        self._client.close()

    def _info(self) -> "ModelInfo":
        return self._client.model(self._model, kind=self._kind)


def transcriber(
    client: "Client",
    model: str | None = None,
    *,
    name: str | None = None,
    playback: Playback | None = None,
    concurrency: int | None = None,
    details: bool = False,
    search: "Search | None" = None,
    resume: bool = False,
    vad: str | None = None,
) -> ServedSystem[TranscriptResult]:
    """A system that transcribes; see `Client.transcribe` for `details`, `search` and `vad`, and `ServedSystem`.

    `resume`, with `playback`: whether streams that their server lost are started again, as of `Client.stream`.
    """
    asked = {name: str(value) for name, value in sorted((search or {}).items())}
    played = {} if playback is None else playback.describe()
    mode: Mode = "offline" if playback is None else "streaming"
    own: dict[str, Any] = {"resume": True} if resume else {}
    if vad is not None and playback is None:
        own["vad"] = vad
        asked["vad"] = vad
    return ServedSystem(
        client,
        model,
        kind=mode,
        send=client.transcribe_iter,
        request={"details": details, "search": dict(search or {}), **own},
        described={"address": str(client.endpoint), "mode": mode, **played, **asked},
        name=name,
        concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
        playback=playback,
    )


def embedder(
    client: "Client",
    model: str | None = None,
    *,
    name: str | None = None,
    concurrency: int | None = None,
    window_s: float | None = None,
    shift_s: float | None = None,
) -> ServedSystem[EmbeddingResult]:
    """A system that embeds; see `Client.embed` for the windows, and `ServedSystem`.

    Its address is no part of its description: a server may move while a corpus is embedded.
    """
    windows = {"window_s": window_s, "shift_s": shift_s}
    return ServedSystem(
        client,
        model,
        kind="embedding",
        send=client.embed_iter,
        request=windows,
        described={key: f"{value:g}" for key, value in windows.items() if value is not None},
        name=name,
        concurrency=EMBEDDING_CONCURRENCY if concurrency is None else concurrency,
    )


def activity_system(
    client: "Client",
    model: str | None = None,
    *,
    name: str | None = None,
    concurrency: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> ServedSystem[ActivityResult]:
    """A system that finds speech in whole recordings; see `Client.detect` for the options, and `ServedSystem`."""
    return ServedSystem(
        client,
        model,
        kind="activity",
        send=client.detect_iter,
        request={"options": dict(options or {})},
        described={key: str(value) for key, value in sorted((options or {}).items())},
        name=name,
        concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
    )
