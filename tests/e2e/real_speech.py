"""Recordings of people for tests. They are not part of the project: without them such tests are skipped, saying so."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tritone.audio.files import read_audio

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SAMPLE_RATE = 16000


@dataclass(frozen=True)
class Recording:
    """One utterance: (samples,) float32 at 16 kHz, and what was said."""

    name: str
    waveform: np.ndarray
    text: str


def need(*parts: str) -> Path:
    """A path below the data folder; skips the test where it is absent."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"recordings are not here: {path.relative_to(DATA.parents[1])} is missing beside the repository")
    return path


def listed(*parts: str) -> list[Recording]:
    """Recordings of a folder in Kaldi form (wav.scp, trans.txt)."""
    folder = need(*parts)
    paths = dict(line.split(maxsplit=1) for line in (folder / "wav.scp").read_text(encoding="utf-8").splitlines())
    texts = dict(line.split(maxsplit=1) for line in (folder / "trans.txt").read_text(encoding="utf-8").splitlines())
    return [Recording(name, read_audio(folder / path, SAMPLE_RATE), texts[name]) for name, path in paths.items()]


def tarred(corpus: str, split: str | None = None) -> list[Recording]:
    """Recordings of one split, or of all, of a corpus that is kept in a tar; named by their paths in it."""
    rows = [json.loads(line) for line in need(corpus, "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    by_path = {row["path"]: row for row in rows if split is None or row["split"] == split}
    found = []
    with tarfile.open(need(corpus, f"{corpus}.tar")) as archive:
        for member in archive:
            row = by_path.get(member.name.removeprefix("./"))
            stream = archive.extractfile(member) if row else None
            if row is not None and stream is not None:
                found.append(Recording(row["path"], read_audio(stream.read(), SAMPLE_RATE), row["text"]))
    assert len(found) == len(by_path)
    return found
