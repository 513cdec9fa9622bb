"""Writing the text of some windows together: greedily or by sampling, or with a beam.

    Job (prompt, rules) of each window, the decoder's network  ->  Written (tokens, log-probability) of each

Windows are independent: a text is the same whatever is decoded beside it. Those that have ended leave the batch.
Sources: openai/whisper whisper/decoding.py, `GreedyDecoder` and `DecodingTask`; the beam is that of transformers,
src/transformers/generation/utils.py, `_beam_search`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.search.whisper.rules import Logits, Rules

Array = npt.NDArray[np.float32]
BLOCK = 128  # of a vocabulary; some hundred blocks of as many tokens are looked through fastest


class Decoder(Protocol):
    """The network that says what comes next, with the caches of its rows. One recording has one row or several."""

    def begin(self, prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Array:
        """Read a prompt for each recording, which are rows from then on.

        Args:
            places: positions in each prompt, equally many.

        Returns:
            Logits (rows, places, vocab) of the tokens after them.
        """

    def step(self, tokens: Sequence[int], sources: Sequence[int]) -> Array:
        """Read one more token for each row.

        Args:
            sources: which rows of the last call the rows of this one continue. Rows of one recording stand together,
                as many for each recording that is left.

        Returns:
            Logits (rows, vocab) of the tokens after it.
        """


@dataclass(frozen=True, kw_only=True)
class Job:
    """A window to be written.

    `prompt`: all tokens before the text; `sot`: the place of the start token in it. `max_tokens`: of the text.
    `temperature`: 0 takes the likeliest token; any other samples, `copies` texts of which the likeliest is taken.
    `seed`: of sampling, of this window and attempt alone. `keeps_attention`: what the text attends to is wanted, where
    that is kept. `beam`: with temperature 0, texts that are followed together; 1 is greedy. `begun`: tokens at the end
    of the prompt that the text begins with; then `sot` is the place of the last of them.
    """

    prompt: Sequence[int]
    sot: int
    rules: Rules
    max_tokens: int
    begun: int = 0
    no_speech: int | None = None
    temperature: float = 0.0
    copies: int = 1
    seed: tuple[int, ...] = ()
    keeps_attention: bool = False
    beam: int = 1
    length_penalty: float = 1.0

    @property
    def width(self) -> int:
        """Rows that it takes."""
        return self.copies if self.temperature else self.beam


@dataclass(frozen=True)
class Attention:
    """What was kept of a text: how much each token, and its end, attended to each position, and their probabilities.

    `matrix` (tokens + 1, positions) float32, called when it is wanted; `probabilities` (tokens,) of each among those of
    plain text.
    """

    matrix: Callable[[], Array]
    probabilities: Array


@dataclass(frozen=True, kw_only=True)
class Written:
    """The text of a window: tokens without the end, their log-probability, and the probability of silence."""

    tokens: tuple[int, ...]
    log_prob: float
    no_speech_prob: float = 0.0
    attention: "Attention | None" = None

    @property
    def avg_log_prob(self) -> float:
        """Mean log-probability of a token, the end among them."""
        return self.log_prob / (len(self.tokens) + 1)


def decode(jobs: Sequence[Job], decoder_of: Callable[[Sequence[int]], Decoder]) -> list[Written]:
    """Write the texts of all jobs, those together that take equally many rows.

    Args:
        decoder_of: makes a decoder for the windows of some jobs, by their indices.
    """
    found: dict[int, Written] = {}
    groups: dict[tuple[bool, int], list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault((job.temperature == 0 and job.beam > 1, job.width), []).append(index)
    for (with_beam, _), indices in groups.items():
        chosen = [jobs[index] for index in indices]
        write = _write_beams if with_beam else _write_samples
        found.update(zip(indices, write(chosen, decoder_of(indices)), strict=True))
    return [found[index] for index in range(len(jobs))]


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities along the last axis, float32."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Logits = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


@dataclass
class _Row:
    """One text under way."""

    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    # Of a beam: the place of the text that each token continued, and the log-probability of both.
    steps: list[tuple[int, float]] = field(default_factory=list)


def _start(jobs: Sequence[Job], decoder: Decoder) -> tuple[Array, list[float]]:
    """Logits (jobs, vocab) of the first tokens, and the probabilities of silence."""
    logits = decoder.begin([job.prompt for job in jobs], [(job.sot, len(job.prompt) - 1) for job in jobs])
    silent = [
        float(np.exp(log_softmax(first)[job.no_speech])) if job.no_speech is not None else 0.0
        for job, first in zip(jobs, logits[:, 0], strict=True)
    ]
    return np.ascontiguousarray(logits[:, 1]), silent


def _write_samples(jobs: Sequence[Job], decoder: Decoder) -> list[Written]:
    copies = jobs[0].width
    logits, silent = _start(jobs, decoder)
    rows = [[_Row() for _ in range(copies)] for _ in jobs]
    randoms = [np.random.default_rng(job.seed) if job.temperature else None for job in jobs]
    active = list(range(len(jobs)))
    ended = [[False] * copies for _ in jobs]
    logits = np.repeat(logits, copies, axis=0)
    sources = np.repeat(np.arange(len(jobs)), copies)  # the first step continues the prompts
    while active:
        tokens = []
        for place, index in enumerate(active):
            job = jobs[index]
            for copy, row in enumerate(rows[index]):
                if ended[index][copy]:
                    tokens.append(job.rules.eot)
                    continue
                scores = logits[place * copies + copy]
                job.rules.apply(scores, row.tokens)
                token = _chosen(scores, job.temperature, randoms[index])
                row.log_prob += float(log_softmax(scores)[token])
                if token == job.rules.eot:
                    ended[index][copy] = True
                else:
                    row.tokens.append(token)
                    ended[index][copy] = len(row.tokens) >= job.max_tokens
                tokens.append(token)
        going = [place for place, index in enumerate(active) if not all(ended[index])]
        if not going:
            break
        kept = [place * copies + copy for place in going for copy in range(copies)]
        logits = decoder.step([tokens[row] for row in kept], [int(sources[row]) for row in kept])
        active = [active[place] for place in going]
        sources = np.arange(len(active) * copies)
    return [
        likeliest([Written(tokens=tuple(row.tokens), log_prob=row.log_prob, no_speech_prob=quiet) for row in each])
        for each, quiet in zip(rows, silent, strict=True)
    ]


def _chosen(scores: Logits, temperature: float, random: np.random.Generator | None) -> int:
    if random is None:
        return int(scores.argmax())
    # The largest of the scores with noise of Gumbel's distribution is a sample.
    return int((scores / temperature + random.gumbel(size=len(scores))).argmax())


def likeliest(found: Sequence[Written]) -> Written:
    """The likeliest of several texts, by the mean over its tokens."""
    return max(found, key=lambda each: each.log_prob / max(1, len(each.tokens)))


def _likeliest(scores: Logits, sums: Logits, before: Logits, most: int) -> Iterator[tuple[int, int, float]]:
    """The likeliest next tokens of some texts: (text, token, log-probability of both), equals in their order.

    The largest numbers lie in the blocks with the largest maxima, so that no more than those are sorted.

    Args:
        scores: (texts, vocab), up to a number for each text, which is in `sums`.
        before: (texts,), log-probabilities of the texts.
    """
    texts, vocab = scores.shape
    whole = vocab // BLOCK * BLOCK
    parts = [scores[:, :whole].reshape(texts, -1, BLOCK).max(axis=2)]
    if whole < vocab:
        parts.append(scores[:, whole:].max(axis=1, keepdims=True))
    maxima = np.concatenate(parts, axis=1) - sums[:, None] + before[:, None]
    text, block = np.divmod(_largest(maxima.ravel(), most), maxima.shape[1])
    text, token = np.repeat(text, BLOCK), (block[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    text, token = text[token < vocab], token[token < vocab]
    totals = scores[text, token] - sums[text] + before[text]
    best = _largest(totals, most)
    best = best[np.argsort(-totals[best], kind="stable")]
    yield from zip(text[best].tolist(), token[best].tolist(), totals[best].tolist(), strict=True)


def _largest(values: Logits, most: int) -> npt.NDArray[np.intp]:
    """Places of the largest numbers of a vector, in their order."""
    return np.sort(np.argpartition(-values, most - 1)[:most]) if most < len(values) else np.arange(len(values))


@dataclass
class Beam:
    """The texts of one window that are followed, likeliest first, and the best that have ended, by their scores."""

    job: Job
    going: list[_Row] = field(default_factory=lambda: [_Row()])
    ended: list[tuple[float, _Row]] = field(default_factory=list)
    is_over: bool = False

    def advance(self, logits: Logits) -> tuple[list[int], list[int]]:
        """Choose what goes on, of the logits (texts, vocab); returns its tokens, and the texts that they continue."""
        job, size = self.job, self.job.beam
        scores = logits - logits.max(axis=-1, keepdims=True)
        sums = np.log(np.exp(scores).sum(axis=-1))
        for row, each in zip(self.going, scores, strict=True):
            job.rules.apply(each, row.tokens)
        before = np.array([row.log_prob for row in self.going], np.float32)
        return self.take(_likeliest(scores, sums, before, 2 * size))

    def take(self, likeliest: Iterable[tuple[int, int, float]]) -> tuple[list[int], list[int]]:
        """The same, of the likeliest continuations: the text that each continues, a token, the sum of both."""
        job, size = self.job, self.job.beam
        going: list[tuple[_Row, int, int]] = []
        length = len(self.going[0].tokens) + 1
        for rank, (source, token, total) in enumerate(likeliest):
            if total == -np.inf:
                break
            before = self.going[source]
            row = _Row([*before.tokens, token], total, [*before.steps, (source, total)])
            if token != job.rules.eot and length < job.max_tokens:
                going.append((row, token, source))
            elif rank < size:
                self.ended.append((row.log_prob / length**job.length_penalty, row))
        self.ended = sorted(self.ended, key=lambda each: -each[0])[:size]
        going = going[:size]
        self.is_over = not going or (
            len(self.ended) == size and going[0][0].log_prob / length**job.length_penalty <= self.ended[-1][0]
        )
        # Every window has as many rows; where fewer texts are possible, the last one fills them and is not followed.
        going += [(replace(row, log_prob=-np.inf), token, source) for row, token, source in going[-1:]] * (
            size - len(going)
        )
        self.going = [row for row, _, _ in going] or self.going
        return [token for _, token, _ in going], [source for _, _, source in going]

    @property
    def best(self) -> _Row:
        """The best text that has ended, its end included, or else the likeliest."""
        return self.ended[0][1] if self.ended else self.going[0]

    def written(self, no_speech_prob: float) -> Written:
        """The best text."""
        row = self.best
        tokens = row.tokens[:-1] if row.tokens and row.tokens[-1] == self.job.rules.eot else row.tokens
        return Written(tokens=tuple(tokens), log_prob=row.log_prob, no_speech_prob=no_speech_prob)


def _write_beams(jobs: Sequence[Job], decoder: Decoder) -> list[Written]:
    logits, silent = _start(jobs, decoder)
    beams = [Beam(job) for job in jobs]
    active = list(beams)
    while active:
        tokens: list[int] = []
        sources: list[int] = []
        left: list[Beam] = []
        first = 0
        for beam in active:
            count = len(beam.going)
            chosen, continued = beam.advance(logits[first : first + count])
            if not beam.is_over:
                left.append(beam)
                tokens += chosen
                sources += [first + source for source in continued]
            first += count
        active = left
        if active:
            logits = decoder.step(tokens, sources)
    return [beam.written(quiet) for beam, quiet in zip(beams, silent, strict=True)]
