"""Finding golden cases: folders with arrays that upstream's own code made, recognised by their files."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_FOLDERS = (REPOSITORY / "tests" / "golden", REPOSITORY.parent / "shared" / "golden")


@dataclass(frozen=True)
class Case:
    """One folder; `name` is its path below the folder that was searched."""

    name: str
    path: Path

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.iterdir())

    @cached_property
    def expected(self) -> dict[str, np.ndarray]:
        return load(self.path / "expected.npz")

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        return load(self.path / "input.npz")


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def find_cases(folders: list[Path], kind: str) -> list[Case]:
    """All cases of a kind anywhere below the folders; one that lies in two of them counts once.

    Kinds: `wenet`, `wenet_streaming` (those of them with streaming arrays), `ctc_search`, `fbank`, `icefall_fbank`,
    `icefall` and of these
    `icefall_offline`, `icefall_streaming`, `icefall_conformer`, `icefall_conformer_streaming`, `icefall_zipformer` and
    `icefall_zipformer_streaming`; `jasper`, a QuartzNet as well; `wespeaker`, and `wespeaker_features`.
    """
    found: dict[str, Case] = {}
    for folder in folders:
        for path in sorted([folder, *(p for p in folder.rglob("*") if p.is_dir())]) if folder.is_dir() else []:
            arrays = kinds_of(path).get(kind)
            if arrays is not None:
                digest = hashlib.sha256(arrays.read_bytes()).hexdigest()
                found.setdefault(digest, Case(str(path.relative_to(folder.parent)), path))
    return list(found.values())


@cache  # collecting asks for each kind of each folder
def kinds_of(path: Path) -> dict[str, Path]:
    """The kinds of case that a folder holds, each with the file of its expected arrays."""

    def has(*names: str) -> bool:
        return all((path / name).is_file() for name in names)

    kinds: dict[str, Path] = {}
    if has("final.pt", "train.yaml", "units.txt", "input.npz", "expected.npz"):
        kinds["wenet"] = path / "expected.npz"
        if "chunk_size" in array_names(path / "expected.npz"):
            kinds["wenet_streaming"] = path / "expected.npz"
    if has("pretrained.pt", "hparams.json", "input.npz", "expected.npz"):
        kinds["icefall"] = path / "expected.npz"
        sizes = json.loads((path / "hparams.json").read_text(encoding="utf-8"))
        kinds["icefall_streaming" if sizes["streaming"] else "icefall_offline"] = path / "expected.npz"
        if "conformer" in sizes["kind"]:
            kinds["icefall_conformer"] = path / "expected.npz"
            if sizes["streaming"]:
                kinds["icefall_conformer_streaming"] = path / "expected.npz"
        if "zipformer" in sizes["kind"]:
            kinds["icefall_zipformer"] = path / "expected.npz"
            if sizes["streaming"]:
                kinds["icefall_zipformer_streaming"] = path / "expected.npz"
    if has("checkpoint.pt", "config.yaml", "input.npz", "expected.npz"):
        kinds["jasper"] = path / "expected.npz"
    if has("avg_model.pt", "config.yaml", "input.npz", "expected.npz"):
        kinds["wespeaker"] = path / "expected.npz"
    if has("input.npz", "expected.npz") and {"fbank_0", "fbank40_0"} <= set(array_names(path / "expected.npz")):
        kinds["wespeaker_features"] = path / "expected.npz"
    if has("metrics.json", "embeddings.npz", "xvector.scp", "mean_vec.npy"):
        kinds["scoring"] = path / "embeddings.npz"
    if has("fbank.npz") and "lhotse_fbank0" in array_names(path / "fbank.npz"):
        kinds["icefall_fbank"] = path / "fbank.npz"
    if has("cases.npz") and "case0_log_probs" in array_names(path / "cases.npz"):
        kinds["ctc_search"] = path / "cases.npz"
    if has("fbank.npz") and any(name.endswith("__povey") for name in array_names(path / "fbank.npz")):
        kinds["fbank"] = path / "fbank.npz"
    return kinds


def array_names(path: Path) -> list[str]:
    with np.load(path, allow_pickle=False) as arrays:
        return list(arrays.files)


def rows(padded: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """Token lists of a (batch, longest) array padded with -1."""
    return [row[:length].tolist() for row, length in zip(padded, lengths, strict=True)]


def largest(found: Any, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(found) - expected).max(initial=0.0))
