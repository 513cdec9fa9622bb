"""One look at the window of a live stream: the words in it, after those that are final already.

features of the window, words that are final  ->  asks, as of `course.py`  ->  Hypothesis
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from tritone.pipelines.whisper.course import (
    Align,
    Aligned,
    Ask,
    Detect,
    Detected,
    Encode,
    Model,
    Text,
    Write,
    best_of_failed,
    compression_ratio,
    is_silent,
    needs_another,
    start_tokens,
)
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.settling import LiveWord
from tritone.pipelines.whisper.windows import FRAMES_PER_STEP
from tritone.pipelines.whisper.words import AFTER_WORDS, UNSPACED, grouped
from tritone.search.whisper.decoding import Job, Written
from tritone.search.whisper.rules import Rules

TOKENS_A_SECOND, MORE_TOKENS = 12, 12  # at most, of audio whose words are not final; what repeats itself writes more


@dataclass(frozen=True)
class Hypothesis:
    """What a window seems to say after its final words. `is_sound`: it is no text that repeats itself."""

    words: tuple[LiveWord, ...]
    language: str
    is_sound: bool = True


@dataclass(frozen=True, kw_only=True)
class Look:
    """A window to be looked at. Times are in seconds of the stream.

    `language`: empty: it is detected. `before`: tokens of the prompt and of earlier text. `final`: the words of the
    window that do not change any more. `begin_s`, `end_s`: of the window. `quiet_s`: where its last speech ends.
    `is_last`: no more audio of it comes.
    """

    model: Model
    features: Any  # (frames, bins)
    options: DecodingOptions
    language: str
    before: Sequence[int]
    final: Sequence[LiveWord]
    begin_s: float
    end_s: float
    quiet_s: float
    is_last: bool

    def course(self) -> Generator[Ask, Any, Hypothesis]:
        """Everything that is asked; returns the words after the final ones."""
        yield Encode(self.features)
        language = self.language
        if not language:
            detected: Detected = yield Detect(self.options.allowed_languages)
            language = detected.language
        text = yield from self._written(language)
        if not self.final and is_silent(text, self.options):
            return Hypothesis((), language)
        words = yield from self._words(text.written, language)
        return Hypothesis(words, language, not self._repeats(text))

    def _repeats(self, text: Text) -> bool:
        most = self.options.compression_ratio_threshold
        return most is not None and text.compression_ratio > most

    def _written(self, language: str) -> Generator[Ask, Any, Text]:
        """The text after the final words; of a window that is over at the first temperature which is good enough."""
        attempts: list[Text] = []
        for attempt in range(len(self.options.temperature) if self.is_last else 1):
            job = self._job(attempt, language)
            written: Written = yield Write(job)
            whole = [*self._final_tokens, *written.tokens]
            attempts.append(Text(written, job.temperature, compression_ratio(self.model.spelled(whole))))
            if not needs_another(attempts[-1], self.options):
                break
        return best_of_failed(attempts, self.options)

    @property
    def _final_tokens(self) -> list[int]:
        return [token for word in self.final for token in word.tokens]

    def _job(self, attempt: int, language: str) -> Job:
        special, options, final = self.model.special, self.options, self._final_tokens
        since_s = self.final[-1].end_s if self.final else self.begin_s
        start = [*start_tokens(self.model.special, language, self.options), special.no_timestamps]
        most = options.max_tokens or special.text_context // 2
        most = min(most, round(TOKENS_A_SECOND * max(0.0, self.end_s - since_s)) + MORE_TOKENS)
        room = special.text_context - len(start) - len(final) - most - 1
        before = list(self.before)[-min(room, special.text_context // 2 - 1) :] if room > 0 else []
        if before and special.sot_prev is not None:
            before = [special.sot_prev, *before]
        prompt = [*before, *start, *final]
        temperature = options.temperature[attempt]
        return Job(
            prompt=prompt,
            sot=len(prompt) - 1 if final else len(before),
            prefix=len(final),
            rules=Rules(
                eot=special.eot,
                no_timestamps=special.no_timestamps,
                timestamp_begin=special.timestamp_begin,
                suppress=self._suppressed,
                suppress_first=() if final else special.suppress_first,
                timestamps=False,
            ),
            max_tokens=max(1, min(most, special.text_context - len(prompt))),
            no_speech=None if final else special.no_speech,
            temperature=temperature,
            copies=options.best_of if temperature else 1,
            seed=(options.seed, round(self.begin_s * 100), attempt),
            keeps_attention=bool(special.alignment_heads),
            beam=options.beam,
            length_penalty=options.length_penalty,
        )

    @property
    def _suppressed(self) -> Sequence[int]:
        return self.model.special.suppress if self.options.suppress is None else self.options.suppress

    def _words(self, written: Written, language: str) -> Generator[Ask, Any, tuple[LiveWord, ...]]:
        special = self.model.special
        places = [place for place, token in enumerate(written.tokens) if token < special.eot]
        step_s, positions = special.time_precision, len(self.features) // FRAMES_PER_STEP
        since_s = self.final[-1].end_s if self.final else self.begin_s
        first = min(max(0, int((since_s - self.begin_s) / step_s)), positions - 1)
        if not places or positions < 1:
            return ()
        start = start_tokens(self.model.special, language, self.options)
        aligned: Aligned = yield Align(start, written, places, positions, self._final_tokens, first)
        tokens = [written.tokens[place] for place in places]
        times = (self.begin_s + aligned.starts * step_s).tolist()
        return tuple(self._timed(tokens, times, aligned.probabilities.tolist(), language))

    def _timed(
        self, tokens: Sequence[int], times: Sequence[float], probabilities: Sequence[float], language: str
    ) -> list[LiveWord]:
        """Tokens as words, punctuation with the word before it; none ends after the speech."""
        found: list[LiveWord] = []
        first = 0
        for text, count in grouped(self.model.bpe, tokens, spaced=language not in UNSPACED):
            last = first + count
            own, sure = tuple(tokens[first:last]), sum(probabilities[first:last]) / count
            if found and text.strip() in AFTER_WORDS:
                word = found[-1]
                found[-1] = LiveWord(word.text + text, word.tokens + own, word.start_s, word.end_s, word.confidence)
            else:
                start_s = min(times[first], self.quiet_s)
                found.append(LiveWord(text, own, start_s, max(start_s, min(times[last], self.quiet_s)), sure))
            first = last
        return found
