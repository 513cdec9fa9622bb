"""Transcribing recordings of any length with a Whisper model, many of them together.

    waveforms (samples,) float32 in [-1, 1], options of each  ->  transcripts with segments and a language

A window of each recording is decoded at a time, all of them in common calls; where the next one begins depends on the
text of the last. What a recording gives does not depend on those that are decoded beside it.
Source: openai/whisper whisper/transcribe.py and decoding.py.
"""

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.bundle.byte_level import ByteLevelBpe
from tritone.bundle.manifest import Whisper
from tritone.errors import BundleError, InputError, OperatorError, TritoneError
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.pipelines.whisper.network import CachedDecoder, Heard, Network
from tritone.pipelines.whisper.options import ENGLISH, DecodingOptions, check_options
from tritone.pipelines.whisper.windows import FRAMES_PER_STEP, cut
from tritone.pipelines.whisper.words import words_of
from tritone.runtime.graph import Array
from tritone.search.whisper.alignment import token_starts
from tritone.search.whisper.decoding import Job, Written, decode, log_softmax
from tritone.search.whisper.rules import Rules
from tritone.transcript import Segment, Span, Transcript

DEFAULT_MAX_AUDIO_S = 300.0
MAX_WINDOWS = {"cpu": 6, "cuda": 64}  # in one call of the encoder, which takes 30 s for each, however short it is
KEEP_CONTEXT_BELOW = 0.5  # text of a window that was sampled at a higher temperature is no context for the next one


@dataclass(frozen=True)
class Text:
    """The accepted text of a window."""

    written: Written
    temperature: float
    compression_ratio: float


