"""The demo itself: bundle -> repository -> Triton -> text, offline all clips at once, then streaming one by one.

Models of voices come after those of texts, on the same server.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tritone.audio.files import read_audio
from tritone.audio.waveform import Waveform
from tritone.bundle import resolve
from tritone.bundle.evaluation import read_evaluation
from tritone.client import Client
from tritone.client.playback import TextStream, play
from tritone.corpus.clips import Clip
from tritone.demo.score import Measured
from tritone.demo.voices import VoiceRun, compare_voices
from tritone.errors import OperatorError, TritoneError
from tritone.repository import BuiltModel, ModelOptions, build_repository
from tritone.server import ServerOptions, TritonServer
from tritone.server.watch import kept_alive
from tritone.transcript import Transcript

CONCURRENCY = 4
CHUNK_MS = 160.0
RETRIES = 8  # the last one within half a minute: time to load a model again that lost its process
DRAIN_S = 15  # five models, of which some have just compiled their search, take seconds to go


@dataclass(frozen=True)
class Trial:
    """What to serve, a folder or the name of a shipped bundle, and what to try it with."""

    bundle: str | Path
    clips: Sequence[Clip]


@dataclass(frozen=True)
class Run:
    """How one model did: `results` offline for every clip, then streaming.

    `wall_s`: of the offline part, during which up to `CONCURRENCY` requests were in flight.
    """

    model: str
    results: Sequence[Measured]
    wall_s: float


class Observer(Protocol):
    """Is called while the demo runs."""

    def stage(self, text: str) -> None:
        """Something that takes a moment begins."""

    def partial(self, clip: Clip, text: str) -> None:
        """The text of a stream so far."""

    def measured(self, result: Measured) -> None:
        """A clip is done in one mode."""


def run_demo(trials: Sequence[Trial], observer: Observer, *, realtime: bool = False) -> list[Run | VoiceRun]:
    """Serve bundles and transcribe clips offline and, if a bundle can, streaming. The server is gone afterwards.

    Speaker models compare the voices of the clips instead.

    Args:
        trials: bundles with the clips to transcribe and compare.
        observer: is called meanwhile.
        realtime: stream at the speed of speech.

    Returns:
        A run of each bundle: those that write text in their order, then those of voices.

    Raises:
        BundleError: a bundle is not one, or what was measured of it cannot be read.
        OperatorError: a bundle cannot be served, or the server did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="tritone-demo-") as folder:
        repository = Path(folder) / "repository"
        observer.stage(f"building a model repository from {' and '.join(Path(each.bundle).name for each in trials)}")
        options = ModelOptions(max_batch_size=8, max_streams=16)
        built = [(each, build_repository([each.bundle], repository, options=options)) for each in trials]
        texts = [(trial, models) for trial, models in built if models[0].mode != "embedding"]
        voices = [(trial, models[0].name) for trial, models in built if models[0].mode == "embedding"]
        ports = ServerOptions.on_free_ports(drain_s=DRAIN_S)
        observer.stage("starting Triton")
        with TritonServer(repository, ports) as server:
            with kept_alive(server, observer.stage) as watch:
                runs: list[Run | VoiceRun] = [
                    _measure(server.grpc_address, models, trial.clips, observer, realtime) for trial, models in texts
                ]
                for trial, model in voices:
                    evaluation = read_evaluation(resolve(trial.bundle))
                    observer.stage(
                        f"comparing the voices of {len(trial.clips)} clips with {model}, {CONCURRENCY} at a time"
                    )
                    with Client(server.grpc_address, retries=RETRIES) as client:
                        runs.append(compare_voices(client, model, trial.clips, evaluation, concurrency=CONCURRENCY))
            observer.stage("stopping Triton")
            if watch.leftovers:  # Triton would wait for the requests that were lost, and then complain
                server.kill()
            code = server.stop()
        if code and not watch.leftovers:
            words = "\n".join(server.tail[-10:])
            raise OperatorError(f"Triton ended with exit code {code}. Its last words:\n{words}")
    return runs


def _measure(
    address: str, built: Sequence[BuiltModel], clips: Sequence[Clip], observer: Observer, realtime: bool
) -> Run:
    names = {model.mode: model.name for model in built}
    results: list[Measured] = []
    wall_s = 0.0
    with Client(address, retries=RETRIES) as client:
        if "offline" in names:
            observer.stage(f"transcribing {len(clips)} clips with {names['offline']}, {CONCURRENCY} at a time")
            started = time.perf_counter()
            offline = _offline(client, names["offline"], clips)
            wall_s = time.perf_counter() - started
            for result in offline:
                observer.measured(result)
            results += offline
        if "streaming" in names:
            observer.stage(f"streaming {len(clips)} clips to {names['streaming']}")
            for clip in clips:
                result = _streaming(client, names["streaming"], clip, observer, realtime)
                observer.measured(result)
                results.append(result)
    return Run(names.get("offline") or names["streaming"], results, wall_s)


def _offline(client: Client, model: str, clips: Sequence[Clip]) -> list[Measured]:
    found = client.transcribe([clip.path for clip in clips], model, concurrency=CONCURRENCY)
    return [
        Measured(
            clip=clip,
            mode="offline",
            text=result.text if result.ok else "",
            error=None if result.ok else str(result.error),
            audio_s=result.audio_s,
            latency_s=result.latency_s,
            compute_s=result.latency_s,
        )
        for clip, result in zip(clips, found, strict=True)
    ]


def _streaming(client: Client, model: str, clip: Clip, observer: Observer, realtime: bool) -> Measured:
    try:
        rate = client.model(model, kind="streaming").sample_rate
        waveform = read_audio(clip.path, rate)
        audio_s = len(waveform) / rate
        with client.stream(model, chunk_ms=CHUNK_MS, resume=True) as opened:
            stream = _Timed(opened)
            for transcript in play(stream, [waveform], sample_rate=rate, chunk_ms=CHUNK_MS, realtime=realtime):
                observer.partial(clip, transcript.whole_text)
    except TritoneError as error:
        return Measured(clip=clip, mode="streaming", error=str(error))
    return Measured(
        clip=clip,
        mode="streaming",
        text=transcript.whole_text,
        audio_s=audio_s,
        latency_s=stream.finish_s,
        compute_s=stream.total_s,
    )


class _Timed:
    """A stream that keeps the time its answers took."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self.total_s = 0.0
        self.finish_s = 0.0  # from handing over the last audio to the final text
        self._last_s = 0.0

    def accept(self, samples: Waveform) -> Transcript:
        started = time.perf_counter()
        transcript = self._stream.accept(samples)
        self._last_s = time.perf_counter() - started
        self.total_s += self._last_s
        return transcript

    def finish(self) -> Transcript:
        started = time.perf_counter()
        transcript = self._stream.finish()
        took = time.perf_counter() - started
        self.total_s += took
        self.finish_s = self._last_s + took
        return transcript
