"""The transducer's vocabulary: word pieces in icefall's form, made once of the training texts.

    python -m training.pieces --packs training/data/*.zip --output training/demo-transducer/bpe.model

Digits, letters and frequent words become one piece each; other words are spelled in shorter ones. Id 0 is <blk>, 1 is
<sos/eos>, 2 is <unk>, as in icefall's `bpe.model` (which holds a unigram model, whatever its name says).
"""

from __future__ import annotations

import argparse
import json
import random
import zipfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import sentencepiece

from training.corpus import INDEX_NAME
from training.grammar import sentence
from training.words import SHAPE_WEIGHTS, SHAPES

SPECIAL = ["<blk>", "<sos/eos>"]  # <unk> follows
CHARACTERS = "'abcdefghijklmnopqrstuvwxyz"
SENTENCES = 1500  # of the grammar, beside the texts of the recordings
REPEATS = {"an4": 4}  # the domain's own texts count more than LibriSpeech's


class Pieces:
    """A vocabulary read from `bpe.model`; has what `units.Units` has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.names = [self.processor.id_to_piece(index) for index in range(self.processor.get_piece_size())]

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> list[int]:
        """Ids of lower-case text."""
        return list(self.processor.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ones are left out."""
        return str(self.processor.decode([int(index) for index in ids if index > len(SPECIAL)]))

    def frames_needed(self, text: str) -> int:
        """Fewest frames that can say `text` where each says one piece at most, and CTC keeps equal neighbours apart."""
        ids = self.encode(text)
        return len(ids) + sum(left == right for left, right in pairwise(ids))

    def write(self, path: Path) -> None:
        """Write `tokens.txt`."""
        path.write_text("".join(f"{name} {index}\n" for index, name in enumerate(self.names)), encoding="utf-8")


def training_texts(packs: Iterable[Path]) -> list[str]:
    """Texts of the packs' training recordings, and sentences of the grammar."""
    texts = []
    for pack in packs:
        with zipfile.ZipFile(pack) as archive:
            rows = [json.loads(line) for line in archive.read(INDEX_NAME).decode().splitlines()]
        for row in rows:
            if row["split"] == "train" and row["text"]:
                texts += [row["text"]] * REPEATS.get(row["corpus"], 1)
    random_ = random.Random(0)
    shapes = random_.choices(SHAPES, weights=SHAPE_WEIGHTS, k=SENTENCES)
    return texts + [sentence(random_, shape) for shape in shapes]


def train_pieces(texts: Iterable[str], size: int, path: Path) -> None:
    """Write the SentencePiece model of `texts` with `size` ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=size,
            model_type="unigram",
            user_defined_symbols=SPECIAL,
            required_chars=CHARACTERS,
            character_coverage=1.0,
            unk_id=len(SPECIAL),
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=Path, nargs="+", required=True)
    parser.add_argument("--size", type=int, default=128, help="ids, the special ones counted")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    train_pieces(training_texts(arguments.packs), arguments.size, arguments.output)
    print(" ".join(Pieces(arguments.output).names))


if __name__ == "__main__":
    main()
