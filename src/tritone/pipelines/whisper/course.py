"""The course of one recording through a Whisper model, window by window, as questions to whoever has the network.

    features, options  ->  asks: Encode, Detect, Write, Align  ->  transcript

Where a window begins depends on the text of the last, so a recording asks one thing at a time. Many recordings are
answered together by `together.py` on the host, or by `engine.py` on a device; what one gives depends on no other.
Source: openai/whisper whisper/transcribe.py and decoding.py.
"""

import math
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tritone.bundle.byte_level import ByteLevelBpe
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.whisper.options import ENGLISH, DecodingOptions
from tritone.pipelines.whisper.windows import FRAMES_PER_STEP, cut
from tritone.pipelines.whisper.words import words_of
from tritone.search.whisper.decoding import Job, Written
from tritone.search.whisper.rules import Rules
from tritone.transcript import Segment, Span, Transcript, at_words, main_language, shares, within

KEEP_CONTEXT_BELOW = 0.5  # text of a window that was sampled at a higher temperature is no context for the next one


@dataclass(frozen=True)
class Model:
    """What courses know of a model. Times are in samples."""

    special: WhisperPart
    bpe: ByteLevelBpe
    sample_rate: int
    frame_shift: int

    def spelled(self, tokens: Sequence[int]) -> str:
        """The text of tokens; those that are not text are left out."""
        return self.bpe.decode(token for token in tokens if token < self.special.eot)


@dataclass(frozen=True)
class Encode:
    """Encode the next window, features (frames, bins), at most `window_frames`; answered by nothing."""

    features: Any


@dataclass(frozen=True)
class Detect:
    """Which of some languages the window is in, all of the model's if there are none; answered by a `Detected`."""

    languages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Detected:
    """The likeliest of the languages, its probability among them, and the probability of silence."""

    language: str
    probability: float
    no_speech_prob: float = 0.0


@dataclass(frozen=True)
class Write:
    """Write the window's text; answered by a `Written`."""

    job: Job


@dataclass(frozen=True)
class Align:
    """Where in the window each token of a text is; answered by an `Aligned`.

    `start`: the tokens before it. `places`: of the text's tokens among those that were written. `positions`: those of
    the recording. `before`: tokens of text between the start and what was written, which are not asked for; then none
    of it is aligned before the position `first`.
    """

    start: Sequence[int]
    written: Written
    places: Sequence[int]
    positions: int
    before: Sequence[int] = ()
    first: int = 0

    @property
    def text(self) -> list[int]:
        """The tokens."""
        return [self.written.tokens[place] for place in self.places]


@dataclass(frozen=True)
class Aligned:
    """The positions at which tokens begin, and the end after the last; and the probabilities of the tokens."""

    starts: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float32]


Ask: TypeAlias = Encode | Detect | Write | Align
Course: TypeAlias = Generator[Ask, Any, Any]  # what it returns is its result, such as a transcript


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

    features: Any  # (frames, bins)
    options: DecodingOptions
    prompt: list[int]
    language: str
    seek: int = 0
    tokens: list[int] = field(default_factory=list)
    context: int = 0
    log_probs: list[tuple[float, int]] = field(default_factory=list)
    detected: list[Detected] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    words: list[Span] = field(default_factory=list)


