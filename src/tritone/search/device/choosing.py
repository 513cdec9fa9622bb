"""The next token of many texts at once, each by its own rules: the device's form of `search/whisper/`.

logits (rows, vocab), `Texts`  ->  next tokens, log-probabilities; `Texts` of the next step

A row is a text under way. Its numbers are in columns of one table on the device, so that a row begins by one copy and
goes on by itself: tokens of its prompt are read one after the other, then what is written is chosen here, and a row
that has ended stands still. What nobody asked for in any row (sampling, beams) is left out of the step.
Source of the rules: openai/whisper whisper/decoding.py; see `search/whisper/rules.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

import torch
from torch import Tensor

INF = float("inf")
HEAT = 10**6  # of a temperature, as a whole number
NO_LIMIT = 2**40
NEVER = -1  # a position that no row reaches
# Multipliers of splitmix64, as signed numbers.
MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


class Column(IntEnum):
    """The numbers of a row, in front of its prompt.

    `TOKEN`, at `POSITION`, is read next. `START`: tokens of the prompt. `QUIET`: the position whose next token may be
    silence. `GOING`: whether the row goes on. `MOST`: tokens of the text. `WINDOW`: its slot. `TIMES`: whether times
    are written, the first at most `EARLY`. `LAST`: the last time; `AFTER`, `BEFORE`: whether the last token, and that
    before it, is a time. `HEAT`: temperature. `SEED`: of sampling. `FIRST`, `WIDTH`: the rows of a beam.
    """

    TOKEN = 0
    POSITION = auto()
    START = auto()
    QUIET = auto()
    GOING = auto()
    MOST = auto()
    WINDOW = auto()
    TIMES = auto()
    EARLY = auto()
    LAST = auto()
    AFTER = auto()
    BEFORE = auto()
    HEAT = auto()
    SEED = auto()
    FIRST = auto()
    WIDTH = auto()


@dataclass(frozen=True, kw_only=True)
class Specials:
    """Ids of a model's tokens, see `kinds.whisper.part.WhisperPart`."""

    eot: int
    no_timestamps: int
    timestamp_begin: int
    no_speech: int | None = None
    suppress_first: Sequence[int] = ()


class Texts:
    """The rows of texts on the device.

    `table` (rows, columns + context) int64: numbers by `Column`, and the prompt. `origin` (rows, context) int64: which
    row has each position. `forbidden` (rows, vocab) bool: what is never written. `total` (rows,) float32: the
    log-probability of a text of a beam.
    """

    def __init__(self, rows: int, context: int, vocab: int, device: torch.device) -> None:
        """Take the memory."""
        self.table = torch.zeros(rows, len(Column) + context, dtype=torch.int64, device=device)
        self.table[:, Column.WIDTH] = 1
        self.origin = torch.arange(rows, device=device).unsqueeze(1).repeat(1, context)
        self.total = torch.zeros(rows, dtype=torch.float32, device=device)
        self.forbidden = torch.zeros(rows, vocab, dtype=torch.bool, device=device)

    def column(self, rows: int, column: Column) -> Tensor:
        """A number of the first rows, which can be written to."""
        return self.table[:rows, column]

    def begin(self, rows: Tensor, numbers: Tensor, origin: Tensor) -> None:
        """Give rows other texts.

        Args:
            rows: (n,) int64.
            numbers: (n, columns + context) int64, as in `table`.
            origin: (n, context) int64.
        """
        self.table.index_copy_(0, rows, numbers)
        self.origin.index_copy_(0, rows, origin)
        # A beam begins with one text, which is in its first row.
        self.total.index_copy_(0, rows, torch.where(rows == numbers[:, Column.FIRST], 0.0, -INF))

    def end(self, rows: Tensor) -> None:
        """Have rows stand still."""
        self.table[rows, Column.GOING] = 0

    def forbid(self, rows: Tensor, tokens: Tensor) -> None:
        """Have rows never write some tokens (n,), and all others but those of the rules."""
        self.forbidden.index_fill_(0, rows, False)
        self.forbidden[rows.unsqueeze(1), tokens.unsqueeze(0)] = True


