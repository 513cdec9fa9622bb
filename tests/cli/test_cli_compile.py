"""`tritone compile`; the compiler itself is tested in `runtime/test_compiled.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.pipelines import compile as compiling
from tritone.pipelines.compile import CompiledSize
from tritone.runtime.graph import Bucket


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks for."""
    found: dict[str, Any] = {}

    def compile_bundle(bundle: Any, **options: Any) -> list[CompiledSize]:
        found.update(options)
        options["progress"]("opening the graph")
        return [
            CompiledSize("offline", Bucket(16, 80000), 16000, 21.25, 0.083),
            CompiledSize("streaming", Bucket(64, 11040), 16000, None),
        ]

    monkeypatch.setattr(compiling, "compile_bundle", compile_bundle)
    return found


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["compile", *map(str, words)])


def test_the_table_has_every_size_with_its_time_and_padding(asked: dict[str, Any], toy_bundle: Path) -> None:
    result = run(toy_bundle, "--precision", "bf16", "--rows", "64", "--search", "rescoring")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [
        ["mode", "most", "rows", "x", "audio", "compiled", "in", "padding"],
        ["offline", "16", "x", "5.00", "s", "21.2", "s", "8.3%"],
        ["streaming", "64", "x", "0.69", "s", "before"],
    ]
    assert "opening the graph ..." in result.stderr
    assert (asked["placement"].device, asked["placement"].precision) == ("cuda", "bf16")
    assert (asked["rows"], asked["search"], asked["sizes"], asked["lengths_s"]) == (64, "rescoring", "auto", ())


def test_lengths_are_read_from_numbers_folders_and_lists(
    asked: dict[str, Any], toy_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "seconds.txt").write_text("1.5\n20\n", encoding="utf-8")
    folder = tmp_path / "audio"
    folder.mkdir()
    soundfile.write(folder / "a.wav", np.zeros(12000), 16000)
    (tmp_path / "list.jsonl").write_text(
        json.dumps({"audio_filepath": "audio/a.wav", "duration": 7.25}) + "\n", encoding="utf-8"
    )
    (tmp_path / "wav.scp").write_text("a audio/a.wav\n", encoding="utf-8")
    for name, lengths in (
        ("seconds.txt", [1.5, 20.0]),
        ("audio", [0.75]),
        ("list.jsonl", [7.25]),
        ("wav.scp", [0.75]),
    ):
        result = run(toy_bundle, "--data", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert asked["lengths_s"] == lengths


@pytest.mark.parametrize("text", ["", "a\n", "3\n-1\n"])
def test_a_file_of_lengths_that_holds_none_is_refused(
    asked: dict[str, Any], toy_bundle: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "seconds.txt").write_text(text, encoding="utf-8")
    result = run(toy_bundle, "--data", tmp_path / "seconds.txt")
    assert result.exit_code == 1
    assert "seconds.txt must hold" in result.stderr
    assert asked == {}


def test_rows_and_sizes_that_are_none_are_wrong_usage(toy_bundle: Path) -> None:
    assert run(toy_bundle, "--rows", "x", "--device", "cpu").exit_code == 2
    result = run(toy_bundle, "--sizes", "64", "--device", "cpu", "--runtime", "onnxruntime")
    assert result.exit_code == 2
    assert "rows x seconds" in result.stderr
