"""Crops of voices: which speakers a batch holds, and what of them is heard.

    recordings of a speaker, one after another in random order, their end joined to their beginning  ->  a tape
    a tape, a place on it  ->  a crop of any length

A crop runs over the end of a recording into the next one of the same speaker, which is how words of one second become
two or three seconds of speech.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from training.speaker.material import Material, speaker_of


class Tapes:
    """The tapes of all classes; a class is a speaker at one speed.

    Args:
        chosen: indices of the recordings to take.
        shares: of each corpus in a batch; within it, speakers have equal shares.
        speed_share: how often voices at their own speed are taken; the other speeds have the rest.
    """

    def __init__(
        self,
        material: Material,
        chosen: Sequence[int],
        *,
        shares: Mapping[str, float],
        speed_share: float,
        device: torch.device,
    ) -> None:
        self.device = device
        self.samples = material.samples.to(device)
        of_speaker: dict[str, list[int]] = defaultdict(list)
        for index in chosen:
            of_speaker[speaker_of(material.recordings[index])].append(index)
        self.speakers = sorted(of_speaker)
        corpora = {name: material.recordings[indices[0]].corpus for name, indices in of_speaker.items()}
        counts = {corpus: list(corpora.values()).count(corpus) for corpus in set(corpora.values())}
        self.bounds: list[list[tuple[int, int]]] = []
        weights = []
        others = max(1, len(material.speeds) - 1)
        for speed in range(len(material.speeds)):
            part = speed_share if speed == 0 else (1.0 - speed_share) / others
            for name in self.speakers:
                self.bounds.append([tuple(pair) for pair in material.bounds[speed, of_speaker[name]].tolist()])
                weights.append(part * shares[corpora[name]] / counts[corpora[name]])
        self.weights = torch.tensor(weights, device=device)
        self.corpora = sorted(counts)
        codes = [self.corpora.index(corpora[name]) for name in self.speakers] * len(material.speeds)
        self.corpus_of = torch.tensor(codes, device=device)
        lengths = [sum(end - begin for begin, end in pieces) for pieces in self.bounds]
        self.lengths = torch.tensor(lengths, device=device)
        self.starts = torch.cumsum(self.lengths, 0) - self.lengths
        self.shuffle()

    @property
    def num_classes(self) -> int:
        return len(self.bounds)

    def shuffle(self) -> None:
        """Put the recordings of each speaker in a new order."""
        pieces = []
        for bounds in self.bounds:
            pieces += [self.samples[slice(*bounds[place])] for place in torch.randperm(len(bounds)).tolist()]
        self.tape = torch.cat(pieces)

    def draw(self, classes: int, length: int) -> tuple[Tensor, Tensor]:
        """Two crops of each of `classes` different classes.

        Returns:
            (2 * classes, length) float32 in [-1, 1], first crops before second ones, and (2 * classes,) their classes.
        """
        labels = torch.multinomial(self.weights, classes)
        total = self.lengths[labels]
        first = (torch.rand(classes, device=self.device) * total).long()
        # The second crop begins after the first has ended, as far as the tape is long enough.
        free = torch.clamp(total - 2 * length, min=0)
        second = first + length + (torch.rand(classes, device=self.device) * free).long()
        places = torch.cat([first, second]).unsqueeze(1) + torch.arange(length, device=self.device)
        labels = labels.repeat(2)
        places = self.starts[labels].unsqueeze(1) + places % self.lengths[labels].unsqueeze(1)
        return self.tape[places].float() / 32768.0, labels
