"""Model repositories that earlier versions wrote, see tests/compatibility."""

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "compatibility"


def archive(version: str) -> tarfile.TarFile:
    return tarfile.open(FOLDER / version / "repository.tar.xz")


def unpack(version: str, folder: Path) -> Path:
    """Writes the repository of a version as `folder/repository`, which it returns."""
    with archive(version) as packed:
        packed.extractall(folder, filter="data")
    repository = folder / "repository"
    for model in repository.iterdir():
        (model / "1").mkdir(exist_ok=True)  # an ensemble's is empty, and the archive has files alone
    return repository
