"""Where the code of compiled searches is kept: in the first folder that can be written, or nowhere."""

from pathlib import Path

import pytest

from tritone.paths import cache_folder
from tritone.search.compiled import kept


def nobody(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A user without a home folder, who may not write into the installation."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TRITONE_CACHE", "XDG_CACHE_HOME", kept.FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    (folder / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(kept, "SOURCES", folder / "file")


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobody(monkeypatch, tmp_path)
    with pytest.raises(FileNotFoundError, match="no home folder; set TRITONE_CACHE to a folder"):
        cache_folder()
    assert kept.Kept.here() is None


@pytest.mark.parametrize("name", ["TRITONE_CACHE", kept.FOLDER])
def test_a_folder_that_the_environment_names_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nobody(monkeypatch, tmp_path)
    monkeypatch.setenv(name, str(tmp_path / "own"))
    found = kept.Kept.here()
    assert found is not None
    assert found.folder.is_relative_to(tmp_path / "own")
