"""Writing the texts of some windows together: greedily or by sampling, or with a beam.

    Job (prompt, rules) of each window, the decoder's network  ->  Written (tokens, log-probability) of each

Windows are independent: a text is the same whatever is decoded beside it. They join and leave the batch at every step.
Sources: openai/whisper whisper/decoding.py, `GreedyDecoder` and `DecodingTask`; the beam is that of transformers,
src/transformers/generation/utils.py, `_beam_search`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.search.whisper.rules import Logits, Rules

Array = npt.NDArray[np.float32]
BLOCK = 128  # of a vocabulary; some hundred blocks of as many tokens are looked through fastest


class Decoder(Protocol):
    """The network that says what comes next, with the caches of its rows. One window has one row or several."""

    def begin(self, windows: Sequence[int], prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> Array:
        """Read a prompt for each of some windows, which are rows behind those that there are.

        Args:
            places: positions in each prompt, equally many.

        Returns:
            Logits (windows, places, vocab) of the tokens after them.
        """

    def step(
        self, tokens: Sequence[Sequence[int]], sources: Sequence[int], undone: Sequence[int] | None = None
    ) -> Array:
        """Read some more tokens for each row; rows that none continues are gone.

        Args:
            sources: which of the rows the rows of this call continue. Rows of one window stand together, as many for
                each window that is left.
            undone: how many of the last tokens of each of these do not count any more.

        Returns:
            Logits (rows, most tokens of a row, vocab) after each token; of a row with fewer, the last ones say nothing.
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


class Sampled:
    """The text of one window at a temperature, greedy at 0, or several of which the likeliest is taken."""

    def __init__(self, job: Job) -> None:
        """Take what is to be written."""
        self.job, self.is_over = job, False
        self._rows = [_Row() for _ in range(job.width)]
        self._ended = [False] * job.width
        self._random = np.random.default_rng(job.seed) if job.temperature else None

    def advance(self, logits: Logits) -> tuple[list[int], list[int]]:
        """Choose what goes on, of the logits (1 or texts, vocab); returns a token for each text, and what it continues.

        Those that have ended are filled up with the end, as every window has as many rows.
        """
        job, tokens = self.job, list[int]()
        if len(logits) < job.width:  # after the prompt
            logits = np.repeat(logits, job.width, axis=0)
            sources = [0] * job.width
        else:
            sources = list(range(job.width))
        for copy, (row, scores) in enumerate(zip(self._rows, logits, strict=True)):
            if self._ended[copy]:
                tokens.append(job.rules.eot)
                continue
            job.rules.apply(scores, row.tokens)
            token = _chosen(scores, job.temperature, self._random)
            row.log_prob += float(log_softmax(scores)[token])
            if token == job.rules.eot:
                self._ended[copy] = True
            else:
                row.tokens.append(token)
                self._ended[copy] = len(row.tokens) >= job.max_tokens
            tokens.append(token)
        self.is_over = all(self._ended)
        return tokens, sources

    @property
    def tokens(self) -> list[int]:
        """Those of the first text."""
        return self._rows[0].tokens

    def written(self, no_speech_prob: float) -> Written:
        """The likeliest text."""
        return likeliest(
            [
                Written(tokens=tuple(row.tokens), log_prob=row.log_prob, no_speech_prob=no_speech_prob)
                for row in self._rows
            ]
        )


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
    def tokens(self) -> list[int]:
        """Those of the likeliest text."""
        return self.going[0].tokens

    @property
    def best(self) -> _Row:
        """The best text that has ended, its end included, or else the likeliest."""
        return self.ended[0][1] if self.ended else self.going[0]

    def written(self, no_speech_prob: float) -> Written:
        """The best text."""
        row = self.best
        tokens = row.tokens[:-1] if row.tokens and row.tokens[-1] == self.job.rules.eot else row.tokens
        return Written(tokens=tuple(tokens), log_prob=row.log_prob, no_speech_prob=no_speech_prob)


@dataclass
class _Going:
    """A text under way: its next tokens, what they continue, and how many tokens of that do not count."""

    text: Sampled | Beam
    quiet: float
    tokens: list[int]
    sources: list[int]
    undone: int = 0


class Guessing(Protocol):
    """What guesses how greedy texts go on, see `guessing.Draft`."""

    def join(self, windows: Sequence[int], jobs: Sequence[Job]) -> None: ...

    def guess(self, texts: Mapping[int, tuple[Job, Sequence[int]]]) -> Mapping[int, Sequence[int]]: ...


class Writing:
    """Texts under way that have equally many rows each. Windows join and leave between any two steps."""

    def __init__(self, decoder: Decoder, draft: Guessing | None = None) -> None:
        """Take a decoder without rows, and for greedy texts perhaps what guesses ahead: they stay the same."""
        self._decoder, self._draft = decoder, draft
        self._count = 0  # of the decoder's rows
        self._next: dict[int, _Going] = {}  # of windows, in their order

    def __len__(self) -> int:
        return len(self._next)

    @property
    def windows(self) -> list[int]:
        """Those whose texts are under way."""
        return [*self._next]

    def join(self, windows: Sequence[int], jobs: Sequence[Job]) -> list[tuple[int, Written]]:
        """Begin the texts of some windows, and return those that are over, as `step`."""
        places = [(job.sot, len(job.prompt) - 1) for job in jobs]
        if self._draft is not None:
            self._draft.join(windows, jobs)
        logits = self._decoder.begin(windows, [job.prompt for job in jobs], places)
        row, self._count = self._count, self._count + len(jobs)
        ended: list[tuple[int, Written]] = []
        for window, job, (first, last) in zip(windows, jobs, logits, strict=True):
            quiet = float(np.exp(log_softmax(first)[job.no_speech])) if job.no_speech is not None else 0.0
            text = Beam(job) if job.temperature == 0 and job.beam > 1 else Sampled(job)
            ended += self._go_on(window, _Going(text, quiet, [], []), last[None, None], [], row)
            row += 1
        return ended

    def step(self) -> list[tuple[int, Written]]:
        """Choose the next tokens of each text; returns the windows whose texts are over, and these."""
        going = [*self._next.items()]
        guesses: Mapping[int, Sequence[int]] = {}
        if self._draft is not None:
            guesses = self._draft.guess({window: (each.text.job, each.text.tokens) for window, each in going})
        logits = self._decoder.step(
            [[token, *guesses.get(window, ())] for window, each in going for token in each.tokens],
            [source for _, each in going for source in each.sources],
            [each.undone for _, each in going for _ in each.sources],
        )
        self._next, self._count = {}, len(logits)
        ended: list[tuple[int, Written]] = []
        first = 0
        for window, each in going:
            rows = logits[first : first + len(each.tokens)]
            ended += self._go_on(window, each, rows, guesses.get(window, ()), first)
            first += len(each.tokens)
        return ended

    def leave(self, window: int) -> None:
        """Forget a window's text, if it has one."""
        self._next.pop(window, None)

    def _go_on(
        self, window: int, going: _Going, logits: Array, guesses: Sequence[int], first: int
    ) -> list[tuple[int, Written]]:
        """Choose what a text goes on with, as far as each guess is what is chosen.

        Args:
            logits: (rows, places, vocab), after its last token and each guess.
            first: its first row.
        """
        text = going.text
        for place in range(len(guesses) + 1):
            tokens, sources = text.advance(logits[:, place])
            if text.is_over:
                return [(window, text.written(going.quiet))]
            if place < len(guesses) and guesses[place] != tokens[0]:
                break
        sources = [first + source for source in sources]
        self._next[window] = _Going(text, going.quiet, tokens, sources, len(guesses) - place)
        return []
