"""Tokens to transcripts: text, and token and word times, growing with a stream.

A token lasts until the next one starts, but ends at most `MAX_LINGER_S` after the last frame in which the search found
it. A word lasts from the start of its first token to the end of its last; its confidence is the mean over its tokens.

A token sounds in more frames than the network finds it in, which for a transducer is one. So audio should not be cut
where that frame ends; where the next token starts at once, that is the better place.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Encoder
from tritone.bundle.vocabulary import RunningText, Speller, Vocabulary, Word
from tritone.search.hypothesis import Hypothesis, Token, TokenRow, ids_of
from tritone.search.options import SearchOptions
from tritone.transcript import Alternative, Segment, Span, Transcript, main_language, within

# How long a word may still sound when its last token has been found. At the ends of the ten shipped clips, words of the
# demo transducer, a token each, last 0.15 to 0.47 s from the token's start, letters of the demo CTC model up to 0.27 s.
MAX_LINGER_S = 0.4
LANGUAGE = re.compile("[a-z]{2,3}")  # a code; a model may also find that there is no speech
AUTO = "auto"  # in place of a language, of a model that finds it out itself


@dataclass(frozen=True)
class Reading:
    """The tokens of an utterance written out; times in seconds, `confidence` the mean over words, None without any.

    `parts`: as of `parts_by_language`.
    """

    text: str
    tokens: tuple[Span, ...]
    words: tuple[Span, ...]
    confidence: float | None
    parts: tuple[Segment, ...] = ()

    def within(self, end_s: float) -> "Reading":
        """This reading with the times that are after `end_s`, in the silence that serving adds, moved there."""
        tokens, words = within(self.tokens, end_s), within(self.words, end_s)
        return replace(self, tokens=tokens, words=words, parts=within(self.parts, end_s))

    def without_times(self) -> "Reading":
        """Only the text, its confidence and its languages."""
        return replace(self, tokens=(), words=())

    def scored(self, score: float) -> Alternative:
        """This reading as one of several."""
        return Alternative(self.text, score, self.tokens, self.words, self.confidence)


class ReadingBuilder:
    """Writes out one utterance or stream. The work per token does not depend on what came before."""

    def __init__(self, vocabulary: Vocabulary, frame_s: float, *, times: bool = True) -> None:
        """Take the vocabulary and the seconds of an encoder frame; without `times` readings have no tokens."""
        self._vocabulary = vocabulary
        self._frame_s = frame_s
        self._times = times
        self._speller = Speller(vocabulary)
        self._found: list[Token] = []
        self._num_spelled = 0  # of `_found`
        self._running = RunningText(vocabulary) if RunningText.fits(vocabulary) else None
        self._num_written = 0  # of `_found`, in the running text
        self._tokens: list[Span] = []  # those of `_found` that another one follows
        self._words: list[Span] = []  # the words that can no longer change
        self._confidence_sum = 0.0  # over those words

    def add(self, tokens: Sequence[Token], replaces_last: bool = False) -> None:
        """Append tokens; with `replaces_last` the first one is a new version of the last one added before."""
        if tokens and replaces_last:
            self._found[-1:] = tokens[:1]
            tokens = tokens[1:]
        self._found += tokens

    @property
    def num_tokens(self) -> int:
        """How many tokens have been added."""
        return len(self._found)

    def text(self, tail: Sequence[Token] = ()) -> str:
        """The text of what has been added so far, and of a tail that is not kept."""
        ids = [token.id for token in tail]
        if self._running is not None:
            if self._num_written < len(self._found):
                self._running.extend([token.id for token in self._found[self._num_written :]])
                self._num_written = len(self._found)
            return self._running.extended(ids) if ids else self._running.text
        self._spell()
        if not ids:
            return self._speller.text
        mark = self._speller.mark()
        self._speller.extend(ids)
        text = self._speller.text
        self._speller.rewind(mark)
        return text

    def reading(self, tail: Sequence[Token] = (), until_frame: float = math.inf) -> Reading:
        """What has been added so far, and after it the tokens of `tail`, which are not kept.

        Args:
            until_frame: where the frames end that have been searched.
        """
        self._settle()
        if not tail:
            return self._reading(until_frame)
        mark, num_found, tokens, words, confidence = (
            self._speller.mark(),
            len(self._found),
            len(self._tokens),
            len(self._words),
            self._confidence_sum,
        )
        self.add(tail)
        self._settle()
        reading = self._reading(until_frame)
        self._speller.rewind(mark)
        self._num_spelled = num_found
        del self._found[num_found:], self._tokens[tokens:], self._words[words:]
        self._confidence_sum = confidence
        return reading

    def _spell(self) -> None:
        # Only now: most steps of a stream are asked for the text alone, or for nothing new.
        if self._num_spelled < len(self._found):
            self._speller.extend([token.id for token in self._found[self._num_spelled :]])
            self._num_spelled = len(self._found)

    def _reading(self, until_frame: float) -> Reading:
        open_words = [self._word(word, until_frame) for word in self._speller.words[len(self._words) :]]
        words = (*self._words, *open_words)
        confidence_sum = self._confidence_sum + sum(map(self._sure, self._speller.words[len(self._words) :]))
        confidence = confidence_sum / len(words) if words else None
        last = [self._token(len(self._found) - 1, until_frame)] if self._times and self._found else []
        parts = parts_by_language(self._vocabulary, self._found, self._frame_s, until_frame)
        return Reading(self._speller.text, (*self._tokens, *last), words, confidence, parts)

    def _settle(self) -> None:
        self._spell()
        if self._times:
            self._tokens += [self._token(index) for index in range(len(self._tokens), len(self._found) - 1)]
        # The last word may grow, and the last token may still be replaced with all words that end in it.
        words = self._speller.words
        while len(self._words) < len(words) - 1 and words[len(self._words)].last < len(self._found) - 1:
            word = words[len(self._words)]
            self._words.append(self._word(word))
            self._confidence_sum += self._sure(word)

    def _token(self, index: int, until_frame: float = math.inf) -> Span:
        token = self._found[index]
        text = self._vocabulary.tokens[token.id]
        return Span(text, token.start_frame * self._frame_s, self._end_s(index, until_frame), token.confidence)

    def _word(self, word: Word, until_frame: float = math.inf) -> Span:
        start_s = self._found[word.first].start_frame * self._frame_s
        return Span(word.text, start_s, self._end_s(word.last, until_frame), self._sure(word))

    def _sure(self, word: Word) -> float:
        tokens = self._found[word.first : word.last + 1]
        return sum([token.confidence for token in tokens]) / len(tokens)

    def _end_s(self, index: int, until_frame: float) -> float:
        follows = self._found[index + 1].start_frame if index + 1 < len(self._found) else until_frame
        return _sounds_until(self._found[index].end_frame * self._frame_s, follows * self._frame_s)


def whole_reading(vocabulary: Vocabulary, tokens: Sequence[Token], frame_s: float, *, times: bool = True) -> Reading:
    """The reading of a `ReadingBuilder` that gets all tokens at once, at a third of its cost."""
    if not tokens:
        return Reading("", (), (), None)
    row = tokens if isinstance(tokens, TokenRow) else TokenRow(*map(np.array, zip(*tokens, strict=True)))
    ids, confidences = row.ids.tolist(), row.confidences.tolist()
    starts_s, found_s = (row.starts * frame_s).tolist(), (row.ends * frame_s).tolist()
    ends_s = list(map(_sounds_until, found_s, (*starts_s[1:], math.inf)))
    speller = Speller(vocabulary)
    speller.extend(ids)
    sure = [sum(confidences[each.first : each.last + 1]) / (each.last + 1 - each.first) for each in speller.words]
    words = [
        Span(each.text, starts_s[each.first], ends_s[each.last], own)
        for each, own in zip(speller.words, sure, strict=True)
    ]
    confidence = sum(sure) / len(sure) if sure else None
    shown = map(Span, map(vocabulary.tokens.__getitem__, ids), starts_s, ends_s, confidences) if times else ()
    parts = parts_by_language(vocabulary, tokens, frame_s)
    return Reading(speller.text, tuple(shown), tuple(words), confidence, parts)


def parts_by_language(
    vocabulary: Vocabulary, tokens: Sequence[Token], frame_s: float, until_frame: float = math.inf
) -> tuple[Segment, ...]:
    """The parts of a text, each in the language that the model named after it; empty where it named none.

    What stands after the last name is of the part before it, until it is named.

    Args:
        frame_s: seconds of an encoder frame.
        until_frame: where the frames end that have been searched.
    """
    locales = vocabulary.locales
    if not locales or locales.keys().isdisjoint(ids_of(tokens)):
        return ()
    parts: list[tuple[str, list[Token]]] = []
    unnamed: list[Token] = []
    for token in tokens:
        if token.id not in vocabulary.silent_ids:
            unnamed.append(token)
        elif vocabulary.text(ids_of(unnamed)) and (language := locales.get(token.id)):
            if not parts or parts[-1][0] != language:
                parts.append((language, []))
            parts[-1][1].extend(unnamed)
            unnamed = []
    if not parts:  # tags alone
        return ()
    parts[-1][1].extend(unnamed)
    ends = (*(part[0].start_frame for _, part in parts[1:]), until_frame)
    return tuple(
        Segment(
            vocabulary.text(ids_of(part)),
            part[0].start_frame * frame_s,
            _sounds_until(part[-1].end_frame * frame_s, end * frame_s),
            language=language,
        )
        for (language, part), end in zip(parts, ends, strict=True)
    )


def languages_of(parts: tuple[Segment, ...], given: str) -> dict[str, Any]:
    """The fields of a transcript that say its language: as the model named it, or as it was given.

    A transcript of several languages has its parts as segments.
    """
    if not parts:
        return {"language": given}
    return {"language": main_language(parts), "segments": parts if len(parts) > 1 else ()}


def _sounds_until(found_s: float, follows_s: float) -> float:
    """Where a token ends that was last found at one time, before another one starts."""
    return max(found_s, min(found_s + MAX_LINGER_S, follows_s))


def transcript(
    hypotheses: Sequence[Hypothesis],
    write: Callable[[Hypothesis], Reading],
    options: SearchOptions,
    audio_s: float,
    language: str = "",
) -> Transcript:
    """The final transcript of an utterance.

    Args:
        hypotheses: best first, at least one. The best stands for all that are written alike, as when they differ in
            spaces at the ends.
        write: makes a reading of one of them.
        options: what was asked for.
        audio_s: where its audio ends, in seconds.
        language: as of `given_language`.
    """
    shown: dict[str, Alternative] = {}
    parts: tuple[Segment, ...] = ()
    for hypothesis in hypotheses:
        reading = write(hypothesis)
        if reading.text not in shown:
            reading = reading.within(audio_s)
            reading = reading if options.timestamps else reading.without_times()
            parts = parts if shown else reading.parts
            shown[reading.text] = reading.scored(hypothesis.score)
        if len(shown) == options.nbest:
            break
    best, *_ = alternatives = tuple(shown.values())
    shown_alternatives = alternatives if options.nbest > 1 and options.mode != "greedy" else ()
    return Transcript(
        best.text,
        best.tokens,
        best.words,
        best.confidence,
        audio_s,
        alternatives=shown_alternatives,
        **languages_of(parts, language),
    )


def given_language(encoder: Encoder, options: SearchOptions) -> str:
    """The language that a model was given, "" if it takes none or finds it itself."""
    language = options.language or encoder.language
    return "" if language == AUTO else language


def utterance(
    bundle: Bundle,
    hypotheses: Sequence[Hypothesis],
    num_samples: int,
    options: SearchOptions,
    tags: Sequence[int] = (),
) -> Transcript:
    """The final transcript of a whole utterance of so many samples; all but its text is made when it is read.

    `tags`: the tokens that say what `Encoder.tags` names; empty where there are none.
    """
    seconds = num_samples / bundle.manifest.sample_rate
    language = given_language(bundle.manifest.encoder, options)

    def details() -> Transcript:
        def write(each: Hypothesis) -> Reading:
            return whole_reading(bundle.vocabulary, each.tokens, bundle.manifest.frame_s, times=options.timestamps)

        return transcript(hypotheses, write, options, seconds)

    best = hypotheses[0].tokens
    parts = within(parts_by_language(bundle.vocabulary, best, bundle.manifest.frame_s), seconds)
    known: dict[str, Any] = {"audio_s": seconds, **languages_of(parts, language)}
    if tags:
        marks = (
            (name, bundle.vocabulary.mark(id)) for name, id in zip(bundle.manifest.encoder.tags, tags, strict=True)
        )
        known["tags"] = tuple((name, mark) for name, mark in marks if mark)
        found = dict(known["tags"]).get("language", "")
        known["language"] = found if LANGUAGE.fullmatch(found) else ""
    return Transcript.deferred(bundle.vocabulary.text(ids_of(best)), details, **known)
