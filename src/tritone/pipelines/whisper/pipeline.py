"""Transcribing recordings of any length with a Whisper model, many of them together.

    waveforms (samples,) float32 in [-1, 1], options of each  ->  transcripts with segments and a language

What a recording asks of the network, one thing after the other, is its course (`course.py`); many of them are answered
together. What a recording gives does not depend on those that are decoded beside it.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.bundle.byte_level import ByteLevelBpe
from tritone.errors import BundleError, InputError, OperatorError, TritoneError
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.choice import choose, open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.isolation import attempt, prepared, values, with_options
from tritone.pipelines.kind import kind_of
from tritone.pipelines.whisper.course import Course, Model, Transcribing
from tritone.pipelines.whisper.draft import DraftModel, open_draft
from tritone.pipelines.whisper.identify import identifying
from tritone.pipelines.whisper.network import Network, features_of
from tritone.pipelines.whisper.options import DecodingOptions, check_options
from tritone.pipelines.whisper.stream import LiveStream
from tritone.pipelines.whisper.together import Together
from tritone.runtime.graph import DeviceGraph
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.pipelines.whisper.engine import Engine

LOGGER = logging.getLogger(__name__)
DEFAULT_MAX_AUDIO_S = 300.0
VARIABLE = "TRITONE_WHISPER_ENGINE"  # environment variable
LONG_S = (
    60.0  # recordings whose features take so long that whoever submits them does not wait: 2 s of two cores an hour
)
MOST_S = 12 * 3600.0  # of audio under way, whose features take 1.4 GB: more waits where its limits are
MAX_WINDOWS = {"cpu": 6, "cuda": 64}  # whose texts are written together


def engine_obstacle(bundle: Bundle, placement: Placement) -> str | None:
    """Why texts of a bundle cannot be written by the engine; None if they can."""
    runtimes = {choose(bundle, role, placement).runtime for role in ("encoder", "decoder")}
    if runtimes != {"torch"}:
        return f"its graphs are for {', '.join(sorted(runtimes))}; export it for runtime torch"
    if (part := bundle.manifest.find(WhisperPart)) is not None and part.encoder_heads is None:
        return "its manifest does not have encoder_heads; export it again"
    return None


class WhisperPipeline:
    """Transcribes whole recordings. Has no state between calls; may be called from several threads."""

    quick: ClassVar[Mapping[str, Any]] = {"temperature": (0.0,), "no_speech_threshold": None}  # options of a warm-up

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        options: DecodingOptions | None = None,
        on_device: bool | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        """Open the graphs of a bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest recording that callers let through, in seconds.
            options: how to transcribe where a call asks for nothing else.
            on_device: whether texts are written by the engine (`engine.py`), which takes programs of torch; None: on a
                GPU, where it can be, unless the environment variable `VARIABLE` says otherwise, 1 or 0.
            draft: a smaller model that guesses greedy texts ahead, on the host; all results stay the same.

        Raises:
            BundleError: the bundle has no Whisper model, or a graph that cannot be opened or does not fit its manifest,
                or no such draft.
            InputError: the model does not have what the options ask for.
            OperatorError: the device is not available, or the model should be compiled.
        """
        if placement.compile:
            raise OperatorError(f"{bundle.path} is {kind_of(bundle).noun}, which nothing compiles; leave out compile.")
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self.work = WorkLog(self.sample_rate)
        self.special, self.frame_shift = self._opened(placement)
        self._answers = self._answering(placement, on_device, draft)
        self._preparing_long = ThreadPoolExecutor(1, "whisper-features")
        self._lock = threading.Lock()
        self._waiting, self._under_way_s = 0, 0.0  # recordings that have not begun; audio of those that have not ended
        self.options = self.check_options(options or DecodingOptions())

    def _opened(self, placement: Placement) -> tuple[Any, int]:
        """Open what is the kind's own; returns the manifest's part, and the samples of a frame of windows."""
        bundle, special = self.bundle, self.bundle.manifest.find(WhisperPart)
        if special is None:
            raise BundleError(f"{bundle.path} is of kind {bundle.manifest.kind!r} and holds no Whisper model.")
        frame_shift = bundle.manifest.features.frame_shift
        self.bpe = ByteLevelBpe(bundle.vocabulary.tokens)
        self.model = Model(special, self.bpe, self.sample_rate, frame_shift)
        self._features_of: partial[Any] = partial(features_of, open_chosen(bundle, "features", placement)[1])
        return special, frame_shift

    def _answering(self, placement: Placement, on_device: bool | None, draft: DraftModel | None) -> "Together | Engine":
        """Who answers what recordings ask."""
        device = placement.device.partition(":")[0]
        usual = os.environ.get(VARIABLE, "0" if device == "cpu" else "1") == "1"
        if on_device or (on_device is None and usual):
            reason = engine_obstacle(self.bundle, placement)
            if reason is None and draft is not None:
                raise BundleError(
                    f"{self.bundle.path} writes its texts on the device, where there is no draft. Leave it out, or set "
                    f"{VARIABLE}=0 to have them written by the host."
                )
            if reason is None:
                from tritone.pipelines.whisper.device import open_device  # needs torch, and takes its time
                from tritone.pipelines.whisper.engine import Engine

                opened = open_device(self.bundle, placement)
                self._hold_features()
                vocab, preparing = len(self.bundle.vocabulary), placement.preparing
                return Engine(opened, self.special, vocab, self.work, self.frame_shift, preparing)
            if on_device:
                raise BundleError(f"{self.bundle.path} cannot be decoded on the device: {reason}.")
            LOGGER.warning("%s is decoded on the host, token by token: %s", self.bundle.path, reason)
        network = Network(self.bundle, placement, self.special)
        ahead = None if draft is None else open_draft(draft, self.bundle, placement)
        return Together(network, self.work, self.frame_shift, MAX_WINDOWS[device], ahead)

    def _hold_features(self) -> None:
        """Leave features on the device, where its own graph makes them."""
        from tritone.pipelines.whisper.device import held_features

        graph = self._features_of.args[0]
        if isinstance(graph, DeviceGraph):
            self._features_of = partial(held_features, graph, self.frame_shift)

    def check_options(self, options: DecodingOptions) -> DecodingOptions:
        """The same options, after making sure that the model has what they ask for; raises `InputError`."""
        return check_options(options, self.special, len(self.bundle.vocabulary))

    def run(
        self, waveforms: Sequence[Samples], options: Sequence[DecodingOptions | None] | None = None
    ) -> list[Transcript | TritoneError]:
        """Transcribe recordings of any lengths.

        Args:
            waveforms: each (samples,) float32 or int16 at `sample_rate`. What is shorter than 10 ms has no text.
            options: how to transcribe each; None takes the pipeline's own.

        Returns:
            For each its transcript, or the error that it caused: `InputError` where its options ask for what the model
            does not have, `AudioError` where its samples are not finite or far beyond [-1, 1].
        """
        return prepared(self._checked, self._transcribe, with_options(waveforms, options))

    @property
    def has_room(self) -> bool:
        """Whether `submit` should be given another recording: those before it have begun, and are not too long."""
        return self._waiting < self._answers.windows and self._under_way_s < MOST_S

    def submit(
        self,
        waveform: Samples,
        options: DecodingOptions | None,
        done: Callable[[Transcript | TritoneError], None],
        given_up: Callable[[], bool],
    ) -> None:
        """Transcribe one recording beside those under way. Its samples are not needed any more when this returns.

        Args:
            options: as of `run`.
            done: is called with what `run` returns for it, in any thread.
            given_up: whether nobody waits for it any more; asked now and then.
        """
        seconds = len(waveform) / self.sample_rate
        self._count(1, seconds)

        def ended(result: Transcript | TritoneError) -> None:
            self._count(0, -seconds)
            done(result)

        if seconds <= LONG_S:
            self._submit(waveform, options, ended, given_up)
        else:
            self._preparing_long.submit(self._submit, waveform.copy(), options, ended, given_up)

    def _count(self, waiting: int, seconds: float) -> None:
        with self._lock:
            self._waiting += waiting
            self._under_way_s += seconds

    def _submit(
        self,
        waveform: Samples,
        options: DecodingOptions | None,
        ended: Callable[[Transcript | TritoneError], None],
        given_up: Callable[[], bool],
    ) -> None:
        started = partial(self._count, -1, 0.0)
        course = attempt(lambda given: self.course(*given), (waveform, options))
        if isinstance(course, TritoneError):
            started()
            ended(course)
        else:
            self._answers.submit(course, ended, given_up, started)

    def transcribe(
        self, waveforms: Sequence[Samples], options: Sequence[DecodingOptions | None] | None = None
    ) -> list[Transcript]:
        """All transcripts that `run` returns; raises the first error among them instead."""
        return values(self.run(waveforms, options))

    def warm_up(self, max_audio_s: float = 1.0) -> None:
        """Transcribe silence, so that the first real request finds everything ready."""
        self._answers.warm_up()
        options = replace(self.options, max_tokens=2, **self.quick)
        self.transcribe([np.zeros(round(min(max_audio_s, 1.0) * self.sample_rate), np.float32)], [options])
        self.work.take()

    def _checked(self, item: tuple[Samples, DecodingOptions | None]) -> tuple[Samples, DecodingOptions, list[int]]:
        waveform, asked = item
        check_level(waveform, sample_rate=self.sample_rate)
        options = self.options if asked is None else self.check_options(asked)
        return waveform, options, self._encoded(options.prompt)

    def _encoded(self, prompt: str) -> list[int]:
        if not prompt.strip():
            return []
        try:
            return [id for id in self.bpe.encode(f" {prompt.strip()}") if id < self.special.eot]
        except ValueError as error:
            raise InputError(f"prompt: {error}") from error

    def _transcribe(
        self, jobs: Sequence[tuple[Samples, DecodingOptions, list[int]]]
    ) -> Sequence[Transcript | TritoneError]:
        # Those with the most to do come first, so that calls stay full to the end.
        order = sorted(range(len(jobs)), key=lambda index: -len(jobs[index][0]))
        results = self._answers.run(self._made(*jobs[index]) for index in order)
        found = dict(zip(order, results, strict=True))
        return [found[index] for index in range(len(jobs))]

    def course(self, waveform: Samples, options: DecodingOptions | None = None) -> Course:
        """What one recording asks, for an engine; raises what `run` returns for it."""
        return self._made(*self._checked((waveform, options)))

    def live(self, options: DecodingOptions | None = None) -> LiveStream:
        """A live stream without audio yet; raises `InputError` where its options ask for what the model has not."""
        options = self.options if options is None else self.check_options(options)
        if options.task == "identify":
            raise InputError("task identify is for whole recordings; transcripts of streams name the language anyway")
        return LiveStream(self.model, self._features_of, options, self._encoded(options.prompt))

    def answer(self, courses: Iterable[Course]) -> list[Any]:
        """The results of courses, or the errors that they caused."""
        return self._answers.run(courses)

    def _made(self, waveform: Samples, options: DecodingOptions, prompt: list[int]) -> Course:
        features, audio_s = self._features_of(waveform), len(waveform) / self.sample_rate
        if options.task == "identify":
            return identifying(self.model, features, options, audio_s)
        return Transcribing(self.model, features, options, prompt, audio_s).course()
