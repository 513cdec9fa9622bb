"""Characters as units, text <-> ids: in WeNet's form with the lines of `units.txt`, and as a QuartzNet's labels.

WeNet's: space is the unit "▁"; id 0 is <blank>, 1 is <unk>, 2 is <sos/eos>. QuartzNet's: the labels of its config, and
behind them the blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

SPACE = "▁"
SPECIAL = ["<blank>", "<unk>", "<sos/eos>"]
BLANK_ID, UNKNOWN_ID, SOS_EOS_ID = 0, 1, 2
CHARACTERS = [SPACE, "'", *"abcdefghijklmnopqrstuvwxyz"]


class Units:
    """The vocabulary of the demo model."""

    blank_id = BLANK_ID

    def __init__(self) -> None:
        self.names = [*SPECIAL, *CHARACTERS]
        self.ids = {name: index for index, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> list[int]:
        """Ids of lower-case text; characters that are no units become <unk>."""
        return [self.ids.get(SPACE if character == " " else character, UNKNOWN_ID) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special units are left out."""
        names = [self.names[index] for index in ids if index >= len(SPECIAL)]
        return " ".join("".join(names).replace(SPACE, " ").split())

    def frames_needed(self, text: str) -> int:
        """Fewest frames on which CTC can align `text`."""
        return frames_needed(text)

    def write(self, path: Path) -> None:
        """Write `units.txt`."""
        path.write_text("".join(f"{name} {index}\n" for index, name in enumerate(self.names)), encoding="utf-8")


class Labels:
    """The vocabulary of a QuartzNet: the characters of its config, and the blank as the last class."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self.ids = {label: index for index, label in enumerate(self.labels)}
        self.blank_id = len(self.labels)

    def __len__(self) -> int:
        return len(self.labels) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of text; characters that are no labels are left out, as upstream does."""
        return [self.ids[character] for character in text if character in self.ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids that are not the blank's."""
        return " ".join("".join(self.labels[index] for index in ids).split())

    def frames_needed(self, text: str) -> int:
        """Fewest frames on which CTC can align `text`."""
        return frames_needed(text)


def frames_needed(text: str) -> int:
    """Fewest frames on which CTC can align characters: one each, and a blank between equal neighbours."""
    return len(text) + sum(left == right for left, right in pairwise(text))
