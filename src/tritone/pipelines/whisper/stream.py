"""One live stream: its audio, the window that is looked at again and again, and its words.

    push(samples)  ->  looks (Look), each answered by a Hypothesis  ->  transcripts

The window begins where the last segment ended, and grows. Every `partial_s` it is looked at, unless there has been no
speech since; words that the policy says are final stay, and the next text is written after them. A segment ends at a
pause, with a sentence once the window is long, or in any case before it is longer than a window of the model. When it
is looked at depends on the number of samples alone, but for chunks of more than `CATCH_UP_S`.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples, Waveform, widened
from tritone.pipelines.whisper.course import Model, known_language
from tritone.pipelines.whisper.gate import LevelGate
from tritone.pipelines.whisper.hypothesis import Hypothesis, Look
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.settling import POLICIES, LiveWord
from tritone.pipelines.whisper.words import SENTENCE_ENDS, UNSPACED
from tritone.transcript import Span, Transcript, joined, mean_confidence

BEFORE_S = 0.3  # audio before speech that is kept
QUIET_S = 0.5  # after speech, in which its last words are not cut off any more
AFTER_S = 0.2  # audio after speech with which its last word can be recognised
LEAST_FRAMES = 3  # that pass the gate one after the other where speech begins
CATCH_UP_S = 5.0  # of audio that waits: it is looked at in steps of so much
SENTENCE_SHARE = 0.4  # of a model's window, from which on a segment ends with a sentence
PREFIX_SHARE = 0.35  # of a model's context, that the final words of a segment may take
DETECT_S = 2.0  # of a window by which a language is detected

TITLES = {"mr", "mrs", "ms", "dr", "st"}  # are followed by a name

FeaturesOf = Callable[[Waveform], Any]


def ends_sentence(word: LiveWord) -> bool:
    """Whether a word seems to be the last one of a sentence."""
    return word.text.strip()[-1:] in SENTENCE_ENDS and word.letters not in TITLES


class LiveStream:
    """The state of a stream. Positions are in samples of the stream."""

    def __init__(self, model: Model, features_of: FeaturesOf, options: DecodingOptions, prompt: Sequence[int]) -> None:
        """Take the model, what makes features (frames, bins) of samples, how to decode, and the prompt's tokens."""
        self.options = options
        self.is_over = False
        self._model, self._features_of, self._rate = model, features_of, model.sample_rate
        self._gate = LevelGate(model.sample_rate)
        self._longest = model.special.window_frames * model.frame_shift
        self._partial = min(self._whole(options.partial_s), self._whole(self._longest / 3 / self._rate))
        self._catch_up = max(self._partial, min(self._whole(CATCH_UP_S), self._whole(self._longest / 3 / self._rate)))
        self._pause = self._whole(options.pause_s)
        self._language = known_language(model.special, options)
        self._before = list(prompt)
        self._parts: list[Waveform] = []  # the audio from the window's begin on
        self._rest: Samples = np.zeros(0, np.float32)  # of the frame that is not whole yet
        self._begin = self._num_samples = 0
        self._passes: deque[bool] = deque()  # of the frames that wait
        self._run = 0  # frames that passed, one after the other
        self._at = self._ticked = self._looked = 0  # how far it is, when it could be looked at, when it was
        self._speech: tuple[int, int] | None = None  # of the window, from the first to the last frame that passed
        self._is_pause = self._is_last = self._closing = False
        self._final: list[LiveWord] = []
        self._open: list[LiveWord] = []
        self._number, self._history = 0, ""
        self._ended: list[Transcript] = []

    def push(self, samples: Samples, *, final: bool) -> None:
        """Take the next samples, (samples,), any number of them; `final`: there are no more."""
        frame = self._gate.frame
        if len(samples):
            new = np.array(widened(samples))
            self._parts.append(new)
            self._num_samples += len(new)
            self._rest = np.concatenate([self._rest, new])
        if final:
            self._closing = True
            self._rest = np.concatenate([self._rest, np.zeros(-len(self._rest) % frame, np.float32)])
        whole = len(self._rest) // frame * frame
        if whole:
            self._passes += self._gate.take(self._rest[:whole])
            self._rest = self._rest[whole:].copy()

    def look(self) -> Look | None:
        """What is to be looked at next; None: nothing, before more audio comes."""
        while not self.is_over and self._tick():
            if self._speech is not None and self._needs_look(self._speech[1]):
                self._looked = self._at
                return self._view(self._speech[1])
            self._settle(self._open)
        return None

    def take(self, found: Hypothesis) -> None:
        """Go on with the answer to a look."""
        window_s = (self._at - self._begin) / self._rate
        if self._language or window_s >= DETECT_S or self._is_end:
            self._language = found.language
        # Of what repeats itself more audio will tell.
        self._settle(found.words if found.is_sound or self._is_end else self._open)

    def answer(self, *, details: bool) -> Transcript:
        """The transcript of the segment under way, with the segments that ended since the answer before."""
        ended, self._ended = tuple(self._ended), []
        words = [*self._final, *self._open]
        end = self._num_samples if self.is_over else self._written
        return self._transcript(words, end, details=details, is_final=self.is_over, ended=ended)

    # When to look.

    def _tick(self) -> bool:
        """Go on to the next moment at which the window can be looked at; False: more audio is needed."""
        frame, waiting = self._gate.frame, self._num_samples - self._ticked
        limit = self._ticked + (self._catch_up if waiting >= self._catch_up else self._partial)
        self._is_pause = False
        while self._passes and self._at < limit and not self._is_pause:
            self._at += frame
            if self._passes.popleft():
                self._run += 1
                if self._speech is not None or self._run >= LEAST_FRAMES:
                    since = self._at - self._run * frame if self._speech is None else self._speech[0]
                    self._speech = since, self._at
            else:
                self._run = 0
                self._is_pause = self._speech is not None and self._at - self._speech[1] == self._pause
        self._is_last = self._closing and not self._passes
        if self._at < limit and not self._is_end:
            return False
        self._ticked = self._at
        return True

    @property
    def _is_end(self) -> bool:
        """Whether no more audio comes that belongs to what is said."""
        return self._is_pause or self._is_last

    @property
    def _written(self) -> int:
        """Where the audio ends that the words are the text of."""
        return self._looked if self._speech is not None and self._needs_look(self._speech[1]) else self._at

    def _needs_look(self, speech_end: int) -> bool:
        return self._looked < speech_end + self._whole(AFTER_S)

    def _view(self, speech_end: int) -> Look:
        self._parts = [np.concatenate(self._parts)]
        features = self._features_of(self._parts[0][: self._at - self._begin])
        return Look(
            model=self._model,
            features=features[: self._model.special.window_frames],
            options=self.options,
            language=self._language,
            before=self._before,
            final=tuple(self._final),
            begin_s=self._begin / self._rate,
            end_s=self._at / self._rate,
            quiet_s=speech_end / self._rate,
            is_last=self._is_end,
        )

    # What becomes of words.

    def _settle(self, words: Sequence[LiveWord]) -> None:
        """Take the words after the final ones, as they are now, and what follows from them."""
        count = len(words)
        if not self._is_end:
            is_quiet = self._speech is None or self._at - self._speech[1] >= self._whole(QUIET_S)
            sure = words if is_quiet else words[:-1]
            audio_s = math.inf if is_quiet else self._at / self._rate
            count = POLICIES[self.options.policy](sure, self._open, audio_s) if self._language else 0
        self._final += words[:count]
        self._open = list(words[count:])
        if self._is_last:
            self.is_over = True
        elif self._is_pause or self._speech is None:
            if self._final:
                self._end_segment(len(self._final), self._at)
            self._speech = None
            self._forget(self._at - self._whole(BEFORE_S))
        else:
            self._slide()

    def _slide(self) -> None:
        """End the segment with a sentence, or in any case before its window is too long."""
        length, tokens = self._at - self._begin, sum(len(word.tokens) for word in self._final)
        is_long = tokens >= PREFIX_SHARE * self._model.special.text_context
        if is_long or length >= SENTENCE_SHARE * self._longest:
            ends = [count for count, word in enumerate(self._final, 1) if ends_sentence(word)]
            if ends:
                self._end_sentence(ends[-1])
        if is_long or self._at + self._catch_up - self._begin > self._longest:
            if not self._final:  # the policy has waited for too long
                self._final, self._open = self._open, []
            if self._final:
                self._end_sentence(len(self._final))
            else:
                self._forget(self._at - self._whole(BEFORE_S))

    def _end_sentence(self, count: int) -> None:
        end_s = self._final[count - 1].end_s
        following = [*self._final[count:], *self._open]
        cut = round(self._rate * (end_s if not following else (end_s + max(end_s, following[0].start_s)) / 2))
        cut = min(max(cut, self._begin + 1), self._at)
        self._end_segment(count, cut)
        self._forget(cut)

    def _end_segment(self, count: int, end: int) -> None:
        words, self._final = self._final[:count], self._final[count:]
        ended = self._transcript(words, end, details=True, is_final=True)
        self._ended.append(ended)
        self._history = joined(self._history, ended.text)
        self._number += 1
        if self.options.previous_text:
            earlier = [*self._before, *(token for word in words for token in word.tokens)]
            self._before = earlier[-self._model.special.text_context // 2 :]
        if self.options.multilingual:
            self._language = ""

    def _forget(self, begin: int) -> None:
        """Have the window begin there."""
        if begin <= self._begin:
            return
        self._parts = [np.concatenate(self._parts)[begin - self._begin :].copy()] if self._parts else []
        self._begin = begin
        if self._speech is not None:
            self._speech = max(begin, self._speech[0]), max(begin, self._speech[1])

    def _transcript(
        self,
        words: Sequence[LiveWord],
        end: int,
        *,
        details: bool,
        is_final: bool,
        ended: tuple[Transcript, ...] = (),
    ) -> Transcript:
        text = "".join(word.text for word in words).strip()
        if not details:
            return Transcript(
                text, is_final=is_final, segment=self._number, ended=ended, history=self._history, audio_s=0.0
            )
        spans: list[Span] = []
        for word in words:
            spelled = word.text.strip()
            if spans and not word.text.startswith(" ") and spelled and self._language not in UNSPACED:
                last = spans[-1]
                assert last.confidence is not None
                spans[-1] = Span(last.text + spelled, last.start_s, word.end_s, min(last.confidence, word.confidence))
            elif spelled:
                spans.append(Span(spelled, word.start_s, word.end_s, word.confidence))
        return Transcript(
            text,
            words=tuple(spans),
            confidence=mean_confidence(spans),
            audio_s=end / self._rate,
            is_final=is_final,
            segment=self._number,
            ended=ended,
            history=self._history,
            language=self._language,
            settled=None if is_final else len("".join(word.text for word in self._final).strip()),
        )

    def _whole(self, seconds: float) -> int:
        """Seconds in samples of whole frames, at least one."""
        frame = self._gate.frame
        return max(1, round(seconds * self._rate / frame)) * frame
