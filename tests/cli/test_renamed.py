"""Old names of options: each is taken with a line on stderr, and the new one is an option of its command."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.cli.shared.renamed import RENAMED, with_new_names
from tritone.cli.shared.words import check_words
from tritone.options.fields import described
from tritone.pipelines.whisper.options import DecodingOptions


def command_of(path: str) -> Any:
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.get_command(None, name)
    return command


NAMES = [(path, old, new) for path, held in RENAMED.items() for old, new in held.items() if isinstance(new, str)]


@pytest.mark.parametrize(("path", "old", "new"), NAMES)
def test_an_old_name_is_none_of_the_options_and_the_new_one_is(path: str, old: str, new: str):
    known = {name for each in command_of(path).params for name in (*each.opts, *each.secondary_opts)}
    assert new in known
    assert old not in known


@pytest.mark.parametrize("glued", [False, True])
def test_old_names_are_rewritten_with_their_values_and_told(capsys: pytest.CaptureFixture[str], glued: bool):
    words = ["--url=old:8002"] if glued else ["--url", "old:8002"]
    new = ["--metrics-url=old:8002"] if glued else ["--metrics-url", "old:8002"]
    assert with_new_names("drain", command_of("drain"), [*words, "--cancel"]) == [*new, "--cancel"]
    assert capsys.readouterr().err == "tritone: --url is --metrics-url now; the old name goes with 0.3\n"
    assert with_new_names("drain", command_of("drain"), [*new, "--cancel"]) == [*new, "--cancel"]
    assert capsys.readouterr().err == ""


def test_an_option_that_is_repeated_is_told_of_once(capsys: pytest.CaptureFixture[str]):
    words = with_new_names("demo", command_of("demo"), ["--bundle", "a", "--bundle", "b"])
    assert words == ["--model", "a", "--model", "b"]
    assert capsys.readouterr().err.count("\n") == 1


def test_subcommands_have_old_names_of_their_own_and_what_is_for_others_stays():
    bench = command_of("bench")
    words = ["sweep", "demo-asr", "--json", "r.json", "--window-s", "2"]
    assert with_new_names("bench", bench, words) == ["sweep", "demo-asr", "--report", "r.json", "--measure-s", "2"]
    assert with_new_names("bench", bench, ["compare", "a", "--json", "b"]) == ["compare", "a", "--json", "b"]
    assert with_new_names("gateway", command_of("gateway"), ["--", "--triton"]) == ["--", "--triton"]
    words = ["onnx", "m.onnx", "--format", "nhwc"]
    assert with_new_names("export", command_of("export"), words) == ["onnx", "m.onnx", "--axes", "nhwc"]


def test_the_old_and_the_new_name_of_one_option_are_two_values(tmp_path: Path):
    result = CliRunner().invoke(app, ["drain", "--url", "a:1", "--metrics-url", "b:1"])
    assert result.exit_code == 2
    assert "--metrics-url is given twice" in result.stderr


def test_options_of_whisper_were_json() -> None:
    given = '{"language": "de", "beam": 5, "temperature": [0, 0.4], "word_times": true, "timestamps": false, '
    given += '"previous_text": false, "carry_prompt": false, "no_speech_threshold": null, "prompt": "--a b"}'
    words = with_new_names("transcribe", command_of("transcribe"), ["--decoding", given, "a.wav"])
    made = command_of("transcribe").make_context("transcribe", words).params
    names = {*described(DecodingOptions), "temperatures", "segment_times"} - {"timestamps", "punctuation"}
    assert {name: made[name] for name in names if made[name] is not None} == {
        "language": "de",
        "beam": 5,
        "temperatures": "0,0.4",
        "word_times": True,
        "segment_times": False,
        "previous_text": False,
        "no_speech_threshold": "none",
        "prompt": "--a b",
    }
    with pytest.raises(typer.BadParameter, match="unknown request parameter 'langage'"):
        with_new_names("transcribe", command_of("transcribe"), ["--decoding", '{"langage": "de"}'])


def test_a_command_with_old_names_does_what_it_did():
    for words in (["gateway", "--new-key", "anna", "--triton", "http://127.0.0.1:1"], ["drain", "--url", "x"]):
        result = CliRunner().invoke(app, words)
        assert result.stderr.startswith("tritone: --")
        assert ("sha256" in result.stdout, result.exit_code) in ((True, 0), (False, 2))
    name, held = "compile", ["my-model", "--lengths", "4"]
    words = with_new_names(name, command_of(name), held)
    check_words(command_of(name), words)
    assert command_of(name).make_context(name, words).params["num_lengths"] == 4
