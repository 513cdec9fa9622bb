"""Commands that say how to search: `transcribe` here and there, what it prints, and parameters of other commands."""

import json
import re
from pathlib import Path

import pytest
import soundfile
import typer
from typer.testing import CliRunner

import tritone
from toy import SAMPLE_RATE, toy_waveform
from toy_transducer import transducer_waveform, write_toy_transducer
from tritone.cli.main import app
from tritone.cli.shared.search_options import parameters_as_flags
from tritone.cli.shared.transcript_printer import TranscriptPrinter
from tritone.kinds import kind_named
from tritone.result import TranscriptResult
from tritone.search.options import MODEL_PARAMETERS, PARAMETERS
from tritone.server import TritonServer
from tritone.transcript import Alternative, Span, Transcript

BEAM = ["--search", "prefix-beam", "--beam", "8", "--nbest", "2"]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    path = tmp_path / "ab.wav"
    soundfile.write(path, toy_waveform("ab"), SAMPLE_RATE, subtype="FLOAT")
    return path


@pytest.mark.parametrize("streaming", [[], ["--streaming"]], ids=["offline", "streaming"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_readings_are_printed_best_first_and_alike_here_and_there(
    toy_bundle: Path, served_toy: TritonServer, speech: Path, streaming: list[str], protocol: str
):
    address = served_toy.grpc_address if protocol == "grpc" else f"http://{served_toy.http_address}"
    there = run("transcribe", speech, "--url", address, *BEAM, *streaming)
    code, out, err = run("transcribe", speech, "--model", toy_bundle, *BEAM, *streaming)
    assert (code, err) == (0, "")
    text, first, second = out.splitlines()
    assert text == "ab"
    # Two frames, each a hit: 2 * ln 0.95.
    assert re.fullmatch(r" +1    -0\.10  ab", first)
    assert re.fullmatch(r" +2 +-\d\.\d\d  \w+", second)
    assert there == (code, out, err)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--hotwords", "ab:3"], "--hotwords has no effect with --search greedy; add --search prefix-beam"),
        (["--lm", "words.arpa", "--nbest", "2"], "--lm, --nbest has no effect with --search greedy"),
        (["--search", "prefix-beam", "--ctc-weight", "1"], "--ctc-weight has no effect with --search prefix-beam; add"),
    ],
)
def test_options_that_the_search_does_not_look_at_are_refused(
    toy_bundle: Path, speech: Path, options: list[str], told: str
):
    code, out, err = run("transcribe", speech, "--model", toy_bundle, *options)
    assert (code, out) == (2, "")
    assert told in err.replace("\n", " ")


def test_json_has_the_readings_of_a_search_that_asked_for_them(toy_bundle: Path, speech: Path):
    record = json.loads(run("transcribe", speech, "--model", toy_bundle, "--json", *BEAM)[1])
    assert sorted(record) == ["alternatives", "path", "text"]
    assert record["alternatives"][0]["text"] == "ab"
    record = json.loads(run("transcribe", speech, "--model", toy_bundle, "--json")[1])
    assert sorted(record) == ["path", "text"]


def test_hotwords_change_the_text_here_and_there(toy_bundle: Path, served_toy: TritonServer, speech: Path):
    lured = ["--search", "prefix-beam", "--beam", "40", "--hotwords", "ac:20, zz:1"]
    for who in (["--model", str(toy_bundle)], ["--url", served_toy.grpc_address]):
        assert run("transcribe", speech, *who, *lured) == (0, "ac\n", "")


def test_what_a_model_cannot_do_is_one_line(toy_bundle: Path, served_toy: TritonServer, speech: Path):
    for who in (["--model", str(toy_bundle)], ["--url", served_toy.grpc_address]):
        code, out, err = run("transcribe", speech, *who, "--search", "rescoring")
        assert (code, out) == (1, "")
        assert "decoder" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--url", "a", "--lm", "words.arpa"], "--lm goes with a model that runs here"),
        (["--model", "b", "--chunk-size", "8"], "--chunk-size goes with --streaming"),
        (["--url", "a", "--search", "best"], "--search"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(options: list[str], complaint: str):
    code, out, err = run("transcribe", "a.wav", *options)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.replace("│", "").split())


