"""A bundle that runs in this process."""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tritone.audio.files import read_audio
from tritone.audio.waveform import Waveform
from tritone.errors import OperatorError, TritoneError
from tritone.systems.outcome import Mode, Outcome, Outcomes, PartialListener, Playback
from tritone.systems.streams import play_files
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.pipelines.recognizer import Recognizer

DEFAULT_PILE = 32  # files that the model is given at once, so that it can batch them
PILE_S = 300.0  # and their audio, in seconds; short piles let results appear while others are being worked on
WARM_UP_S = 10.0  # longest silence of a warm-up


class BundleSystem:
    """See `System`. Whole files go to the model in piles of `concurrency`; of streams so many are open at once."""

    def __init__(
        self,
        recognizer: "Recognizer",
        *,
        name: str | None = None,
        playback: Playback | None = None,
        concurrency: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Take a recognizer.

        Args:
            name: what reports call it; the bundle's own name if not given.
            playback: how files are streamed; None recognises whole files.
            concurrency: `DEFAULT_PILE` files if not given, and one stream.
            options: what the recognizer was opened with, for `describe`.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.name = name or recognizer.bundle.manifest.name
        self.mode: Mode = "offline" if playback is None else "streaming"
        self.concurrency = concurrency or (DEFAULT_PILE if playback is None else 1)
        self._open: Recognizer | None = recognizer
        self._playback = playback
        self._options = dict(options or {})

    def describe(self) -> Mapping[str, str]:
        """The manifest has the checksums of all graphs and weights, so its own stands for the whole model."""
        bundle = self._recognizer.bundle
        manifest = hashlib.sha256((bundle.path / "manifest.json").read_bytes()).hexdigest()
        played = {}
        if self._playback is not None:
            played = {"chunk_ms": f"{self._playback.chunk_ms:g}", "realtime": str(self._playback.realtime).lower()}
        options = {key: str(value) for key, value in sorted(self._options.items())}
        return {
            "kind": "bundle",
            "bundle": str(bundle.path),
            "model": bundle.manifest.name,
            "manifest_sha256": manifest,
            "mode": self.mode,
            **played,
            **options,
        }

    def prepare(self, *, warm_up: bool = False) -> None:
        """See `System`; also raises `ValueError` for options that make no sense, such as an unknown device."""
        if self._playback is not None:
            streaming = self._recognizer.streaming
            if warm_up:
                streaming.warm_up()
        else:
            offline = self._recognizer.offline
            if warm_up:
                offline.warm_up(WARM_UP_S)

    def transcribe(self, paths: Iterable[str], on_partial: PartialListener | None = None) -> Outcomes:
        if self._playback is None:
            return self._offline(paths)
        return play_files(
            paths,
            lambda: closing(self._recognizer.stream()),
            sample_rate=self._recognizer.sample_rate,
            playback=self._playback,
            concurrency=self.concurrency,
            on_partial=on_partial,
        )

    def close(self) -> None:
        """Let go of the recognizer; its memory is free when nobody else holds it."""
        self._open = None

    @property
    def _recognizer(self) -> "Recognizer":
        if self._open is None:
            raise RuntimeError(f"{self.name} has been closed")
        return self._open

    def _offline(self, paths: Iterable[str]) -> Outcomes:
        rate = self._recognizer.sample_rate
        pile: list[tuple[int, str, Waveform]] = []
        waiting = 0
        for index, path in enumerate(map(str, paths)):
            try:
                waveform = read_audio(path, rate, max_audio_s=self._recognizer.max_audio_s)
            except TritoneError as error:
                yield Outcome(index=index, path=path, error=error)
                continue
            pile.append((index, path, waveform))
            waiting += len(waveform)
            if len(pile) >= self.concurrency or waiting > PILE_S * rate:
                yield from self._recognize(pile)
                pile, waiting = [], 0
        if pile:
            yield from self._recognize(pile)

    def _recognize(self, pile: Sequence[tuple[int, str, Waveform]]) -> list[Outcome]:
        rate = self._recognizer.sample_rate
        started = time.perf_counter()
        try:
            transcripts: Sequence[Transcript] = self._recognizer.transcribe([waveform for _, _, waveform in pile])
        except Exception as error:  # runtimes raise what they like
            if len(pile) > 1:  # whoever broke the pile shall break only its own place
                return [outcome for item in pile for outcome in self._recognize([item])]
            ((index, path, waveform),) = pile
            failure: TritoneError
            if isinstance(error, TritoneError):
                failure = error
            else:
                failure = OperatorError(f"{path}: recognition failed ({type(error).__name__}: {error})")
                failure.__cause__ = error
            return [Outcome(index=index, path=path, error=failure, audio_s=len(waveform) / rate)]
        took_s = time.perf_counter() - started
        total = sum(len(waveform) for _, _, waveform in pile)
        return [
            Outcome(
                index=index,
                path=path,
                transcript=transcript,
                audio_s=len(waveform) / rate,
                latency_s=took_s,
                compute_s=took_s * len(waveform) / total,
            )
            for (index, path, waveform), transcript in zip(pile, transcripts, strict=True)
        ]
