"""The folder of a server's own files, and what its shell leaves alone."""

import os
from pathlib import Path

import pytest

from tritone.errors import ServerSetupError
from tritone.server.folder import absolute_entries, make_folder, plain_path, usual_places


@pytest.mark.parametrize("name", ["with blank", "é", "semi;colon", "$HOME", "it's", "a*b"])
def test_the_folder_is_in_the_first_place_whose_path_a_shell_leaves_alone(name: str, tmp_path: Path) -> None:
    odd, plain, later = (tmp_path / each for each in (name, "plain", "later"))
    for each in (odd, plain, later):
        each.mkdir()
    made = make_folder([odd, tmp_path / "absent", plain, later])
    assert made.parent == plain
    assert made.stat().st_mode & 0o777 == 0o700
    assert os.listdir(odd) == []


def test_where_no_place_will_do_each_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    with pytest.raises(ServerSetupError) as caught:
        make_folder([tmp_path / "a b", tmp_path / "absent"])
    message = str(caught.value)
    assert f"{tmp_path}/a b: Triton's shell would take its path apart" in message
    assert f"{tmp_path}/absent: No such file or directory" in message
    assert "Set TMPDIR" in message


def test_the_place_that_the_user_wants_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    assert list(usual_places()) == [tmp_path, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), tmp_path / "cache"]


def test_a_repository_of_a_path_with_blanks_gets_a_plain_link(tmp_path: Path) -> None:
    repository, folder = tmp_path / "my models é", tmp_path / "folder"
    repository.mkdir()
    folder.mkdir()
    link = plain_path(repository, folder)
    assert link.parent == folder
    assert link.resolve() == repository
    assert plain_path(folder, folder) == folder


def test_of_a_list_of_folders_only_those_stay_that_do_not_depend_on_where_one_stands() -> None:
    assert absolute_entries("/a::.:b/c:/d e:") == ["/a", "/d e"]
    assert absolute_entries("") == absolute_entries(None) == []
