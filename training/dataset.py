"""Endless, reproducible training batches made on the fly from a `Corpus`.

    (seed, batch number) -> Batch: waveforms (batch, samples) int16, tokens (batch, length), their lengths

A batch depends on its number alone, so any number of worker processes gives the same training run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from training.augment import Augmenter, change_speed
from training.corpus import SAMPLE_RATE, SERVED_TAIL_S, Corpus
from training.grammar import DIGITS
from training.words import WordBank

FRAME_LENGTH, FRAME_SHIFT = 400, 160  # samples: fbank window and hop
SUBSAMPLING, RIGHT_CONTEXT = 4, 6  # fbank frames of conv2d subsampling
BATCHES_PER_PLAN = 8  # this many batches are drawn together and sorted by length
EDGES_S = tuple(round(1.0 * 1.25**step, 2) for step in range(14))  # 1 to 18.2 s: lengths of batches of fixed shapes
MOSTLY = 0.97  # share of a batch's utterances that must fit its shape; the others are left out
FILLED = 0.9  # utterances of such a batch are on average this much of its length
CROSS_FADE_S = (0.01, 0.04)
WORD_CROSS_FADE_S = (0.005, 0.015)  # words cut out of sentences have no silence around them to overlap


class Vocabulary(Protocol):
    """Texts as ids."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""

    def frames_needed(self, text: str) -> int:
        """Fewest encoder frames on which a loss can align `text`."""


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """What the batches are made of. `shares` are relative weights of the corpora and of noise alone ("silence")."""

    shares: dict[str, float] = field(
        default_factory=lambda: {
            "an4": 0.36,
            "fsdd": 0.17,
            "speech_commands": 0.17,
            "synthetic": 0.2,
            "librispeech_mini": 0.06,
            "silence": 0.04,
        }
    )
    join_an4: float = 0.25  # share of AN4 utterances that are 2-4 of one speaker joined
    join_synthetic: float = 0.1
    word_share: float = 0.3  # share of "an4_words", utterances joined of aligned AN4 words, where word times are given
    word_gap: float = 0.3  # share of these words that a pause of `word_gap_range_s` follows
    word_gap_range_s: tuple[float, float] = (0.0, 0.25)
    digits_only: float = 0.4  # share of Speech Commands strings that hold digits alone
    gap_range_s: tuple[float, float] = (0.0, 0.4)
    no_gap: float = 0.3  # words that follow at once or cross-fade
    long_gap: float = 0.08  # pauses up to 1.6 s
    trimmed: float = 0.75  # strings whose recordings lose the silence at both ends before they are joined
    edge_range_s: tuple[float, float] = (0.0, 0.5)
    bare_edges: float = 0.3  # utterances that start and end with their first and last sound
    served_tail_s: float = SERVED_TAIL_S
    served_tail: float = 0.7  # share of utterances that have it; always those with bare edges
    silence_range_s: tuple[float, float] = (0.3, 4.0)
    max_seconds: float = 16.0
    subsampling: int = SUBSAMPLING  # of the network, so that utterances last long enough for their text


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One utterance before it is rendered.

    Pieces are (recording, begin, end); a gap follows each piece, negative where the next one overlaps. Where they are
    `matched`, as words of several speakers are, they are brought to the level of the first.
    """

    pieces: list[tuple[int, int, int]]
    gaps: list[int]
    lead: int
    tail: int
    speed: float
    text: str
    narrow: bool
    seed: int
    matched: bool = False
    served_tail: int = 0  # zeros after everything else, which no augmentation touches

    @property
    def num_samples(self) -> int:
        joined = sum(end - begin for _, begin, end in self.pieces) + sum(self.gaps)
        return self.lead + int(joined / self.speed) + self.tail + self.served_tail


class Batch(NamedTuple):
    """waveforms (batch, samples) int16, num_samples (batch,), tokens (batch, length), num_tokens; padded with zeros."""

    waveforms: Tensor
    num_samples: Tensor
    tokens: Tensor
    num_tokens: Tensor


class Shape(NamedTuple):
    """Sizes of a batch: utterances, samples and tokens of the longest."""

    rows: int
    samples: int
    tokens: int


def batch_shapes(batch_seconds: float) -> list[Shape]:
    """The few shapes that batches have if they have fixed ones. Few utterances have more tokens than these let them."""
    return [
        Shape(
            rows=max(1, round(batch_seconds / (FILLED * edge))),
            samples=round(edge * SAMPLE_RATE),
            tokens=3 + int(edge * (5.5 if edge < 7.0 else 8.8)),
        )
        for edge in EDGES_S
    ]


def encoder_frames(num_samples: int) -> int:
    """Frames that the network makes of a waveform: fbank without partial windows, then conv2d subsampling."""
    frames = 0 if num_samples < FRAME_LENGTH else 1 + (num_samples - FRAME_LENGTH) // FRAME_SHIFT
    return max(0, (frames - RIGHT_CONTEXT - 1) // SUBSAMPLING + 1) if frames > RIGHT_CONTEXT else 0


def samples_for(frames: int, subsampling: int = SUBSAMPLING) -> int:
    """Fewest samples that give `frames` encoder frames."""
    return FRAME_LENGTH + FRAME_SHIFT * (subsampling * (frames - 1) + RIGHT_CONTEXT)


class Planner:
    """Draws utterances: which recordings, joined how, said how fast.

    Raises:
        ValueError: the shares name "an4_words" without a `bank` to draw them from.
    """

    def __init__(
        self,
        corpus: Corpus,
        config: MixtureConfig,
        augmenter: Augmenter,
        units: Vocabulary,
        bank: WordBank | None = None,
    ) -> None:
        self.corpus, self.config, self.augmenter, self.units, self.bank = corpus, config, augmenter, units, bank
        self.groups: dict[str, list[int]] = defaultdict(list)
        self.speakers: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.speaker_digits: dict[str, list[int]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        for index, recording in enumerate(corpus.recordings):
            self.groups[recording.corpus].append(index)
            self.speakers[recording.corpus][recording.speaker].append(index)
            if recording.corpus == "speech_commands":
                counts[recording.text] += 1
                if recording.text in DIGITS:
                    self.speaker_digits[recording.speaker].append(index)
        wanted = dict(config.shares)
        if bank is not None:
            wanted.setdefault("an4_words", config.word_share)
        elif "an4_words" in wanted:
            raise ValueError(
                "mixture.shares names an4_words, but no word times were given; write them with training.align and "
                "pass them to training.train as --words"
            )
        always = ("silence", "an4_words")
        shares = {name: share for name, share in wanted.items() if name in always or self.groups[name]}
        self.kinds = list(shares)
        self.kind_edges = np.cumsum(list(shares.values())) / sum(shares.values())
        # Thin words come as often as the square root of their number says: "two" is drawn more, "zero" less.
        words = self.groups["speech_commands"]
        rarity = np.array([counts[corpus.recordings[index].text] ** -0.5 for index in words])
        self.word_edges = np.cumsum(rarity) / max(1e-9, rarity.sum())
        self.digit_words = [index for index in words if corpus.recordings[index].text in DIGITS]
        rarity = np.array([counts[corpus.recordings[index].text] ** -0.5 for index in self.digit_words])
        self.digit_edges = np.cumsum(rarity) / max(1e-9, rarity.sum())

    def draw(self, rng: np.random.Generator) -> Plan:
        """Draw one utterance that CTC can align."""
        kind = self.kinds[_pick(self.kind_edges, rng)]
        if kind == "silence":
            samples = int(rng.uniform(*self.config.silence_range_s) * SAMPLE_RATE)
            return Plan(pieces=[], gaps=[], lead=samples, tail=0, speed=1.0, text="", narrow=False, seed=_seed(rng))
        if kind == "an4_words" and self.bank is not None:
            return self._draw_words(self.bank, rng)
        indices = getattr(self, f"_draw_{kind}")(rng)
        return self._arrange(kind, indices, rng)

    def _draw_words(self, bank: WordBank, rng: np.random.Generator) -> Plan:
        words, one_speaker = bank.draw(rng)
        gaps = [self._draw_gap("an4_words", rng) for _ in words]
        pieces = [(word.recording, word.begin, word.end) for word in words]
        return self._finish("an4_words", pieces, gaps, " ".join(word.text for word in words), rng, not one_speaker)

    def _draw_an4(self, rng: np.random.Generator) -> list[int]:
        first = _choice(self.groups["an4"], rng)
        if rng.random() >= self.config.join_an4:
            return [first]
        others = self.speakers["an4"][self.corpus.recordings[first].speaker]
        return [first] + [_choice(others, rng) for _ in range(int(rng.integers(1, 4)))]

    def _draw_synthetic(self, rng: np.random.Generator) -> list[int]:
        # Every synthetic utterance is a voice of its own; a few joins teach that the voice may change.
        count = int(rng.integers(2, 4)) if rng.random() < self.config.join_synthetic else 1
        return [_choice(self.groups["synthetic"], rng) for _ in range(count)]

    def _draw_librispeech_mini(self, rng: np.random.Generator) -> list[int]:
        return [_choice(self.groups["librispeech_mini"], rng)]

    def _draw_fsdd(self, rng: np.random.Generator) -> list[int]:
        first = _choice(self.groups["fsdd"], rng)
        same = self.speakers["fsdd"][self.corpus.recordings[first].speaker]
        return [first] + [_choice(same, rng) for _ in range(int(rng.integers(0, 9)))]

    def _draw_speech_commands(self, rng: np.random.Generator) -> list[int]:
        digits = rng.random() < self.config.digits_only and self.digit_words
        if digits:
            first = self.digit_words[_pick(self.digit_edges, rng)]
            same = self.speaker_digits[self.corpus.recordings[first].speaker]
        else:
            first = self.groups["speech_commands"][_pick(self.word_edges, rng)]
            same = self.speakers["speech_commands"][self.corpus.recordings[first].speaker]
        # Few recordings must not be said over and over again.
        count = min(int(rng.integers(0, 8 if digits else 5)), 2 * len(same) - 1)
        return [first] + [_choice(same, rng) for _ in range(count)]

    def _arrange(self, kind: str, indices: list[int], rng: np.random.Generator) -> Plan:
        config, corpus = self.config, self.corpus
        limit = int(config.max_seconds * SAMPLE_RATE)
        trim = rng.random() < config.trimmed and (len(indices) > 1 or kind == "speech_commands")
        pieces: list[tuple[int, int, int]] = []
        gaps: list[int] = []
        total = 0
        order = rng.permutation(len(indices)) if len(indices) > 1 else [0]
        for place in order:
            index = indices[place]
            begin, end = corpus.voiced[index].tolist() if trim else (0, corpus.recordings[index].num_samples)
            if pieces and total + end - begin > limit:
                break
            pieces.append((index, begin, end))
            gaps.append(self._draw_gap(kind, rng))
            total += end - begin + max(0, gaps[-1])
        return self._finish(kind, pieces, gaps, " ".join(corpus.recordings[index].text for index, _, _ in pieces), rng)

    def _finish(
        self,
        kind: str,
        pieces: list[tuple[int, int, int]],
        gaps: list[int],
        text: str,
        rng: np.random.Generator,
        matched: bool = False,
    ) -> Plan:
        config = self.config
        gaps[-1] = 0
        lead, tail = (int(rng.uniform(*config.edge_range_s) * SAMPLE_RATE) for _ in range(2))
        bare = rng.random() < config.bare_edges
        if bare:
            lead = tail = 0
        served = bare or rng.random() < config.served_tail
        plan = Plan(
            pieces=pieces,
            gaps=gaps,
            lead=lead,
            tail=tail,
            speed=self.augmenter.draw_speed(rng),
            text=text,
            narrow=kind == "fsdd",
            seed=_seed(rng),
            matched=matched,
            served_tail=int(config.served_tail_s * SAMPLE_RATE) if served else 0,
        )
        # Very short words can have more letters than frames; silence behind them makes room.
        needed = samples_for(self.units.frames_needed(text) + 1, config.subsampling)
        missing = needed - plan.num_samples
        return plan if missing <= 0 else replace(plan, served_tail=plan.served_tail + missing)

    def _draw_gap(self, kind: str, rng: np.random.Generator) -> int:
        config, draw = self.config, rng.random()
        if kind in ("an4", "synthetic"):  # whole utterances: people breathe between them
            return int(rng.uniform(0.05, 1.6 if draw < 0.5 else 0.5) * SAMPLE_RATE)
        if kind == "an4_words":
            if draw < config.word_gap:
                return int(rng.uniform(*config.word_gap_range_s) * SAMPLE_RATE)
            return -int(rng.uniform(*WORD_CROSS_FADE_S) * SAMPLE_RATE)
        if draw < config.no_gap:
            return -int(rng.uniform(*CROSS_FADE_S) * SAMPLE_RATE) if rng.random() < 0.5 else 0
        top = 1.6 if draw > 1.0 - config.long_gap else config.gap_range_s[1]
        return int(rng.uniform(config.gap_range_s[0], top) * SAMPLE_RATE)

    def render(self, plan: Plan) -> np.ndarray:
        """Make the waveform of a plan: int16, `plan.num_samples` long."""
        rng = np.random.default_rng(plan.seed)
        joined = self._join(plan, rng)
        voice = change_speed(joined, plan.speed)
        waveform = np.zeros(plan.num_samples - plan.served_tail, np.float32)
        begin = plan.lead
        end = min(begin + len(voice), len(waveform))
        waveform[begin:end] = voice[: end - begin]
        return np.pad(self.augmenter(waveform, rng, narrow=plan.narrow), (0, plan.served_tail))

    def _join(self, plan: Plan, rng: np.random.Generator) -> np.ndarray:
        joined = np.zeros(sum(end - begin for _, begin, end in plan.pieces) + sum(plan.gaps), np.float32)
        place = 0
        level = 0.0
        for (index, begin, end), gap in zip(plan.pieces, plan.gaps, strict=True):
            piece = self.corpus.waveform(index)[begin:end].astype(np.float32) / 32768.0
            if plan.matched:
                own = float(np.sqrt(np.mean(piece**2))) + 1e-6
                level = level or own
                piece *= np.float32(level / own)
            if len(plan.pieces) > 1:
                piece *= np.float32(10.0 ** (rng.uniform(-3.0, 3.0) / 20.0))
                edge = min(80, len(piece) // 2)  # 5 ms: no clicks where recordings meet
                ramp = np.arange(edge, dtype=np.float32) / max(1, edge)
                piece[:edge] *= ramp
                piece[len(piece) - edge :] *= ramp[::-1]
            stop = min(place + len(piece), len(joined))
            joined[place:stop] += piece[: stop - place]
            place = max(0, place + len(piece) + gap)
        return joined


class BatchMaker(Dataset[Batch]):
    """Batch number -> `Batch` of about `batch_seconds` of audio, from utterances of similar length.

    With `fixed_shapes`, batches have one of `batch_shapes`: utterances that do not fit are left out, and some that do
    come twice, augmented otherwise.
    """

    def __init__(self, planner: Planner, *, batch_seconds: float, seed: int, fixed_shapes: bool = False) -> None:
        self.planner, self.batch_seconds, self.seed = planner, batch_seconds, seed
        self.shapes = batch_shapes(batch_seconds) if fixed_shapes else []
        self.group = 2 * BATCHES_PER_PLAN if fixed_shapes else BATCHES_PER_PLAN

    def plans(self, number: int) -> list[Plan]:
        """The utterances of a batch, shortest first."""
        group, part = divmod(number, self.group)
        rng = np.random.default_rng([self.seed, group])
        wanted = self.group * self.batch_seconds * SAMPLE_RATE
        plans: list[Plan] = []
        total = 0
        while total < wanted:
            plans.append(self.planner.draw(rng))
            total += plans[-1].num_samples
        plans.sort(key=lambda plan: plan.num_samples)
        edges = np.cumsum([plan.num_samples for plan in plans]) * self.group / total
        belongs = np.minimum(np.ceil(edges).astype(int) - 1, self.group - 1)
        chosen = int(rng.permutation(self.group)[part])
        picked = [plan for plan, where in zip(plans, belongs.tolist(), strict=True) if where == chosen]
        # An utterance longer than a batch covers a whole part, and leaves another one empty.
        return picked or [plans[int(rng.integers(len(plans)))]]

    def __getitem__(self, number: int) -> Batch:
        plans, units, shape = self.plans(number), self.planner.units, None
        if self.shapes:
            plans, shape = self._fit(plans, np.random.default_rng([self.seed, number, 1]))
        waveforms, tokens = [self.planner.render(plan) for plan in plans], [units.encode(plan.text) for plan in plans]
        return make_batch(waveforms, tokens, shape)

    def _fit(self, plans: list[Plan], rng: np.random.Generator) -> tuple[list[Plan], Shape]:
        """The utterances that fit the smallest shape for nearly all of them, as many as it has rows."""
        median = plans[len(plans) // 2].num_samples
        fitting: list[Plan] = []
        for shape in self.shapes:
            fitting = [
                plan
                for plan in plans
                if plan.num_samples <= shape.samples and len(self.planner.units.encode(plan.text)) <= shape.tokens
            ]
            if shape.samples >= median and len(fitting) >= MOSTLY * len(plans):
                break
        if not fitting:
            raise ValueError(f"no utterance of a batch is shorter than {EDGES_S[-1]} s; lower mixture.max_seconds")
        chosen = [fitting[place] for place in sorted(rng.permutation(len(fitting))[: shape.rows])]
        again = [
            replace(fitting[int(rng.integers(len(fitting)))], seed=_seed(rng)) for _ in range(shape.rows - len(chosen))
        ]
        return chosen + again, shape


def make_batch(waveforms: list[np.ndarray], tokens: list[list[int]], shape: Shape | None = None) -> Batch:
    """Pad waveforms and tokens with zeros; at least one token column, so that an all-silent batch has a shape."""
    longest, most = max(len(waveform) for waveform in waveforms), max(1, *(len(row) for row in tokens))
    audio = np.zeros((len(waveforms), shape.samples if shape else longest), np.int16)
    padded = np.zeros((len(tokens), shape.tokens if shape else most), np.int64)
    for row, (waveform, ids) in enumerate(zip(waveforms, tokens, strict=True)):
        audio[row, : len(waveform)] = waveform
        padded[row, : len(ids)] = ids
    return Batch(
        torch.from_numpy(audio),
        torch.tensor([len(waveform) for waveform in waveforms]),
        torch.from_numpy(padded),
        torch.tensor([len(ids) for ids in tokens]),
    )


def _pick(edges: np.ndarray, rng: np.random.Generator) -> int:
    return min(int(np.searchsorted(edges, rng.random())), len(edges) - 1)


def _choice(values: list[int], rng: np.random.Generator) -> int:
    return values[int(rng.random() * len(values))]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