def test_whatever_a_request_may_ask_models_commands_and_load_have_an_option_for():
    asked = set(PARAMETERS)
    assert asked <= set(MODEL_PARAMETERS)
    assert asked <= set(tritone.Recognizer.loadable(kind_named("ctc")))
    for command, names in (("build", MODEL_PARAMETERS), ("transcribe", PARAMETERS)):
        told = "".join(run(command, "--help-all")[1].split())
        missing = [
            name for name, each in names.items() if f"--{name.replace('_', '-')}" not in told and each.flag not in told
        ]
        assert missing == []
        # These have a form of their own where a request is made.
        named = names.keys() - {"hotwords", "timestamps"}
        assert [name for name in named if "".join(names[name].help.split()) not in told] == []


def test_a_transducer_has_options_of_its_own(tmp_path: Path):
    bundle, speech = write_toy_transducer(tmp_path / "transducer"), tmp_path / "ak.wav"
    soundfile.write(speech, transducer_waveform("a~k"), SAMPLE_RATE, subtype="FLOAT")
    here = ("transcribe", speech, "--model", bundle)
    assert run(*here, "--search", "fast-beam", "--blank-penalty", "2", "--max-states", "8") == (0, "aek\n", "")
    assert run(*here, "--max-symbols", "2", "--streaming") == (0, "aakk\n", "")
    code, _, err = run(*here, "--search", "modified-beam", "--max-symbols", "2")
    assert code == 2
    assert "--max-symbols has no effect with --search modified-beam; add --search greedy" in err.replace("\n", " ")
    code, _, err = run(*here, "--search", "rescoring")
    assert (code, err.count("\n")) == (1, 1)
    assert "kind transducer, which searches with greedy, modified-beam, fast-beam" in err
    repo, served = tmp_path / "repo", ("--mode", "streaming", "--name", "transducer")
    code, out, _ = run("build", bundle, "--output", repo, *served, "--max-symbols", "3")
    assert (code, out.split("\t")[:2]) == (0, ["transducer", "streaming"])
    config = (repo / "transducer" / "config.pbtxt").read_text(encoding="utf-8")
    assert re.findall(r'key: "max_symbols"\s*value \{\s*string_value: "(\d+)"', config) == ["3"]


def segment(number: int, text: str, start_s: float, end_s: float) -> Transcript:
    words = tuple(Span(word, start_s, end_s, 0.5) for word in text.split())
    return Transcript(text, words, words, 0.5, end_s + 0.25, segment=number)


def test_details_show_the_segments_of_a_stream(capsys: pytest.CaptureFixture[str]):
    segments = (segment(0, "one two", 0.5, 1.0), segment(1, "three", 3.0, 3.5))
    found = Transcript("one two three", confidence=0.5, audio_s=3.75, segment=1, ended=segments)
    for as_json in (False, True):
        printer = TranscriptPrinter(num_files=1, as_json=as_json, timestamps=False, details=True)
        printer.show(TranscriptResult(index=0, source="a.wav", value=found))
    *lines, record = capsys.readouterr().out.splitlines()
    assert lines == [
        "one two three",
        "    confidence 0.50, 3.75 s",
        "     0.50     1.25  [0] one two",
        "     3.00     3.75  [1] three",
    ]
    told = json.loads(record)
    assert sorted(told) == ["audio_s", "confidence", "path", "segments", "text"]
    assert [(each["segment"], each["text"]) for each in told["segments"]] == [(0, "one two"), (1, "three")]


def test_readings_of_a_segment_follow_it(capsys: pytest.CaptureFixture[str]):
    readings = (Alternative("one", -1.0), Alternative("won", -2.5))
    found = Transcript("one", audio_s=1.0, ended=(Transcript("one", audio_s=1.0, alternatives=readings),))
    for details in (True, False):  # without details there is no other place for them
        printer = TranscriptPrinter(num_files=1, as_json=False, timestamps=False, details=details)
        printer.show(TranscriptResult(index=0, source="a.wav", value=found))
        lines = capsys.readouterr().out.splitlines()
        assert lines[-3:] == [
            "     1.00     1.00  [0] one",
            "        1    -1.00  one",
            "        2    -2.50  won",
        ]


