import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tritone.cli.main import COMMANDS, GROUPS, app
from tritone.errors import BundleError


def test_the_version_is_that_of_the_package():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tritone {version('tritone')}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str):
    result = CliRunner().invoke(app, [command, "--help"], prog_name="tritone")
    assert result.exit_code == 0
    assert f"Usage: tritone {command} " in result.stdout


def test_help_lists_every_command():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    shown = result.stdout.partition("Models:\n")[2].splitlines()
    lines = [line for line in shown if line.startswith("  ")]
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert [line.rstrip(":") for line in shown if line and not line.startswith("  ")] == list(GROUPS)[1:]
    assert not [line for line in lines if line.endswith("...")], "a summary was cut"


def test_help_shows_every_option_in_full_on_a_narrow_terminal():
    result = CliRunner().invoke(app, ["build", "--help-all"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0
    assert "--preferred-batch-sizes " in result.stdout
    assert "--stream-idle-timeout-s " in result.stdout


@pytest.mark.parametrize("arguments", [["nope"], ["--nope"], ["transcribe"], ["build", "x"], ["export", "nope"]])
def test_wrong_usage_exits_with_2_and_says_nothing_on_stdout(arguments: list[str]):
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["servee"], "serve"),
        (["trnscribe"], "transcribe"),
        (["qqqq"], None),
        (["export", "wennet"], "'wenet'"),
        (["export", "qqqq"], None),
    ],
)
def test_a_mistyped_command_gets_a_suggestion_if_one_is_like_it(typed: list[str], meant: str | None):
    result = CliRunner().invoke(app, [*typed, "x"])
    assert result.exit_code == 2
    assert ("Did you mean" in result.stderr) == (meant is not None)
    if meant is not None:
        assert f"'{typed[-1]}'. Did you mean {meant}?" in result.stderr


def test_an_expected_error_is_one_line_on_stderr_and_exit_code_1():
    result = CliRunner().invoke(app, ["build", "no-such-bundle", "--output", "unused"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: there is no bundle folder 'no-such-bundle'")
    assert result.stderr.count("\n") == 1


def test_debug_lets_the_traceback_through():
    result = CliRunner().invoke(app, ["--debug", "build", "no-such-bundle", "--output", "unused"])
    assert isinstance(result.exception, BundleError)


def test_the_command_starts_without_the_heavy_imports():
    heavy = {"torch", "onnx", "onnxruntime", "grpc", "gevent", "tritonclient", "scipy"}
    code = f"import sys, tritone.cli.main; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout == "[]\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "demo-asr", "--output", "NAME"],
        ["build", "demo-asr", "--output", "repo", "--search", "prefix-beam", "--hotwords-file", "NAME"],
        ["serve", "NAME"],
        ["transcribe", "--model", "demo-asr", "NAME"],
    ],
)
def test_a_name_too_long_for_a_file_is_an_error_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    name = str(tmp_path / ("n" * 300))
    result = CliRunner().invoke(app, [name if each == "NAME" else each for each in arguments])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot use ")
    assert "File name too long. A name has at most 255 bytes" in result.stderr
    assert len(result.stderr) < 300


def test_a_package_that_an_image_leaves_out_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['numba'] = None; from tritone.cli.main import app; app()"
    command = [sys.executable, "-c", code, "build", "demo-transducer", "--output", str(tmp_path / "repo")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: this needs numba, which is not installed: pip install numba" in done.stderr


def test_what_is_printed_is_utf_8_whatever_the_locale_and_names_of_files_are_as_they_are(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff"  # the last byte is no UTF-8
    environment = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()"]
    done = subprocess.run([*command, "inspect", name], env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: there is no " + name + b". Give")
    (tmp_path / "caf\u00e9").mkdir()
    os.rename(tmp_path / "caf\u00e9", name)
    built = subprocess.run(
        [*command, "build", "demo-speaker", "--no-trial", "--output", name],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert b"\t" + name + b"/demo-speaker" in built.stdout
