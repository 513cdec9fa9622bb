"""Guessing how greedy texts go on, with a smaller model: speculative decoding.

    texts so far  ->  some tokens further of each, which the model itself then reads in one call

A guess counts as far as it is what the model itself takes, so a text is that of the model alone; see `Writing`.
Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), at temperature 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritone.search.whisper.decoding import Decoder, Job

GUESSES = 4  # of a text at a time


@dataclass
class _Row:
    """A row of the smaller model: its place, and the tokens of the text that it has read."""

    place: int
    read: list[int] = field(default_factory=list)


class Draft:
    """A smaller model that has the tokens of another, and guesses by the rules of that one's texts."""

    def __init__(self, decoder: Decoder, context: int) -> None:
        """Take its decoder, without rows, and how many tokens prompt and text together have at most."""
        self._decoder, self._context = decoder, context
        self._count = 0  # of the decoder's rows
        self._rows: dict[int, _Row] = {}  # of windows

    def join(self, windows: Sequence[int], jobs: Sequence[Job]) -> None:
        """Read the prompts of some windows."""
        prompts = [job.prompt for job in jobs]
        self._decoder.begin(windows, prompts, [[len(prompt) - 1] for prompt in prompts])
        self._rows.update((window, _Row(self._count + place)) for place, window in enumerate(windows))
        self._count += len(windows)

    def guess(self, texts: Mapping[int, tuple[Job, Sequence[int]]]) -> dict[int, list[int]]:
        """What texts may go on with, at most `GUESSES` tokens of each, none of them the end.

        Args:
            texts: of all windows that are left, what is written, and the tokens so far, which are some.
        """
        guesses: dict[int, list[int]] = {window: [] for window in texts}
        # Rows of a call read equally many tokens, some of them fillers, whose positions are within the context, too.
        most = min(GUESSES, *(self._context - len(job.prompt) - len(tokens) for job, tokens in texts.values()))
        room = {window: min(most, job.max_tokens - len(tokens) - 1) for window, (job, tokens) in texts.items()}
        rows = [self._rows[window] for window in texts]
        right = [common(row.read, tokens[:-1]) for row, (_, tokens) in zip(rows, texts.values(), strict=True)]
        unread = [[*tokens[start:]] for start, (_, tokens) in zip(right, texts.values(), strict=True)]
        undone = [len(row.read) - start for row, start in zip(rows, right, strict=True)]
        while any(left > 0 for left in room.values()):
            logits = self._decoder.step(unread, [row.place for row in rows], undone)
            rows = [
                _Row(place, [*row.read[: len(row.read) - wrong], *new])
                for place, (row, wrong, new) in enumerate(zip(rows, undone, unread, strict=True))
            ]
            self._rows, self._count = dict(zip(texts, rows, strict=True)), len(rows)
            undone = [0] * len(rows)
            for place, (window, (job, _)) in enumerate(texts.items()):
                last, unread[place] = len(unread[place]) - 1, []
                if room[window] <= 0:
                    continue
                scores = logits[place, last]
                job.rules.apply(scores, rows[place].read)
                token = int(scores.argmax())
                room[window] = 0 if token == job.rules.eot else room[window] - 1
                guesses[window] += [token] if token != job.rules.eot else []
                unread[place] = [token] if room[window] > 0 else []
        return guesses


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
