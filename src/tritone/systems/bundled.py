"""A bundle that runs in this process."""

import hashlib
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from typing import Generic, cast

from tritone.audio.files import Selection
from tritone.pipelines.model import AudioModel
from tritone.result import AnyResult
from tritone.systems.stored_audio import audio_inputs
from tritone.systems.streams import PartialListener, Playback, play_files
from tritone.systems.system import Mode

WARM_UP_S = 10.0  # longest silence of a warm-up


class BundleSystem(Generic[AnyResult]):
    """A model in this process. It gets whole files in batches of `concurrency`; of streams so many are open at once."""

    def __init__(
        self,
        model: AudioModel[AnyResult],
        *,
        name: str | None = None,
        playback: Playback | None = None,
        concurrency: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Take a recognizer or an embedder.

        Args:
            name: what reports call it; the bundle's own name if not given.
            playback: how files are streamed; None takes whole files.
            concurrency: the model's usual batch if not given, and one stream.
            options: what the model was loaded with, for `describe`.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.name = name or model.bundle.manifest.name
        self.mode: Mode = "offline" if playback is None else "streaming"
        self.concurrency = concurrency or (model.batch_inputs if playback is None else 1)
        self.batch = self.concurrency if playback is None else 1
        self._open: AudioModel[AnyResult] | None = model
        self._playback = playback
        self._options = {key: _text(value) for key, value in sorted((options or {}).items()) if value is not None}

    def describe(self) -> Mapping[str, str]:
        """The manifest has the checksums of all graphs and weights, so its own stands for the whole model."""
        bundle = self._model.bundle
        played = {} if self._playback is None else self._playback.describe()
        return {
            "kind": "bundle",
            "model": bundle.manifest.name,
            "manifest_sha256": hashlib.sha256((bundle.path / "manifest.json").read_bytes()).hexdigest(),
            **self._model.deciding({"mode": self.mode, **played, **self._options}),
        }

    def prepare(self, *, warm_up: bool = False) -> None:
        pipeline = self._model.open(streaming=self._playback is not None)
        if warm_up and self._playback is None:
            pipeline.warm_up(WARM_UP_S)
        elif warm_up:
            pipeline.warm_up()

    def run(
        self, paths: Iterable[str | Selection], on_partial: PartialListener | None = None
    ) -> Generator[AnyResult, None, None]:
        if self._playback is None:
            return self._model.run_iter(audio_inputs(paths), concurrency=self.concurrency)
        model = self._model
        results = play_files(
            paths,
            lambda: closing(model.stream()),
            sample_rate=model.sample_rate,
            playback=self._playback,
            concurrency=self.concurrency,
            on_partial=on_partial,
        )
        return cast("Generator[AnyResult, None, None]", results)  # only what transcribes has streams

    def close(self) -> None:
        """Let go of the model; its memory is free when nobody else holds it."""
        self._open = None

    @property
    def _model(self) -> AudioModel[AnyResult]:
        if self._open is None:
            raise RuntimeError(f"{self.name} has been closed")
        return self._open


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
