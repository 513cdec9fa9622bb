"""YAML of strangers: broken, foreign and deeply nested files are errors of one line, for every reader of settings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tritone.errors import BundleError, ExportError, InputError, TritoneError
from tritone.gateway.callers import Callers
from tritone.pipelines.wiring.spec import read_spec
from tritone.yaml_text import read_yaml

DEEP = b"a: " + b"{b: " * 5000 + b"1" + b"}" * 5000


def test_plain_values_are_read_with_a_byte_order_mark_and_without() -> None:
    assert read_yaml(b"\xef\xbb\xbfa: [1, two]\r\n", "x") == read_yaml(b"a: [1, two]", "x") == {"a": [1, "two"]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a: [", "x is not valid YAML: while parsing a flow node"),
        (b"!!python/object/apply:os.getcwd []", "x is not valid YAML: could not determine a constructor"),
        (b"a: \xff", "x is not UTF-8 text"),
        (b"day: 2026-02-31", "x is not valid YAML"),
        (DEEP, "x is nested too deeply"),
        (b"[" * 100_000, "x is nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_the_class_asked_for(data: bytes, said: str) -> None:
    for error in (InputError, ExportError, BundleError):
        with pytest.raises(error) as raised:
            read_yaml(data, "x", error)
        assert str(raised.value).startswith(said)
        assert "\n" not in str(raised.value)


def _wenet(folder: Path) -> object:
    wenet = pytest.importorskip("tritone.families.wenet.checkpoint", reason="exports need torch")
    return wenet.read_config(folder / "train.yaml")


def _wespeaker(folder: Path) -> object:
    return pytest.importorskip("tritone.families.wespeaker.checkpoint", reason="exports need torch").read_config(
        folder / "train.yaml"
    )


@pytest.mark.parametrize(
    "read",
    [
        _wenet,
        _wespeaker,
        lambda folder: read_spec(folder / "train.yaml"),
        lambda folder: Callers(folder / "train.yaml"),
    ],
    ids=["wenet", "wespeaker", "ensemble", "keys"],
)
def test_every_reader_says_so_of_what_is_nested_too_deeply(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_bytes(DEEP)
    with pytest.raises((TritoneError, ValueError), match=r"train\.yaml is nested too deeply"):
        read(tmp_path)
