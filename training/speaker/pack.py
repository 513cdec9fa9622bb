"""Pack the real voices for speaker training: the corpora's recordings by speaker, in parts small enough to carry.

    python -m training.speaker.pack --data ../shared/data --output training/data/speaker

Training and development recordings alone. FSDD stays out: its six voices add little, and its licence asks for more
than attribution.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.corpus import Recording, write_pack
from training.prepare import Source, read_source, split_of

# What is Opus already stays as it is: a second coding would remove what tells voices apart. AN4's copy is at 72 kbit/s.
SOURCES = [
    Source(folder="an4", tar="an4.tar", bitrate=32_000),
    Source(folder="librispeech_mini", tar="librispeech_mini.tar", bitrate=31_000, keep_opus=True),
    Source(folder="speech_commands", tar="speech_commands.tar", bitrate=31_000, keep_opus=True),
    Source(folder="noise", tar="noise.tar", bitrate=24_000),
]


def speaker_split(folder: str, row: dict[str, Any]) -> str | None:
    """Name the split of one metadata row; unlike for text, LibriSpeech's development speakers are of use."""
    if folder == "librispeech_mini" and row["split"] == "dev":
        return "dev"
    return split_of(folder, row)


def parts(items: Iterator[tuple[Recording, bytes]], limit: int) -> Iterator[list[tuple[Recording, bytes]]]:
    """Cut a series of recordings where the next would take a part over `limit` bytes of audio."""
    part: list[tuple[Recording, bytes]] = []
    size = 0
    for recording, audio in items:
        # A zip spends about 150 bytes on a file's name and place.
        if part and size + len(audio) + 150 > limit:
            yield part
            part, size = [], 0
        part.append((recording, audio))
        size += len(audio) + 150
    if part:
        yield part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with one folder per corpus")
    parser.add_argument("--output", type=Path, default=Path("training/data/speaker"))
    parser.add_argument("--part-mib", type=float, default=22.9, help="size of a part")
    arguments = parser.parse_args()

    counts: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], float] = defaultdict(float)

    def items() -> Iterator[tuple[Recording, bytes]]:
        for source in SOURCES:
            for recording, audio in read_source(arguments.data, source, speaker_split):
                key = (recording.corpus, recording.split)
                counts[key] += 1
                seconds[key] += recording.num_samples / recording.sample_rate
                yield recording, audio

    for number, part in enumerate(parts(items(), int(arguments.part_mib * 2**20)), 1):
        path = arguments.output / f"part-{number}.zip"
        write_pack(path, part)
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    for key, count in counts.items():
        print(f"{key[0]:18s} {key[1]:6s} {count:6d} recordings {seconds[key] / 3600:6.2f} h")


if __name__ == "__main__":
    main()
