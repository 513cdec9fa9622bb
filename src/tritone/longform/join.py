"""Transcripts of pieces to that of the whole recording.

    (Piece, Transcript), ... in any order  ->  finished parts in order, then a Transcript with times of the recording

Pieces that end at pauses have nothing in common. Two that share context both have the words around the cut
between them: where they agree on a word there, the text passes from one to the other behind it; where they do not, at a
time near the cut at which neither has a word under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tritone.longform.cutting import Piece
from tritone.transcript import Alternative, Segment, Span, Transcript, joined, main_language, mean_confidence, shares

SAME_WORD_S = 0.5  # at most between the middles of a word in two pieces
SAME_TIME_S = 0.1  # of two words that agree, those that differ by this less are preferred: a word may be said twice


@dataclass
class _Part:
    """The transcript of a piece, its times those of the recording; `is_cut`: whether words of it were left out."""

    piece: Piece
    transcript: Transcript
    words: Sequence[Span]
    tokens: Sequence[Span]
    is_cut: bool = False


class Joiner:
    """Joins the transcripts of a recording's pieces. Keeps texts, and with `details` words and tokens."""

    def __init__(self, *, details: bool = True) -> None:
        self._details = details
        self._waiting: dict[int, tuple[Piece, Transcript]] = {}
        self._next = 0
        self._open: _Part | None = None  # whose end the next one has, too
        self._texts: list[str] = []
        self._words: list[Span] = []
        self._tokens: list[Span] = []
        self._segments: list[Segment] = []
        self._sure = 0.0  # sum of confidences over words, or parts without words
        self._weight: float | None = 0  # how many these are; None once one has no confidence
        self._tags: dict[str, str] | None = None  # that all parts have alike
        self._languages: list[tuple[str, float]] = []  # with what was found, times the seconds that it counts for
        self._detected_s = 0.0
        self._end_s = 0.0

    def add(self, piece: Piece, transcript: Transcript) -> list[Transcript]:
        """Take the transcript of a piece; a piece with context needs one with times of words.

        Returns:
            The parts of the recording that are finished with it, in order, without those in which nothing is said.
            Their `segments` state from where to where they are, `segment` counts them, `audio_s` is where they end.
        """
        self._waiting[piece.index] = (piece, transcript)
        found: list[Transcript] = []
        while self._next in self._waiting:
            self._take(*self._waiting.pop(self._next), found)
            self._next += 1
        return found

    def finish(self, audio_s: float | None = None) -> Transcript:
        """The transcript of the whole recording, `audio_s` seconds long if that is known.

        Its segments are the parts, or those that the model itself wrote. Of other readings it has none.
        """
        if self._waiting:
            raise ValueError(f"piece {self._next} was never added, {min(self._waiting)} was")
        if self._open is not None:
            self._finish_part(self._open, [])
            self._open = None
        texts = self._texts[:1]
        for before, after in pairwise(self._texts):
            texts += [joined(before[-1], after[0])[1:-1], after]  # a space, in scripts that have one
        languages = shares(self._languages, self._detected_s)
        return Transcript(
            text="".join(texts),
            tokens=tuple(self._tokens),
            words=tuple(self._words),
            confidence=self._sure / self._weight if self._weight else None,
            audio_s=self._end_s if audio_s is None else audio_s,
            segments=tuple(self._segments),
            language=main_language(self._segments) or (languages[0][0] if languages else ""),
            languages=languages,
            tags=tuple((self._tags or {}).items()),
        )

    def _take(self, piece: Piece, transcript: Transcript, found: list[Transcript]) -> None:
        # Words may be made only when they are read, which costs time.
        wanted = self._details or piece.has_context
        part = _Part(
            piece=piece,
            transcript=transcript,
            words=_moved(transcript.words, piece.start_s) if wanted else (),
            tokens=_moved(transcript.tokens, piece.start_s) if self._details else (),
        )
        if self._open is not None:
            _share(self._open, part)
            self._finish_part(self._open, found)
            self._open = None
        if piece.shares_end:
            self._open = part
        else:
            self._finish_part(part, found)

    def _finish_part(self, part: _Part, found: list[Transcript]) -> None:
        piece, transcript, words = part.piece, part.transcript, tuple(part.words)
        text = transcript.text
        if part.is_cut:
            text = ""
            for word in words:
                text = joined(text, word.text)
        start_s, end_s = piece.keep_from_s, piece.keep_to_s
        self._end_s = end_s
        if transcript.languages:
            self._detected_s += end_s - start_s
            self._languages += ((code, share * (end_s - start_s)) for code, share in transcript.languages)
        own = tuple(
            replace(
                each,
                start_s=each.start_s + piece.start_s,
                end_s=each.end_s + piece.start_s,
                language=each.language or transcript.language,
            )
            for each in transcript.segments
        )
        if part.is_cut:
            own = tuple(each for each in own if start_s <= _middle(each) < end_s)
        if not text:
            return
        own_tags = dict(transcript.tags)
        if self._tags is not None:
            own_tags = {name: tag for name, tag in self._tags.items() if own_tags.get(name) == tag}
        self._tags = own_tags
        if words:
            start_s, end_s = words[0].start_s, words[-1].end_s
        segments = own or (Segment(text, start_s, end_s, language=transcript.language),)
        confidence = mean_confidence(words) if words else transcript.confidence
        kept = words if self._details else ()
        alternatives = () if part.is_cut or not self._details else transcript.alternatives
        found.append(
            Transcript(
                text=text,
                tokens=tuple(part.tokens),
                words=kept,
                confidence=confidence,
                audio_s=self._end_s,
                alternatives=tuple(_moved_alternative(each, piece.start_s) for each in alternatives),
                segment=len(self._texts),
                segments=segments,
                language=transcript.language,
                tags=transcript.tags,
            )
        )
        self._texts.append(text)
        self._segments += segments
        weight = len(words) or len(text.split())
        if confidence is None or self._weight is None:
            self._weight = None
        else:
            self._sure, self._weight = self._sure + confidence * weight, self._weight + weight
        self._words += kept
        self._tokens += part.tokens


