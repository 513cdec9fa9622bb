"""Lists of utterances as people have them, and as they are when something went wrong."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tritone.audio.files import Selection
from tritone.corpus import list_file, utterance
from tritone.corpus.dataset import Utterance, read_utterances
from tritone.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files that exist; their content is nobody's business here."""
    for name in ("a.wav", "b b.wav", "sub/c.flac"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def kaldi(folder: Path, scp: str | bytes, trans: str | bytes | None = None, **options: Any) -> list[Utterance]:
    for name, content in (("wav.scp", scp), ("trans.txt", trans)):
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_utterances(wavscp=folder / "wav.scp", trans=None if trans is None else folder / "trans.txt", **options)


def manifest(folder: Path, content: Any, **options: Any) -> list[Utterance]:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    return read_utterances(manifest=folder / "manifest.json", **options)


def test_kaldi_lists_pair_audio_with_references_in_the_order_of_the_audio(folder: Path) -> None:
    found = kaldi(folder, "u1 a.wav\nu2\tb b.wav\nu3 \t sub/c.flac\n", "u3 what a day\nu1\nu2\t 你好\u3000吗 \n")
    assert found == [
        Utterance("u1", folder / "a.wav", ""),
        Utterance("u2", folder / "b b.wav", "你好\u3000吗"),
        Utterance("u3", folder / "sub" / "c.flac", "what a day"),
    ]


def test_files_from_windows_are_read_as_well(folder: Path) -> None:
    assert kaldi(folder, b"\xef\xbb\xbfu1 a.wav\r\n\r\n", b"\xef\xbb\xbfu1 so\r\n") == [
        Utterance("u1", folder / "a.wav", "so")
    ]


def test_what_looks_like_a_line_break_in_a_text_is_none(folder: Path) -> None:
    assert kaldi(folder, "u1 a.wav", "u1 one\u2028two\x0bthree")[0].text == "one\u2028two\x0bthree"


def test_relative_paths_start_from_the_data_folder_or_else_from_the_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert kaldi(folder, "u1 c.flac", "u1 x", data_dir=folder / "sub")[0].audio == folder / "sub" / "c.flac"
    assert kaldi(folder / "sub", "u1 c.flac", "u1 x")[0].audio == folder / "sub" / "c.flac"
    absolute = kaldi(folder / "sub", f"u1 {folder}/a.wav", "u1 x", data_dir=folder)
    assert absolute[0].audio == folder / "a.wav"
    with pytest.raises(InputError, match=r"c\.flac is missing\. Relative paths start from .* give a data folder"):
        kaldi(folder, "u1 c.flac", "u1 x")


def test_references_are_needed_unless_the_caller_says_otherwise(folder: Path) -> None:
    with pytest.raises(InputError, match=r"wav\.scp:2: 'u2' has no reference in .*trans\.txt"):
        kaldi(folder, "u1 a.wav\nu2 a.wav", "u1 x")
    assert [each.text for each in kaldi(folder, "u1 a.wav\nu2 a.wav", "u1 x", need_text=False)] == ["x", None]
    with pytest.raises(InputError, match="'u1' has no reference"):
        kaldi(folder, "u1 a.wav")
    assert kaldi(folder, "u1 a.wav", need_text=False)[0].text is None


def test_json_lines_go_by_the_names_of_their_makers(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"audio_filepath": "a.wav", "text": "nemo", "duration": 1.5, "offset": 0, "lang": "en"},
        {"id": "mine", "path": "a.wav", "text": "ours", "duration": 2, "speaker": "x", "segments": [[0, 1]]},
        {"key": "wenet", "wav": "a.wav", "txt": "你好"},
        {"id": "none", "audio": "sub/c.flac", "text": None},
    ]
    found = manifest(folder, "\n\n".join(map(json.dumps, rows)), need_text=False)
    assert found == [
        Utterance("a.wav", folder / "a.wav", "nemo", 1.5),
        Utterance("mine", folder / "a.wav", "ours", 2.0),
        Utterance("wenet", folder / "a.wav", "你好", None),
        Utterance("none", folder / "sub" / "c.flac", None, None),
    ]