@dataclass
class Recording:
    """A recording under way.

    `seek`: the frame that its next window begins with. `tokens`: those of the prompt and of all segments so far, of
    which those from `context` on are put before the next window.
    """

    index: int
    features: Array
    options: DecodingOptions
    prompt: list[int]
    language: str = ""
    seek: int = 0
    tokens: list[int] = field(default_factory=list)
    context: int = 0
    log_probs: list[tuple[float, int]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    words: list[Span] = field(default_factory=list)

    @property
    def num_frames(self) -> int:
        return len(self.features)

    @property
    def is_done(self) -> bool:
        return self.seek >= self.num_frames


class WhisperPipeline:
    """Transcribes whole recordings. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        options: DecodingOptions | None = None,
    ) -> None:
        """Open the graphs of a bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest recording that callers let through, in seconds.
            options: how to transcribe where a call asks for nothing else.

        Raises:
            BundleError: the bundle has no Whisper model, or a graph that cannot be opened or does not fit its manifest.
            InputError: the model does not have what the options ask for.
            OperatorError: the device is not available, or the model should be compiled.
        """
        if bundle.manifest.whisper is None:
            raise BundleError(f"{bundle.path} is of kind {bundle.manifest.kind!r} and holds no Whisper model.")
        if placement.compile:
            raise OperatorError(f"{bundle.path} is a Whisper model, which nothing compiles; leave out compile.")
        self.bundle = bundle
        self.special: Whisper = bundle.manifest.whisper
        self.sample_rate = bundle.manifest.sample_rate
        self.frame_shift = bundle.manifest.features.frame_shift
        self.max_audio_s = max_audio_s
        self.bpe = ByteLevelBpe(bundle.vocabulary.tokens)
        self.network = Network(bundle, placement, self.special)
        self.work = WorkLog(self.sample_rate)
        self.max_windows = MAX_WINDOWS[placement.device.partition(":")[0]]
        self.options = self.check_options(options or DecodingOptions())

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

    def transcribe(
        self, waveforms: Sequence[Samples], options: Sequence[DecodingOptions | None] | None = None
    ) -> list[Transcript]:
        """All transcripts that `run` returns; raises the first error among them instead."""
        return values(self.run(waveforms, options))

    def warm_up(self, max_audio_s: float = 1.0) -> None:
        """Transcribe silence, so that the first real request finds everything ready."""
        options = replace(self.options, max_tokens=2, temperature=(0.0,), no_speech_threshold=None)
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

    def _transcribe(self, jobs: Sequence[tuple[Samples, DecodingOptions, list[int]]]) -> list[Transcript]:
        recordings = [
            Recording(index, self.network.features(waveform), options, prompt, tokens=list(prompt))
            for index, (waveform, options, prompt) in enumerate(jobs)
        ]
        for each in recordings:
            each.language = each.options.language or ("" if self.special.languages else ENGLISH)
        # Those with the most to do come first, so that calls stay full to the end.
        left = sorted(recordings, key=lambda each: -each.num_frames)
        while left := [each for each in left if not each.is_done]:
            self._advance(left[: self.max_windows])
        return [self._transcript(each, len(waveform)) for each, (waveform, _, _) in zip(recordings, jobs, strict=True)]

    def _advance(self, recordings: Sequence[Recording]) -> None:
        """Decode the next window of some recordings."""
        start = time.perf_counter()
        size = self.special.window_frames
        windows = [each.features[each.seek : each.seek + size] for each in recordings]
        heard = self.network.hear(windows)
        encoded = time.perf_counter()
        self._detect_languages(recordings, heard)
        texts = self._decoded(recordings, heard)
        for place, (each, text) in enumerate(zip(recordings, texts, strict=True)):
            timed = each.options.word_times and self.special.alignment_heads
            self._take(each, text, len(windows[place]), heard.decoder([place]) if timed else None)
        end = time.perf_counter()
        audio = sum(map(len, windows)) * self.frame_shift
        padding = len(windows) * size * self.frame_shift - audio
        self.work.add([CallWork(audio, padding, encoded - start, end - encoded, end - start)], end - start)

    def _detect_languages(self, recordings: Sequence[Recording], heard: Heard) -> None:
        unknown = [place for place, each in enumerate(recordings) if not each.language]
        if not unknown:
            return
        prompts, places = [[self.special.sot]] * len(unknown), [[0]] * len(unknown)
        logits = heard.decoder(unknown).begin(prompts, places)[:, 0]
        codes = list(self.special.languages)
        best = logits[:, list(self.special.languages.values())].argmax(axis=1)
        for place, index in zip(unknown, best.tolist(), strict=True):
            recordings[place].language = codes[index]

    def _decoded(self, recordings: Sequence[Recording], heard: Heard) -> list[Text]:
        """The text of each window, at the first of its temperatures that gives a text good enough.

        When none does, its options say which of the others it is.
        """
        found: list[list[Text]] = [[] for _ in recordings]
        pending = list(range(len(recordings)))
        attempt = 0
        while pending:
            jobs = [self._job(recordings[place], attempt) for place in pending]
            written = decode(jobs, lambda indices, among=pending: heard.decoder([among[each] for each in indices]))  # type: ignore[misc]
            again = []
            for place, job, result in zip(pending, jobs, written, strict=True):
                options = recordings[place].options
                text = Text(result, job.temperature, compression_ratio(self._spelled(result.tokens)))
                found[place].append(text)
                if attempt + 1 < len(options.temperature) and needs_another(text, options):
                    again.append(place)
            pending, attempt = again, attempt + 1
        return [best_of_failed(texts, each.options) for texts, each in zip(found, recordings, strict=True)]

    def _job(self, recording: Recording, attempt: int) -> Job:
        special, options = self.special, recording.options
        start = self._start(recording)
        if not options.timestamps:
            start.append(special.no_timestamps)
        before = self._before(recording)
        temperature = options.temperature[attempt]
        prompt = [*before, *start]
        return Job(
            prompt=prompt,
            sot=len(before),
            rules=Rules(
                eot=special.eot,
                no_timestamps=special.no_timestamps,
                timestamp_begin=special.timestamp_begin,
                suppress=special.suppress if options.suppress is None else options.suppress,
                suppress_first=special.suppress_first,
                timestamps=options.timestamps,
                max_initial_timestamp=special.max_initial_timestamp,
            ),
            max_tokens=min(options.max_tokens or special.text_context // 2, special.text_context - len(prompt)),
            no_speech=special.no_speech,
            temperature=temperature,
            copies=options.best_of if temperature else 1,
            # Of this window and attempt alone, so that nothing depends on what else is decoded.
            random=np.random.default_rng([options.seed, recording.seek, attempt]) if temperature else None,
            beam=options.beam,
            length_penalty=options.length_penalty,
        )

    def _before(self, recording: Recording) -> list[int]:
        """The tokens before a window's own: of the prompt and of earlier text, behind the token that says so."""
        most = self.special.text_context // 2 - 1
        prompt = recording.prompt
        if recording.options.carry_prompt and prompt:
            room = max(0, most - len(prompt))
            earlier = recording.tokens[max(len(prompt), recording.context) :]
            tokens = [*prompt, *(earlier[-room:] if room else [])]
        else:
            tokens = recording.tokens[recording.context :]
        if not tokens or self.special.sot_prev is None:
            return []
        return [self.special.sot_prev, *tokens[-most:]]

    def _take(self, recording: Recording, text: Text, num_frames: int, decoder: CachedDecoder | None) -> None:
        """Add a window's text to a recording, and move on; a decoder of the window is for times of words."""
        options, written = recording.options, text.written
        if is_silent(text, options):
            recording.seek += num_frames
            return
        offset_s = recording.seek * self.frame_shift / self.sample_rate
        pieces, moved = cut(written.tokens, num_frames, self.special)
        kept: list[int] = []
        for piece in pieces:
            spelled = self._spelled(piece.tokens)
            if piece.start_s == piece.end_s or not spelled.strip():
                continue
            recording.tokens += piece.tokens
            kept += piece.tokens
            recording.segments.append(
                Segment(
                    text=spelled.strip(),
                    start_s=offset_s + piece.start_s,
                    end_s=offset_s + piece.end_s,
                    avg_log_prob=written.avg_log_prob,
                    no_speech_prob=written.no_speech_prob,
                    compression_ratio=text.compression_ratio,
                    temperature=text.temperature,
                    tokens=piece.tokens,
                )
            )
        if decoder is not None:
            recording.words += self._words(recording, kept, num_frames, offset_s, decoder)
        recording.log_probs.append((written.log_prob, len(written.tokens) + 1))
        if not options.previous_text or text.temperature > KEEP_CONTEXT_BELOW:
            recording.context = len(recording.tokens)
        recording.seek += moved

    def _words(
        self, recording: Recording, tokens: Sequence[int], num_frames: int, offset_s: float, decoder: CachedDecoder
    ) -> list[Span]:
        """The words of a window's segments; needs another call of the decoder, which reads all of them at once."""
        text = [token for token in tokens if token < self.special.eot]
        positions = num_frames // FRAMES_PER_STEP
        if not text or not positions:
            return []
        start = self._start(recording)
        places = range(len(start), len(start) + len(text))
        scores, logits = decoder.align([*start, self.special.no_timestamps, *text, self.special.eot], places)
        chosen = log_softmax(logits[:, : self.special.eot])[np.arange(len(text)), text]
        starts = token_starts(scores[:, :, :positions], len(start)) * self.special.time_precision
        found = words_of(self.bpe, text, np.exp(chosen).tolist(), starts.tolist(), recording.language)
        return [replace(each, start_s=offset_s + each.start_s, end_s=offset_s + each.end_s) for each in found]

    def _start(self, recording: Recording) -> list[int]:
        """The tokens that say what is to be written: the language and the task."""
        special = self.special
        if not special.languages:
            return [special.sot]
        return [special.sot, special.languages[recording.language], special.tasks[recording.options.task]]

    def _spelled(self, tokens: Sequence[int]) -> str:
        return self.bpe.decode(token for token in tokens if token < self.special.eot)

    def _transcript(self, recording: Recording, num_samples: int) -> Transcript:
        count = sum(number for _, number in recording.log_probs)
        return Transcript(
            text=self._spelled(recording.tokens[len(recording.prompt) :]).strip(),
            words=tuple(recording.words),
            confidence=math.exp(sum(log_prob for log_prob, _ in recording.log_probs) / count) if count else 1.0,
            audio_s=num_samples / self.sample_rate,
            segments=tuple(recording.segments),
            language=recording.language,
        )


def compression_ratio(text: str) -> float:
    """How many times shorter zlib makes a text; 0 for none."""
    data = text.strip().encode()
    return len(data) / len(zlib.compress(data))


def needs_another(text: Text, options: DecodingOptions) -> bool:
    """Whether to try a window at the next temperature: its text is too repetitive or unlikely, and it is no silence."""
    most, least, silence = (
        options.compression_ratio_threshold,
        options.log_prob_threshold,
        options.no_speech_threshold,
    )
    unlikely = least is not None and text.written.avg_log_prob < least
    if unlikely and silence is not None and text.written.no_speech_prob > silence:
        return False
    return unlikely or (most is not None and text.compression_ratio > most)


def best_of_failed(attempts: Sequence[Text], options: DecodingOptions) -> Text:
    """A window's text, of those at one temperature after the other: the last if it is good enough, else by the options.

    Source of the likeliest: SYSTRAN/faster-whisper faster_whisper/transcribe.py, `generate_with_fallback`.
    """
    if options.fallback == "last" or not needs_another(attempts[-1], options):
        return attempts[-1]
    most = options.compression_ratio_threshold
    varied = [each for each in attempts if most is None or each.compression_ratio <= most]
    best = max(varied or attempts, key=lambda each: each.written.avg_log_prob)
    # How hot it had to get says whether the text is a context for the next window, whichever is taken.
    return replace(best, temperature=attempts[-1].temperature)


def is_silent(text: Text, options: DecodingOptions) -> bool:
    """Whether nothing is said in a window: silence is likely, and the text is not."""
    if options.no_speech_threshold is None or text.written.no_speech_prob <= options.no_speech_threshold:
        return False
    return options.log_prob_threshold is None or text.written.avg_log_prob <= options.log_prob_threshold
