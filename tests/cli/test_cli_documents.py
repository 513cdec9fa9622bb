"""`tritone transcribe --format` and `--output`: documents of the toy bundle, and where they are written."""

import json
from pathlib import Path

import pytest
import soundfile
from typer.testing import CliRunner

from format_readers import read_srt, read_textgrid, read_vtt
from toy import SAMPLE_RATE, toy_waveform
from tritone.cli.main import app
from tritone.cli.shared.documents import names_of
from tritone.formats import FORMATS
from tritone.server import TritonServer

TEXTS = ("hello world", "seven 7")


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["transcribe", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def speech(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.flac" for number in (1, 2)]
    for path, text in zip(paths, TEXTS, strict=True):
        soundfile.write(path, toy_waveform(text), SAMPLE_RATE, subtype="PCM_24")
    return paths


def test_formats_that_name_their_recordings_hold_several(toy_bundle: Path, speech: list[Path], tmp_path: Path) -> None:
    code, out, err = run(*speech, "--model", toy_bundle, "--format", "ctm")
    assert (code, err) == (0, "")
    words = [(line.split()[0], line.split()[4]) for line in out.splitlines()]
    assert words == [("1", "hello"), ("1", "world"), ("2", "seven"), ("2", "7")]
    (tmp_path / "wav.scp").write_text("first 1.flac\nsecond 2.flac\n", encoding="utf-8")
    command = ("--wavscp", tmp_path / "wav.scp", "--model", toy_bundle, "--output", tmp_path / "all.json")
    assert run(*command, "--format", "json") == (0, "", "")
    records = [json.loads(line) for line in (tmp_path / "all.json").read_text(encoding="utf-8").splitlines()]
    assert [(each["recording"], each["text"]) for each in records] == [("first", TEXTS[0]), ("second", TEXTS[1])]


def test_others_get_a_file_for_each(toy_bundle: Path, speech: list[Path], tmp_path: Path) -> None:
    code, _, err = run(*speech, "--model", toy_bundle, "--format", "srt")
    assert code == 2
    assert "srt holds one recording and there are 2: add --output DIR" in " ".join(err.split())
    assert run(*speech, "--model", toy_bundle, "--format", "srt", "--output", tmp_path / "new") == (0, "", "")
    found = [read_srt((tmp_path / "new" / f"{number}.srt").read_text(encoding="utf-8")) for number in (1, 2)]
    assert [cue.lines for cues in found for cue in cues] == [[TEXTS[0]], [TEXTS[1]]]
    (tmp_path / "texts").mkdir()
    assert run(*speech, "--model", toy_bundle, "--output", tmp_path / "texts") == (0, "", "")
    assert [(tmp_path / "texts" / f"{number}.txt").read_text(encoding="utf-8") for number in (1, 2)] == [
        f"{each}\n" for each in TEXTS
    ]


def test_a_single_document_may_go_anywhere(toy_bundle: Path, speech: list[Path], tmp_path: Path) -> None:
    code, out, err = run(speech[0], "--model", toy_bundle, "--format", "vtt", "--streaming")
    assert (code, err) == (0, "")
    (cue,) = read_vtt(out)
    assert cue.lines == [TEXTS[0]]
    target = tmp_path / "a.TextGrid"
    assert run(speech[0], "--model", toy_bundle, "--format", "textgrid", "--output", target) == (0, "", "")
    assert [label[2] for label in read_textgrid(target.read_text(encoding="utf-8"))["words"]] == TEXTS[0].split()


def test_a_server_is_asked_for_the_times_that_a_format_needs(
    served_toy: TritonServer, toy_bundle: Path, speech: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITONE_KEY", served_toy.options.key)
    for name in ("srt", "ctm", "rttm"):
        served = run(speech[0], "--url", served_toy.grpc_address, "--model", "toy", "--format", name)
        assert served == run(speech[0], "--model", toy_bundle, "--format", name)
        assert served[0] == 0


def test_a_recording_that_a_format_cannot_hold_fails_alone(toy_bundle: Path, speech: list[Path]) -> None:
    odd = speech[1].rename(speech[1].with_name("two words.flac"))
    code, out, err = run(odd, speech[0], "--model", toy_bundle, "--format", "ctm")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err.startswith(f"error: {odd}: the recording 'two words' cannot be written as CTM")


def test_a_journal_repeats_documents(toy_bundle: Path, speech: list[Path], tmp_path: Path) -> None:
    command = (*speech, "--model", toy_bundle, "--format", "srt", "--journal", tmp_path / "journal", "--output")
    for name in ("first", "second"):
        assert run(*command, f"{tmp_path / name}/") == (0, "", "")
    for number in (1, 2):
        assert read_srt((tmp_path / "second" / f"{number}.srt").read_text(encoding="utf-8"))[0].lines == [
            TEXTS[number - 1]
        ]
    as_lines = tuple(each if each != "srt" else "text" for each in command[:-1])  # in another format
    assert run(*as_lines)[1].splitlines() == [f"{path}\t{text}" for path, text in zip(speech[:3], TEXTS, strict=False)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--format", "srt", "--timestamps"), "--timestamps goes with --format text"),
        (("--format", "ctm", "--json"), "--json goes with --format text"),
        (("--json", "--output", "x"), "with --output there is --format json"),
        (("--format", "vtt", "--output", "x.vtt"), "is a file, --format vtt holds one recording and there are 2"),
        (("--output", "no/such/file.txt"), "there is no folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: tuple[str, ...], complaint: str, toy_bundle: Path, speech: list[Path]
) -> None:
    code, _, err = run(*speech, "--model", toy_bundle, *arguments)
    assert code == 2
    assert complaint in " ".join(err.split())


@pytest.mark.parametrize("name", ["../out", "/etc/out", ".."])
def test_ids_of_lists_lead_out_of_no_folder(name: str, toy_bundle: Path, speech: list[Path], tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text(f"{name} 1.flac\n", encoding="utf-8")
    code, _, err = run("--wavscp", tmp_path / "wav.scp", "--model", toy_bundle, "--output", f"{tmp_path}/out/")
    assert code == 2
    assert "names no file inside of --output" in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_recordings_are_called_as_their_files_and_by_their_folders_where_needed() -> None:
    assert names_of(["x/a.wav", "y/b.flac"]) == ["a", "b"]
    assert names_of(["x/a.wav", "x/y/a.flac"]) == ["a", "y/a"]
    assert names_of(["x/a.wav", "x/a.flac"]) == ["a.wav", "a.flac"]
    assert names_of(["s3://bucket/x/a.wav", "s3://bucket/y/a.wav"])[0].endswith("x/a")


def test_the_help_has_every_format() -> None:
    _, out, _ = run("--help")
    assert all(f"{name}:" in out for name in FORMATS if name != "text")
