"""Tokens to transcripts: text, and token and word timings, growing with a stream.

A word starts with its first token and ends with its last; its confidence is the mean over its tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

from tritone.bundle.vocabulary import Speller, Vocabulary, Word
from tritone.search.hypothesis import Token
from tritone.transcript import Span, Transcript


class TranscriptBuilder:
    """Builds the transcript of one utterance or stream. The work per token does not depend on what came before."""

    def __init__(self, vocabulary: Vocabulary, frame_s: float) -> None:
        """Take the vocabulary and the duration of an encoder frame in seconds."""
        self._vocabulary = vocabulary
        self._frame_s = frame_s
        self._speller = Speller(vocabulary)
        self._tokens: list[Span] = []
        self._words: list[Span] = []  # the words that can no longer change
        self._confidence_sum = 0.0  # over those words

    def add(self, tokens: Sequence[Token], replaces_last: bool = False) -> None:
        """Append tokens; with `replaces_last` the first one is a new version of the last one added before."""
        for token in tokens:
            text = self._vocabulary.tokens[token.id]
            span = Span(text, token.start_frame * self._frame_s, token.end_frame * self._frame_s, token.confidence)
            if replaces_last:
                self._tokens[-1] = span
                replaces_last = False
            else:
                self._tokens.append(span)
                self._speller.add(token.id)
        self._settle()

    def transcript(self, audio_s: float, is_final: bool = True) -> Transcript:
        """The transcript so far. `audio_s` is how much audio was taken, in seconds."""
        open_words = [self._word(word) for word in self._speller.words[len(self._words) :]]
        words = (*self._words, *open_words)
        confidence_sum = self._confidence_sum + sum(word.confidence for word in open_words)
        confidence = confidence_sum / len(words) if words else 1.0
        tokens = tuple(self._tokens)
        if is_final:
            tokens, words = _within(tokens, audio_s), _within(words, audio_s)
        return Transcript(self._speller.text, tokens, words, confidence, audio_s, is_final)

    def _settle(self) -> None:
        # The last word may grow, and the last token may still be replaced with all words that end in it.
        words = self._speller.words
        while len(self._words) < len(words) - 1 and words[len(self._words)].last < len(self._tokens) - 1:
            word = self._word(words[len(self._words)])
            self._words.append(word)
            self._confidence_sum += word.confidence

    def _word(self, word: Word) -> Span:
        tokens = self._tokens[word.first : word.last + 1]
        confidence = sum(token.confidence for token in tokens) / len(tokens)
        return Span(word.text, tokens[0].start_s, tokens[-1].end_s, confidence)


def _within(spans: tuple[Span, ...], audio_s: float) -> tuple[Span, ...]:
    """Move what was found in the silence after the audio to the audio's end."""
    if not spans or spans[-1].end_s <= audio_s:
        return spans
    return tuple(
        span
        if span.end_s <= audio_s
        else replace(span, start_s=min(span.start_s, audio_s), end_s=min(span.end_s, audio_s))
        for span in spans
    )