def _share(left: _Part, right: _Part) -> None:
    """Leave every word that both pieces have to one of them."""
    cut_s = left.piece.keep_to_s
    context_s = left.piece.start_s + left.piece.duration_s - cut_s
    matches = [
        (round(abs(_middle(a) - _middle(b)) / SAME_TIME_S), abs(_middle(a) + _middle(b) - 2 * cut_s), i, j)
        for i, a in enumerate(left.words)
        if abs(_middle(a) - cut_s) <= context_s
        for j, b in enumerate(right.words)
        if abs(_middle(b) - cut_s) <= context_s
        and a.text.casefold() == b.text.casefold()
        and abs(_middle(a) - _middle(b)) <= SAME_WORD_S
    ]
    if matches:
        *_, i, j = min(matches)
        _keep(left, 0, i + 1)
        _keep(right, j + 1, len(right.words))
        return
    spans = [*left.words, *right.words]
    ends = [cut_s, *(t for each in spans for t in (each.start_s, each.end_s) if abs(t - cut_s) <= context_s)]
    free = [t for t in ends if not any(each.start_s < t < each.end_s for each in spans)]
    time_s = min(free, key=lambda t: abs(t - cut_s), default=cut_s)
    _keep(left, 0, sum(_middle(each) < time_s for each in left.words))
    _keep(right, sum(_middle(each) < time_s for each in right.words), len(right.words))


def _keep(part: _Part, first: int, end: int) -> None:
    """Keep the words from `first` to before `end`, and the tokens of their times."""
    if end - first == len(part.words):
        return
    words = part.words
    from_s = words[first - 1].end_s if first else float("-inf")
    to_s = words[end].start_s if end < len(words) else float("inf")
    part.tokens = [each for each in part.tokens if from_s <= _middle(each) <= to_s] if end > first else []
    part.words = words[first:end]
    part.is_cut = True


def _middle(span: Span | Segment) -> float:
    return (span.start_s + span.end_s) / 2


def _moved(spans: Sequence[Span], by_s: float) -> tuple[Span, ...]:
    return tuple(replace(each, start_s=each.start_s + by_s, end_s=each.end_s + by_s) for each in spans)


def _moved_alternative(reading: Alternative, by_s: float) -> Alternative:
    return replace(reading, tokens=_moved(reading.tokens, by_s), words=_moved(reading.words, by_s))