def test_an_array_may_be_that_of_jaspers_librispeech(folder: Path) -> None:
    rows = [
        {
            "transcript": "so it goes",
            "files": [
                {"fname": "b b.wav", "speed": 0.9, "duration": 9.0},
                {"fname": "a.wav", "speed": 1, "channels": 1},
            ],
            "original_duration": 8.1,
            "original_num_samples": 129600,
        }
    ]
    assert manifest(folder, rows) == [Utterance("a.wav", folder / "a.wav", "so it goes", 8.1)]
    assert manifest(folder, json.dumps(rows, indent=2))[0].id == "a.wav"


def test_a_reference_may_have_a_file_of_its_own(folder: Path) -> None:
    (folder / "sub" / "c.txt").write_text("  so\n it goes\r\n", encoding="utf-8-sig")
    rows = [{"files": [{"fname": "sub/c.flac", "speed": 1.0}], "text_filepath": "sub/c.txt", "original_duration": 2}]
    (found,) = manifest(folder, rows)
    assert (found.text, found.duration_s) == ("so it goes", 2.0)
    (folder / "lists").mkdir()
    assert manifest(folder / "lists", rows, data_dir=folder) == [found]


def test_several_manifests_are_one_list(folder: Path) -> None:
    (folder / "one.json").write_text('[{"path": "a.wav", "text": "x"}]', encoding="utf-8")
    (folder / "sub" / "two.json").write_text('{"path": "c.flac", "text": "y"}\n', encoding="utf-8")
    both = [folder / "one.json", folder / "sub" / "two.json"]
    assert [each.audio for each in read_utterances(manifest=both)] == [folder / "a.wav", folder / "sub" / "c.flac"]
    with pytest.raises(InputError, match=r"two\.json:1: .*c\.flac is missing\. .*the data folder that was given"):
        read_utterances(manifest=both, data_dir=folder)
    with pytest.raises(InputError, match=r"one\.json, item 1: 'a\.wav' was listed in item 1 already"):
        read_utterances(manifest=[both[0], both[0]])
    (folder / "three.json").write_text('{"path": "a.wav", "text": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"three\.json:1: 'a\.wav' was listed in .*one\.json, item 1 already"):
        read_utterances(manifest=[both[0], folder / "three.json"])


@pytest.mark.parametrize("path", ["/a.wav", "../a.wav", "sub/../../a.wav", "sub/.."])
@pytest.mark.parametrize("form", ["path", "fname"])
def test_with_a_data_folder_a_manifest_cannot_lead_out_of_it(folder: Path, path: str, form: str) -> None:
    row = {"path": path, "text": "x"} if form == "path" else {"files": [{"fname": path}], "transcript": "x"}
    with pytest.raises(
        InputError, match=r"item 1: the audio is (an absolute path|a path with '\.\.'), .*leave that away"
    ):
        manifest(folder, [row], data_dir=folder)


def test_without_a_data_folder_a_manifest_may_name_any_audio(folder: Path) -> None:
    rows = [{"audio_filepath": f"{folder}/a.wav", "text": "x"}, {"audio_filepath": "../b b.wav", "text": "y"}]
    assert [each.audio.resolve() for each in manifest(folder / "sub", rows)] == [folder / "a.wav", folder / "b b.wav"]


def test_utterances_are_chosen_by_the_durations_of_manifests(folder: Path) -> None:
    rows = [{"path": name, "text": "x", "duration": s} for name, s in (("a.wav", 1), ("b b.wav", 2.5), ("gone.wav", 9))]
    assert [each.id for each in manifest(folder, rows, max_duration_s=2.5)] == ["a.wav", "b b.wav"]
    assert [each.id for each in manifest(folder, rows, min_duration_s=2.5, max_duration_s=3)] == ["b b.wav"]
    with pytest.raises(InputError, match=r"lists no utterances of 3 to 4 s"):
        manifest(folder, rows, min_duration_s=3, max_duration_s=4)
    with pytest.raises(InputError, match=r"'a\.wav' has no 'duration' to choose by"):
        manifest(folder, [{"path": "a.wav", "text": "x"}], min_duration_s=1)
    with pytest.raises(ValueError, match="0 <= min <= max, got 3 and 2"):
        manifest(folder, rows, min_duration_s=3, max_duration_s=2)
    with pytest.raises(ValueError, match="only manifests state durations"):
        kaldi(folder, "u1 a.wav", need_text=False, min_duration_s=1)


def test_a_folder_is_a_list_of_what_is_in_it_with_the_texts_beside(folder: Path) -> None:
    (folder / "sub" / "1-2.trans.txt").write_text("c SO IT GOES\nd NOT HERE\n", encoding="utf-8")
    (folder / "a.txt").write_text("what a\nday\n", encoding="utf-8")
    os.mkfifo(folder / "sub" / "2.trans.txt")  # nobody writes to it
    for name in (".hidden.wav", "notes.md", "sub/.cache/x.wav"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert read_utterances(data_dir=folder, need_text=False) == [
        Utterance("a.wav", folder / "a.wav", "what a day"),
        Utterance("b b.wav", folder / "b b.wav", None),
        Utterance("sub/c.flac", folder / "sub" / "c.flac", "SO IT GOES"),
    ]
    with pytest.raises(
        InputError, match=r"b b\.wav: 'b b\.wav' has no reference beside it \(\*\.trans\.txt, or b b\.txt\)"
    ):
        read_utterances(data_dir=folder)
    (folder / "sub" / "3.trans.txt").write_text("c AGAIN\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"3\.trans\.txt:1: 'c' has a reference already, .*1-2\.trans\.txt:1"):
        read_utterances(data_dir=folder, need_text=False)


def test_a_folder_without_audio_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"no audio in the folder .*\.flac"):
        read_utterances(data_dir=tmp_path)
    with pytest.raises(InputError, match=r"cannot read the folder .*gone: No such file"):
        read_utterances(data_dir=tmp_path / "gone")


@pytest.mark.parametrize(
    ("scp", "trans", "complaint"),
    [
        ("", "", r"trans\.txt holds no references"),
        ("\n \n", "u1 x", r"wav\.scp lists no utterances"),
        ("u1", "u1 x", r"wav\.scp:1: 'u1' has no path"),
        ("u1 a.wav\n\nu1 a.wav", "u1 x", r"wav\.scp:3: 'u1' was listed in line 1 already"),
        ("u1 a.wav", "u1 x\nu1 y", r"trans\.txt:2: 'u1' has a reference in line 1 already"),
        ("u1 a.wav", "u1 x\nu9 y", r"trans\.txt:2: 'u9' has a reference but no audio in .*wav\.scp"),
        ("u1 sox a.wav -t wav - |", "u1 x", r"wav\.scp:1: 'u1' is the command 'sox .*never run"),
        ("u1 | tee b.wav", "u1 x", "never run"),
        ("u1 raw.ark:1234", "u1 x", "is in a Kaldi archive"),
        ("u1 nowhere.wav", "u1 x", r"wav\.scp:1: .*nowhere\.wav is missing"),
        ("u1 sub", "u1 x", "sub is not a file"),
        ("u1 /dev/zero", "u1 x", "/dev/zero is not a file"),
        (f"u1 {'x' * 5000}", "u1 x", r"wav\.scp:1: .*cannot be read: File name too long"),
        ("u1 a\0.wav", "u1 x", "is missing"),
        (b"u1 a.wav\nu2 \xff.wav", "u1 x", r"wav\.scp:2: not UTF-8 \(byte 0xff\)"),
        ("u1 a.wav", b"u1 caf\xe9", r"trans\.txt:1: not UTF-8 \(byte 0xe9\)"),
    ],
)
def test_what_is_wrong_with_a_kaldi_list_is_told_with_its_line(
    folder: Path, scp: str | bytes, trans: str | bytes, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        kaldi(folder, scp, trans)


GOOD = '{"path": "a.wav", "text": "x"}'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "lists no utterances"),
        ("[]", "lists no utterances"),
        (f"{GOOD}\n\n{{'path'", r"manifest\.json:3: not JSON \(.*\)\. A manifest holds one JSON object per line"),
        (f"[{GOOD},\n{GOOD}\n{GOOD}]", r"manifest\.json:3: not JSON"),
        ('"a.wav"', r"manifest\.json:1: expected a JSON object, got 'a\.wav'"),
        (f"[{GOOD}, 5]", r"manifest\.json, item 2: expected a JSON object, got 5"),
        (f"{GOOD}\n{GOOD}", r"manifest\.json:2: 'a\.wav' was listed in line 1 already"),
        ('{"text": "x"}', r"manifest\.json:1: no audio; its path goes by one of audio_filepath, "),
        ('{"path": "a.wav"}', "'a.wav' has no reference"),
        ('{"path": "", "text": "x"}', "an empty id"),
        ('{"path": 5, "text": "x"}', "'path' must be a text, got 5"),
        ('{"path": "a.wav", "text": ["x"]}', r"'text' must be a text, got \['x'\]"),
        ('{"path": "a.wav", "audio": "b.wav", "text": "x"}', "'audio' and 'path' differ"),
        ('{"path": "a.wav", "text": "x", "duration": "5"}', "'duration' must be a number, 0 or more, got '5'"),
        ('{"path": "a.wav", "text": "x", "duration": NaN}', "'duration' must be a number"),
        ('{"path": "a.wav", "text": "x", "duration": -1}', "'duration' must be a number"),
        (f'{{"path": "a.wav", "text": "x", "duration": {"9" * 400}}}', "'duration' must be a number"),
        ('{"path": "a.wav", "text": "x", "offset": 1.5}', "cut the audio into files"),
        ('{"path": "a.wav", "text_filepath": "a.txt"}', r"manifest\.json:1: cannot read .*a\.txt: No such file"),
        ('{"path": "a.wav", "text_filepath": "../a.txt"}', r"'text_filepath' is a path with '\.\.', '\.\./a\.txt'"),
        ('{"path": "a.wav", "text_filepath": "/etc/hosts"}', "'text_filepath' is an absolute path, '/etc/hosts'"),
        (f'{{"path": "a.wav", "text_filepath": "{"x" * 5000}"}}', "cannot read .*File name too long"),
        ('{"path": "a.wav", "text_filepath": "\\ud83d"}', r"cannot read '.*\\ud83d'"),
        ('{"path": "a.wav", "text_filepath": "sub"}', r"manifest\.json:1: cannot read .*sub: Is a directory"),
        ('{"path": "a.wav", "text_filepath": "pipe"}', "cannot read .*pipe: it is not a file"),
        ('{"path": "a.wav", "text_filepath": "a\\u0000.txt"}', "cannot read 'a|cannot read .*null"),
        ('{"path": "a.wav", "text": "\\ud83d"}', r"half a character, '\\ud83d'"),
        ('{"files": [{"fname": "a.wav", "speed": 0.9}], "transcript": "x"}', r"has none with speed 1\.0"),
        ('{"files": [{"speed": 1}], "transcript": "x"}', "a file without 'fname'"),
        ('{"files": ["a.wav"], "transcript": "x"}', "must be a list of objects with 'fname'"),
        ("[" * 100_000, "cannot be read"),
        (f'{{"path": "a.wav", "duration": {"9" * 5000}}}', "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told_with_its_line(folder: Path, content: str, complaint: str) -> None:
    os.mkfifo(folder / "pipe")  # nobody writes to it
    with pytest.raises(InputError, match=complaint):
        manifest(folder, content)


def test_a_list_that_is_missing_too_large_or_a_folder_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"cannot read .*gone\.scp: No such file"):
        read_utterances(wavscp=folder / "gone.scp", need_text=False)
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_utterances(manifest=folder)
    os.mkfifo(folder / "pipe")  # nobody writes to it
    with pytest.raises(InputError, match=r"cannot read .*pipe: it is not a file \(a pipe or a device\?\)"):
        read_utterances(manifest=folder / "pipe")
    monkeypatch.setattr(list_file, "MAX_LIST_MB", 0)
    with pytest.raises(InputError, match="larger than 0 MB"):
        kaldi(folder, "u1 a.wav", need_text=False)


def test_a_reference_without_end_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utterance, "MAX_TEXT", 10)
    for read in (
        lambda: kaldi(folder, "u1 a.wav", f"u1 {'x' * 11}"),
        lambda: manifest(folder, [{"path": "a.wav", "text": "x" * 11}]),
    ):
        with pytest.raises(InputError, match="a reference of 11 characters; at most 10"):
            read()


def test_the_wrong_combination_of_lists_is_the_callers_mistake(folder: Path) -> None:
    path = folder / "a.wav"
    for lists in ({}, {"wavscp": path, "manifest": path}, {"manifest": path, "trans": path}):
        with pytest.raises(ValueError, match=r"either a wav\.scp or a manifest|trans goes with"):
            read_utterances(**lists)


def test_a_list_may_come_from_a_pipe(folder: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"u1 a.wav\n")
    os.close(writing)
    try:
        found = read_utterances(wavscp=Path(f"/dev/fd/{reading}"), data_dir=folder, need_text=False)
    finally:
        os.close(reading)
    assert [each.id for each in found] == ["u1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(b'{"path": "a.wav", "text": "x", "duration": 1e999}', b"u1\n")
@given(st.binary(max_size=200), st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
def test_any_bytes_are_utterances_or_an_input_error(folder: Path, content: bytes, trans: bytes) -> None:
    (folder / "list").write_bytes(content)
    (folder / "trans").write_bytes(trans)
    for lists in (
        {"wavscp": folder / "list", "trans": folder / "trans"},
        {"manifest": folder / "list"},
        {"manifest": folder / "list", "data_dir": folder},
    ):
        with suppress(InputError):
            assert all(each.audio.is_file() for each in read_utterances(**lists, need_text=False))


def test_segments_are_parts_of_the_recordings_of_a_wav_scp(folder: Path) -> None:
    (folder / "segments").write_bytes(b"\xef\xbb\xbfu1 rec 0.5 2.25\r\nu2 rec 3 4\r\n")
    first, second = kaldi(folder, "rec a.wav\n", "u1 one\nu2 two\n", segments=True)
    assert (first.id, first.text, first.span, first.duration_s) == ("u1", "one", (0.5, 2.25), 1.75)
    assert second.source == Selection(str(folder / "a.wav"), start_s=3, end_s=4)
    (whole,) = kaldi(folder, "rec a.wav\n", "rec all of it\n", segments=True)
    assert (whole.id, whole.source) == ("rec", str(folder / "a.wav"))


@pytest.mark.parametrize(
    "line", ["u1 rec 2 1", "u1 rec x 1", "u1 rec 1", "u1", "u1 rec 0 1 2", "u1 rec 0 nan", "u1 other 0 1"]
)
def test_a_malformed_line_of_segments_is_refused_with_its_place(folder: Path, line: str) -> None:
    (folder / "segments").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"segments:1: "):
        kaldi(folder, "rec a.wav\n", "u1 one\n", segments=True)