def test_a_partial_text_is_that_of_the_whole_stream(capsys: pytest.CaptureFixture[str]):
    printer = TranscriptPrinter(num_files=1, as_json=True, timestamps=False)
    with printer.partials("a.wav") as show:
        show(Transcript("four", history="one two three", segment=1, is_final=False))
    assert json.loads(capsys.readouterr().out)["text"] == "one two three four"


def test_parameters_are_written_as_flags():
    assert parameters_as_flags("") == []
    assert parameters_as_flags("search=rescoring, beam=20,hotwords=anna:8;new york:5,window_s=2,timestamps=false") == [
        *("--search", "rescoring", "--beam", "20", "--hotwords", "anna:8,new york:5", "--embed-window-s", "2")
    ]


@pytest.mark.parametrize("text", ["beam", "beam=", "beems=3", "=3"])
def test_parameters_that_make_no_sense_are_wrong_usage(text: str):
    with pytest.raises(typer.BadParameter, match=r"is no request parameter; write NAME=VALUE with one of search, beam"):
        parameters_as_flags(text)


def test_an_evaluation_of_a_server_can_say_how_to_search(served_toy: TritonServer, speech: Path, tmp_path: Path):
    (tmp_path / "wav.scp").write_text(f"a {speech}\n", encoding="utf-8")
    (tmp_path / "text").write_text("a ab\n", encoding="utf-8")
    files = ["--wavscp", tmp_path / "wav.scp", "--trans", tmp_path / "text", "--report", tmp_path / "result.json"]
    model = f"grpc://{served_toy.grpc_address}/toy"
    compared = ["--compare", f"beam={model},search=prefix-beam,beam=4", "--compare", f"bad={model},search=rescoring"]
    code, _, err = run("evaluate", "--url", served_toy.grpc_address, "--search", "prefix-beam", *files, *compared)
    assert code == 1
    assert "bad: 1 of 1 utterances failed" in err
    systems = [each["system"] for each in json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["systems"]]
    assert [each.get("search") for each in systems] == ["prefix-beam", "prefix-beam", "rescoring"]
    code, _, err = run("evaluate", "--url", served_toy.grpc_address, "--parameters", "search=rescoring", *files)
    assert (code, "--parameters is --search rescoring now; the old name goes with 0.3" in err) == (1, True)


def test_a_model_here_is_evaluated_with_the_search_that_transcribe_has(toy_bundle: Path, speech: Path, tmp_path: Path):
    (tmp_path / "wav.scp").write_text(f"a {speech}\n", encoding="utf-8")
    (tmp_path / "text").write_text("a ac\n", encoding="utf-8")
    files = ["--wavscp", tmp_path / "wav.scp", "--trans", tmp_path / "text", "--report", tmp_path / "result.json"]
    lured = ["--search", "prefix-beam", "--beam", "40", "--hotwords", "ac:20, zz:1"]
    for asked in (lured, ["--bundle", f"old={toy_bundle},search=prefix-beam,beam=40,hotwords=ac:20;zz:1"]):
        model = [] if "--bundle" in asked else ["--model", toy_bundle]
        code, _, err = run("evaluate", *model, *asked, *files)
        assert code == 0, err
        (found,) = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["systems"]
        assert (found["summary"]["wer"], found["system"]["beam"]) == (0.0, "40")
    code, _, err = run("evaluate", "--model", toy_bundle, "--beam", "3", *files)
    assert (code, "beam has no effect with search" in " ".join(err.split())) == (2, True)


def test_a_load_test_asks_no_parameters_of_who_would_not_look_at_them(wire_server: TritonServer):
    for address in (wire_server.grpc_address, f"http://{wire_server.http_address}"):
        code, _, err = run("bench", "--url", address, "--model", "count", "--search", "prefix-beam", "--beam", "3")
        assert code == 1
        assert "model 'count' takes no search parameters, such as beam, search" in err
    assert run("bench", "--url", "a", "--parameters", "beems=3")[0] == 2
    assert run("bench", "--url", "a", "--beam", "no")[0] == 2
