"""Character units in WeNet's form: the lines of `units.txt` and text <-> ids.

Space is the unit "▁". Id 0 is <blank>, 1 is <unk>, 2 is <sos/eos>.
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
        """Fewest frames on which CTC can align `text`: one a unit, and a blank between equal neighbours."""
        return len(text) + sum(left == right for left, right in pairwise(text))

    def write(self, path: Path) -> None:
        """Write `units.txt`."""
        path.write_text("".join(f"{name} {index}\n" for index, name in enumerate(self.names)), encoding="utf-8")
