"""Pack the real recordings for training: decode the corpora, decide the splits, re-encode small.

    python -m training.prepare --data ../shared/data --output training/data/real.zip

Only the training parts travel, plus development sets cut from them. The public test sets never enter the pack.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from training.corpus import Recording, encode_opus, write_pack

FSDD_DEV_INDICES = range(40, 45)  # of the official training part, 5-44 here
SPEECH_COMMANDS_DEV_SHARE = 0.06  # of the training speakers


@dataclass(frozen=True, kw_only=True)
class Source:
    """One corpus folder and how densely its audio is re-encoded."""

    folder: str
    tar: str
    bitrate: int  # bit/s of the Opus copy
    keep_opus: bool = False  # files that are Opus already are copied as they are, not encoded a second time


SOURCES = [
    Source(folder="an4", tar="an4.tar", bitrate=32_000),
    Source(folder="fsdd", tar="fsdd.tar", bitrate=20_000),
    Source(folder="speech_commands", tar="speech_commands.tar", bitrate=19_000),
    Source(folder="librispeech_mini", tar="librispeech_mini.tar", bitrate=16_000),
    Source(folder="noise", tar="noise.tar", bitrate=48_000),
]


def split_of(folder: str, row: dict[str, Any]) -> str | None:
    """Name the split of one metadata row, or None for what must not be packed (public test sets)."""
    if folder == "noise":
        return "train"
    if row["split"] == "test" or (folder == "librispeech_mini" and row["split"] != "train"):
        return None
    if folder == "fsdd" and row["index"] in FSDD_DEV_INDICES:
        return "dev"
    if folder == "speech_commands" and held_out(row["speaker"]):
        return "dev"
    return str(row["split"])


def held_out(speaker: str) -> bool:
    """Whether a Speech Commands speaker serves for development; a hash, so it never depends on the order of rows."""
    value = int.from_bytes(hashlib.sha256(speaker.encode()).digest()[:8], "big") / 2**64
    return value < SPEECH_COMMANDS_DEV_SHARE


def read_source(
    data: Path, source: Source, split: Callable[[str, dict[str, Any]], str | None] = split_of
) -> Iterator[tuple[Recording, bytes]]:
    """Decode one corpus and re-encode what belongs to training or development, as `split` says."""
    rows = [
        json.loads(line) for line in (data / source.folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    by_path = {row["path"]: row for row in rows}
    jobs: list[tuple[Recording, np.ndarray | bytes, int]] = []
    with tarfile.open(data / source.folder / source.tar) as archive:
        for member in archive:
            row = by_path.get(member.name.removeprefix("./"))
            part = row and split(source.folder, row)
            if row is None or part is None:
                continue
            stream = archive.extractfile(member)
            if stream is None:
                raise ValueError(f"{source.tar}: {member.name} is listed in metadata.jsonl but is not a file")
            audio = stream.read()
            waveform, rate = soundfile.read(io.BytesIO(audio), dtype="int16")
            recording = Recording(
                id=f"{source.folder}/{row['id']}",
                text=row["text"],
                speaker=f"{source.folder}/{row.get('speaker', row['id'])}",
                corpus=source.folder,
                split=part,
                sample_rate=rate,
                num_samples=len(waveform),
                gender=row.get("gender", ""),
            )
            kept = source.keep_opus and member.name.endswith(".opus")
            jobs.append((recording, audio if kept else waveform, source.bitrate))
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_encode, sorted(jobs, key=lambda job: job[0].id))


def _encode(job: tuple[Recording, np.ndarray | bytes, int]) -> tuple[Recording, bytes]:
    recording, waveform, bitrate = job
    if isinstance(waveform, bytes):
        return recording, waveform
    return recording, encode_opus(waveform, recording.sample_rate, bitrate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with one folder per corpus")
    parser.add_argument("--output", type=Path, default=Path("training/data/real.zip"))
    arguments = parser.parse_args()

    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()

    def items() -> Iterator[tuple[Recording, bytes]]:
        for source in SOURCES:
            for recording, audio in read_source(arguments.data, source):
                key = (recording.corpus, recording.split)
                counts[key] += 1
                sizes[key] += len(audio)
                seconds[key] += recording.num_samples / recording.sample_rate
                yield recording, audio

    write_pack(arguments.output, items())
    for key in counts:
        hours, size = seconds[key] / 3600, sizes[key] / 2**20
        print(f"{key[0]:18s} {key[1]:6s} {counts[key]:6d} recordings {hours:6.2f} h {size:6.1f} MiB")
    print(f"{arguments.output}: {arguments.output.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
