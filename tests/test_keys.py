"""The key of a server: found by its owner's commands, readable by nobody else."""

import os

import pytest

from tritone import keys
from tritone.errors import ServerSetupError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(keys.VARIABLE, raising=False)
    return tmp_path / "tritone"


def test_a_published_key_is_found_by_port_and_readable_by_its_owner_alone(folder):
    key = keys.new_key()
    paths = keys.publish(key, [8000, 8001])
    assert [keys.find_key(port) for port in (8000, 8001, 8002, None)] == [key, key, None, None]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_environment_comes_before_the_files(monkeypatch):
    keys.publish("written", [8001])
    monkeypatch.setenv(keys.VARIABLE, "given")
    assert keys.find_key(8001) == keys.find_key() == "given"


def test_a_folder_that_others_can_read_holds_no_keys(folder):
    keys.publish("secret", [8001])
    os.chmod(folder, 0o755)
    assert keys.find_key(8001) is None
    with pytest.raises(ServerSetupError, match="only this user"):
        keys.publish("secret", [8001])


def test_a_link_in_place_of_a_key_file_is_replaced_not_followed(folder, tmp_path):
    folder.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    (folder / "8001.key").symlink_to(victim)
    keys.publish("secret", [8001])
    assert victim.read_text(encoding="utf-8") == "precious"
    assert keys.find_key(8001) == "secret"