class Transcribing:
    """One recording from its features to its transcript."""

    def __init__(
        self, model: Model, features: Any, options: DecodingOptions, prompt: list[int], audio_s: float
    ) -> None:
        """Take its features (frames, bins), how to transcribe it, the tokens of its prompt, and its length."""
        self.model, self.special = model, model.special
        language = known_language(model.special, options)
        self._recording = Recording(features, options, prompt, language, tokens=list(prompt))
        self._audio_s = audio_s

    def course(self) -> Course:
        """Everything that is asked, one after the other; returns the transcript."""
        recording, size = self._recording, self.special.window_frames
        while recording.seek < len(recording.features):
            window = recording.features[recording.seek : recording.seek + size]
            yield Encode(window)
            if not recording.language or recording.options.multilingual:
                found: Detected = yield Detect(recording.options.allowed_languages)
                recording.detected.append(found)
                recording.language = found.language
            text = yield from self._decoded()
            yield from self._take(text, len(window))
        return self._transcript()

    def _decoded(self) -> Generator[Ask, Any, Text]:
        """The text of the window, at the first of its temperatures that gives a text good enough.

        When none does, its options say which of the others it is.
        """
        found: list[Text] = []
        options = self._recording.options
        for attempt in range(len(options.temperature)):
            job = self._job(attempt)
            written: Written = yield Write(job)
            found.append(Text(written, job.temperature, compression_ratio(self.model.spelled(written.tokens))))
            if not needs_another(found[-1], options):
                break
        return best_of_failed(found, options)

    def _take(self, text: Text, num_frames: int) -> Generator[Ask, Any, None]:
        """Add the window's text to the recording, and move on."""
        recording, options, written = self._recording, self._recording.options, text.written
        if is_silent(text, options):
            recording.seek += num_frames
            return
        offset_s = recording.seek * self.model.frame_shift / self.model.sample_rate
        pieces, moved = cut(written.tokens, num_frames, self.special)
        kept: list[int] = []
        first = 0
        for piece in pieces:
            places = range(first, first := first + len(piece.tokens))
            spelled = self.model.spelled(piece.tokens)
            if piece.start_s == piece.end_s or not spelled.strip():
                continue
            recording.tokens += piece.tokens
            kept += places
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
                    language=recording.language,
                )
            )
        if self._has_words:
            recording.words += yield from self._words(written, kept, num_frames, offset_s)
        recording.log_probs.append((written.log_prob, len(written.tokens) + 1))
        if not options.previous_text or text.temperature > KEEP_CONTEXT_BELOW:
            recording.context = len(recording.tokens)
        recording.seek += moved

    @property
    def _has_words(self) -> bool:
        return bool(self._recording.options.word_times and self.special.alignment_heads)

    def _words(
        self, written: Written, kept: Sequence[int], num_frames: int, offset_s: float
    ) -> Generator[Ask, Any, list[Span]]:
        """The words of the window's segments."""
        places = [place for place in kept if written.tokens[place] < self.special.eot]
        positions = num_frames // FRAMES_PER_STEP
        if not places or not positions:
            return []
        ask = Align(self._start(), written, places, positions)
        aligned: Aligned = yield ask
        starts = (aligned.starts * self.special.time_precision).tolist()
        found = words_of(self.model.bpe, ask.text, aligned.probabilities.tolist(), starts, self._recording.language)
        return [replace(each, start_s=offset_s + each.start_s, end_s=offset_s + each.end_s) for each in found]

    def _job(self, attempt: int) -> Job:
        special, recording = self.special, self._recording
        options = recording.options
        start = self._start()
        if not options.timestamps:
            start.append(special.no_timestamps)
        before = self._before()
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
            seed=(options.seed, recording.seek, attempt),
            keeps_attention=self._has_words,
            beam=options.beam,
            length_penalty=options.length_penalty,
        )

    def _before(self) -> list[int]:
        """The tokens before a window's own: of the prompt and of earlier text, behind the token that says so."""
        recording = self._recording
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

    def _start(self) -> list[int]:
        """The tokens that say what is to be written: the language and the task."""
        return start_tokens(self.special, self._recording.language, self._recording.options)

    def _transcript(self) -> Transcript:
        recording = self._recording
        count = sum(number for _, number in recording.log_probs)
        words = within(tuple(recording.words), self._audio_s)  # the model's times are those of whole windows
        return Transcript(
            text=self.model.spelled(recording.tokens[len(recording.prompt) :]).strip(),
            words=words,
            confidence=math.exp(sum(log_prob for log_prob, _ in recording.log_probs) / count) if count else None,
            audio_s=self._audio_s,
            segments=at_words(within(tuple(recording.segments), self._audio_s), words),
            language=main_language(recording.segments) or recording.language,
            languages=shares(
                ((each.language, each.probability) for each in recording.detected), len(recording.detected)
            ),
        )


def known_language(special: WhisperPart, options: DecodingOptions) -> str:
    """The language that needs no detection: the one that is given, or the only one there may be; else empty."""
    if not special.languages:
        return ENGLISH
    only = options.allowed_languages if len(options.allowed_languages) == 1 else ("",)
    return options.language or only[0]


def start_tokens(special: WhisperPart, language: str, options: DecodingOptions) -> list[int]:
    """The tokens that say what is to be written: the language and the task, where the model has them."""
    if not special.languages:
        return [special.sot]
    return [
        special.sot,
        special.languages[language],
        special.tasks["translate" if options.task == "translate" else "transcribe"],
    ]


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