class Chooser:
    """Chooses the next tokens."""

    def __init__(self, specials: Specials, vocab: int, device: torch.device) -> None:
        """Take the ids of a model with `vocab` tokens."""
        self.specials = specials
        ids = torch.arange(vocab, device=device)
        self._ids, self._is_time = ids, ids >= specials.timestamp_begin
        self._is_plain = ids < specials.eot
        self._never_with_times = ids == specials.no_timestamps
        self.is_not_first = torch.isin(
            ids, torch.tensor(list(specials.suppress_first), dtype=torch.int64, device=device)
        )

    def scores(self, logits: Tensor, texts: Texts) -> Tensor:
        """Logits with -inf for all that the rules of each row forbid."""
        rows = len(logits)
        position, start, early, last = (
            texts.column(rows, each).unsqueeze(1) for each in (Column.POSITION, Column.START, Column.EARLY, Column.LAST)
        )
        times, after, before = (
            texts.column(rows, each).unsqueeze(1) != 0 for each in (Column.TIMES, Column.AFTER, Column.BEFORE)
        )
        written = position + 1 - start
        first = written <= 0
        is_time, ids, begin = self._is_time, self._ids, self.specials.timestamp_begin
        opened = after & ~(before | (written < 2))
        barred = self._never_with_times | (first & (~is_time | (ids > begin + early)))
        # Another time or the end; or no second time. A segment begins where the last one ended, and none is empty.
        later = (opened & self._is_plain) | (after & ~opened & is_time)
        later = later | ((last >= 0) & is_time & (ids < torch.where(opened, last, last + 1)))
        barred = texts.forbidden[:rows] | (first & self.is_not_first) | (times & (barred | (~first & later)))
        scores = logits.masked_fill(barred, -INF)
        moments, others = scores[:, begin:], scores[:, :begin]
        highest = moments.amax(1, keepdim=True)
        whole = (moments - highest.clamp(min=-1e30)).exp().sum(1, keepdim=True).log() + highest
        alone = times & (highest > -INF) & (whole > others.amax(1, keepdim=True))
        return scores.masked_fill(alone & ~is_time, -INF)

    def choose(self, logits: Tensor, texts: Texts, *, sampled: bool, scored: bool, beam: int = 1) -> Tensor:
        """Choose a token for each row, and move the rows on.

        Args:
            logits: (rows, vocab) of the tokens after those that rows have read.
            sampled: whether the temperature of any row is above 0.
            scored: whether anybody wants to know probabilities among plain tokens.
            beam: the most texts of a beam.

        Returns:
            (5, rows) float32: the chosen tokens, -1 while a prompt is read; their log-probabilities; the probability of
            silence where it was to be told; whether the row has ended; the log-probability among plain tokens.
            With beams (11, rows): two of the beam's likeliest continuations each, in order, as tokens, ranks of the
            texts that they continue, and log-probabilities.
        """
        rows, logits = len(logits), logits.float()
        column = lambda which: texts.column(rows, which)  # noqa: E731
        scores = self.scores(logits, texts)
        chosen = self._sampled(scores, texts) if sampled else scores.argmax(1)
        log_prob = scores.gather(1, chosen.unsqueeze(1)).squeeze(1) - scores.logsumexp(1)
        position, start, going = column(Column.POSITION), column(Column.START), column(Column.GOING) != 0
        silent = torch.zeros_like(log_prob)
        if self.specials.no_speech is not None:
            likely = (logits[:, self.specials.no_speech] - logits.logsumexp(1)).exp()
            silent = torch.where(position == column(Column.QUIET), likely, silent)
        plain = torch.zeros_like(log_prob)
        if scored:
            among = logits[:, : self.specials.eot]
            place = chosen.clamp(max=self.specials.eot - 1).unsqueeze(1)
            plain = among.gather(1, place).squeeze(1) - among.logsumexp(1)
        written = position + 1 - start
        reading = written < 0
        ended = ~reading & ((chosen == self.specials.eot) | (written + 1 >= column(Column.MOST)))
        token = torch.where(reading | ~going, -1, chosen)
        found = torch.stack([token.float(), log_prob, silent, (ended & going).float(), plain])
        in_beam = self.in_beams(texts, rows)
        self._move(texts, chosen, going & ~ended, reading, ~in_beam)
        if beam > 1:
            likeliest = scores.topk(min(2 * beam, scores.shape[1]), dim=1)
            ahead = self.follow(likeliest.values, likeliest.indices, logits.logsumexp(1), texts, in_beam, beam)
            found = torch.cat([found, ahead])
        return found

    def in_beams(self, texts: Texts, rows: int) -> Tensor:
        """Which of the first rows are of beams, and have read their prompts."""
        position, start = texts.column(rows, Column.POSITION), texts.column(rows, Column.START)
        return (texts.column(rows, Column.WIDTH) > 1) & (position + 1 >= start)

    def follow(self, values: Tensor, tokens: Tensor, sums: Tensor, texts: Texts, which: Tensor, beam: int) -> Tensor:
        """Choose what the texts of beams go on with, and move their rows on.

        Every row looks at the likeliest continuations of all texts of its beam, and takes that of its own rank.

        Args:
            values, tokens: (rows, 2 · beam) the largest scores of each row, best first.
            sums: (rows,) of what scores are up to a number.
            which: (rows,) bool, those of beams.

        Returns:
            (6, rows) float32, see `choose`.
        """
        rows, most, device = len(values), 2 * beam, values.device
        column = lambda of: texts.column(rows, of)  # noqa: E731
        width, first = (column(each).unsqueeze(1) for each in (Column.WIDTH, Column.FIRST))
        totals = values - sums.unsqueeze(1) + texts.total[:rows].unsqueeze(1)
        rank = torch.arange(beam, device=device)
        members = (first + rank).clamp(max=rows - 1)
        common = totals[members].masked_fill((rank >= width).unsqueeze(2), -INF).flatten(1)
        best, place = common.topk(min(most, common.shape[1]), dim=1)
        token = tokens[members].flatten(1).gather(1, place)
        source = place // values.shape[1]
        order = torch.arange(best.shape[1], device=device)
        able = (order < 2 * width) & (token != self.specials.eot) & (best > -INF)
        count = able.cumsum(1)
        own = torch.arange(rows, device=device).unsqueeze(1) - first
        # Where fewer texts are possible, the last one fills the rows, and is not followed.
        fills = own >= count[:, -1:]
        mine = able & (count == torch.where(fills, count[:, -1:], own + 1))
        taken = mine.long().argmax(1, keepdim=True)
        pair = (2 * own + torch.arange(2, device=device)).clamp(0, best.shape[1] - 1)
        scored = torch.stack([each.gather(1, pair).float() for each in (token, source, best)])
        position = column(Column.POSITION).clone()
        going = (column(Column.GOING) != 0) & (position + 2 - column(Column.START) < column(Column.MOST))
        moves = which & going
        total = torch.where(fills, -INF, best.gather(1, taken)).squeeze(1)
        texts.total[:rows] = torch.where(which, total, texts.total[:rows])
        token = token.gather(1, taken).squeeze(1)
        source = (first + source.gather(1, taken)).squeeze(1).clamp(0, rows - 1)
        # Its ancestors' positions are where they were written, the newest in the row that it continues.
        here = torch.arange(texts.origin.shape[1], device=device) == position.unsqueeze(1)
        origin = torch.where(here, source.unsqueeze(1), texts.origin[:rows][source])
        texts.origin[:rows] = torch.where(moves.unsqueeze(1), origin, texts.origin[:rows])
        before, last = column(Column.AFTER)[source], column(Column.LAST)[source]
        is_time = token >= self.specials.timestamp_begin
        new = {
            Column.TOKEN: token,
            Column.POSITION: position + 1,
            Column.BEFORE: before,
            Column.AFTER: is_time.long(),
            Column.LAST: torch.where(is_time, token, last),
        }
        for of, value in new.items():
            column(of).copy_(torch.where(moves, value, column(of)))
        column(Column.GOING).copy_(torch.where(which, going, column(Column.GOING)))
        return scored.permute(2, 0, 1).flatten(0, 1)

    def _move(self, texts: Texts, chosen: Tensor, going: Tensor, reading: Tensor, which: Tensor) -> None:
        """Have those rows that go on read what they chose, or the next of their prompt."""
        rows = len(chosen)
        column = lambda of: texts.column(rows, of)  # noqa: E731
        position = column(Column.POSITION)
        after = (position + 1 + len(Column)).clamp(max=texts.table.shape[1] - 1).unsqueeze(1)
        forced = texts.table[:rows].gather(1, after).squeeze(1)
        token = torch.where(reading, forced, chosen)
        is_time = ~reading & (token >= self.specials.timestamp_begin)
        new = {
            Column.TOKEN: token,
            Column.POSITION: position + 1,
            Column.BEFORE: torch.where(reading, 0, column(Column.AFTER)),
            Column.AFTER: is_time.long(),
            Column.LAST: torch.where(is_time, token, column(Column.LAST)),
        }
        for of, value in new.items():
            column(of).copy_(torch.where(going & which, value, column(of)))
        column(Column.GOING).copy_(torch.where(which, going, column(Column.GOING)))

    def _sampled(self, scores: Tensor, texts: Texts) -> Tensor:
        """The likeliest tokens, or samples where the temperature is above 0: by noise that is a row's own."""
        rows = len(scores)
        heat = texts.column(rows, Column.HEAT)
        seed = texts.column(rows, Column.SEED) + (texts.column(rows, Column.POSITION) << 32)
        # The largest of the scores with noise of Gumbel's distribution is a sample.
        uniform = hashed(seed.unsqueeze(1) + self._ids).double() * 2.0**-53 + 2.0**-54
        noise = -(-uniform.log()).log()
        hot = scores / (heat.float() / HEAT).clamp(min=1e-6).unsqueeze(1) + noise.float()
        return torch.where((heat > 0).unsqueeze(1), hot, scores).argmax(1)


def hashed(x: Tensor) -> Tensor:
    """53 bits that look random for each whole number."""
    for multiplier in MIX:
        x = (x ^ ((x >> 30) & (2**34 - 1))) * multiplier
    return ((x ^ ((x >> 31) & (2**33 - 1))) >> 11) & (2**53 - 1)
