"""`tritone transcribe` with toys.

On a server "count" answers "<samples> <sum>" at 8 kHz, and "running" counts chunks and samples of a stream at 16 kHz.
The toy bundle says what `toy_waveform` spells.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from toy import SAMPLE_RATE, toy_waveform
from tritone.cli.main import app
from tritone.server import TritonServer
from wire_toys import toy_server


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["transcribe", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def tones(tmp_path: Path) -> list[Path]:
    """Files of 1 to 5 samples of value 0.5 at 8 kHz, named by their length."""
    paths = [tmp_path / f"{length}.wav" for length in range(1, 6)]
    for length, path in enumerate(paths, start=1):
        soundfile.write(path, np.full(length, 0.5), 8000, subtype="FLOAT")
    return paths


@pytest.fixture
def speech(tmp_path: Path) -> list[Path]:
    paths = []
    for text in ("hello world", "seven 7", "tritone"):
        paths.append(tmp_path / f"{text.replace(' ', '-')}.flac")
        soundfile.write(paths[-1], toy_waveform(text), SAMPLE_RATE, subtype="PCM_24")
    return paths


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, wire_server: TritonServer) -> str:
    return wire_server.grpc_address if request.param == "grpc" else f"http://{wire_server.http_address}"


@pytest.mark.parametrize("streaming", [(), ("--streaming",)])
def test_audio_may_be_rounded_and_lie_in_shared_memory(
    served_toy: TritonServer, speech: list[Path], monkeypatch: pytest.MonkeyPatch, streaming: tuple[str, ...]
):
    monkeypatch.setenv("TRITONE_KEY", served_toy.options.key)
    where = ("--url", served_toy.grpc_address, "--model", "toy-streaming" if streaming else "toy")
    plain = run(*speech, *where, *streaming)
    assert "hello world" in plain[1]
    assert run(*speech, *where, *streaming, "--pcm", "--shared-memory", "system") == plain
    code, _, err = run(*speech, *where, "--shared-memory", "disk")
    assert (code, "'system', 'cuda' or 'cuda:N', got 'disk'" in err) == (2, True)


def test_one_file_prints_its_text_alone(url: str, tones: list[Path]):
    assert run(tones[3], "--url", url) == (0, "4 2.0\n", "")


def test_several_files_print_path_and_text_in_their_order(url: str, tones: list[Path]):
    code, out, err = run(*tones, "--url", url, "--concurrency", "3")
    assert out.splitlines() == [f"{path}\t{n} {n / 2:.1f}" for n, path in enumerate(tones, start=1)]
    assert (code, err) == (0, "")


def test_a_bad_file_fails_alone_and_the_command_with_it(url: str, tones: list[Path], tmp_path: Path):
    bad = tmp_path / "absent.wav"
    code, out, err = run(tones[0], bad, tones[1], "--url", url)
    assert code == 1
    assert out == f"{tones[0]}\t1 0.5\n{tones[1]}\t2 1.0\n"
    assert err.startswith("error: ")
    assert str(bad) in err
    assert err.count("\n") == 1


def test_json_has_a_line_for_each_file_also_for_a_bad_one(url: str, tones: list[Path], tmp_path: Path):
    bad = tmp_path / "absent.wav"
    code, out, err = run(bad, tones[1], "--url", url, "--json")
    first, second = lines(out)
    assert (code, err) == (1, "")
    assert first["path"] == str(bad)
    assert "absent.wav" in str(first["error"])
    assert second == {"path": str(tones[1]), "text": "2 1.0"}


def test_timestamps_add_words_with_their_times(url: str, tones: list[Path]):
    assert run(tones[0], "--url", url, "--timestamps")[1].splitlines() == ["1 0.5", "     0.25     0.50  1"]
    (record,) = lines(run(tones[0], "--url", url, "--timestamps", "--json")[1])
    assert record["words"] == [{"text": "1", "start_s": 0.25, "end_s": 0.5, "confidence": 0.75}]
    assert (record["text"], record["tokens"], record["confidence"]) == ("1 0.5", [], 0.75)


def test_timestamps_from_a_model_that_gives_none_are_an_error(url: str, tones: list[Path]):
    code, out, err = run(tones[0], "--url", url, "--streaming", "--timestamps")
    assert (code, out) == (1, "")
    assert "'running' gives no details" in err


def test_a_stream_goes_up_in_chunks_and_shows_its_partials_as_json(url: str, tmp_path: Path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(4000), 16000)
    code, out, _ = run(path, "--url", url, "--streaming", "--chunk-ms", "100", "--json")
    assert code == 0
    assert lines(out) == [
        {"path": str(path), "text": "1 1600 of 1", "partial": True},
        {"path": str(path), "text": "2 3200 of 1", "partial": True},
        {"path": str(path), "text": "3 4000 of 1"},
    ]
    assert run(path, "--url", url, "--streaming", "--chunk-ms", "100") == (0, "3 4000 of 1\n", "")


def test_an_unreachable_server_is_one_line_and_exit_code_1(tones: list[Path]):
    code, out, err = run(tones[0], "--url", "localhost:1")
    assert (code, out) == (1, "")
    assert err.startswith("error: grpc://localhost:1: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_a_bundle_transcribes_in_process(toy_bundle: Path, speech: list[Path], streaming: bool):
    options = ["--streaming"] if streaming else []
    code, out, err = run(*speech, "--model", toy_bundle, *options)
    texts = ["hello world", "seven 7", "tritone"]
    assert out.splitlines() == [f"{path}\t{text}" for path, text in zip(speech, texts, strict=True)]
    assert (code, err) == (0, "")


@pytest.mark.parametrize("streaming", [(), ("--streaming",)])
def test_texts_are_written_for_people(toy_bundle: Path, speech: list[Path], streaming: tuple[str, ...]):
    options = ("--punctuate", "--capitals", "Tritone", "--profanity", "mask", "--profane-words", "World")
    code, out, err = run("--model", toy_bundle, *options, *streaming, speech[0], speech[2])
    assert (code, [line.partition("\t")[2] for line in out.splitlines()]) == (0, ["Hello w****.", "Tritone."]), err


def test_folders_and_manifests_stand_for_the_files_in_them(toy_bundle: Path, speech: list[Path], tmp_path: Path):
    texts = dict(zip(speech, ("hello world", "seven 7", "tritone"), strict=True))
    (tmp_path / "notes.txt").write_text("no audio", encoding="utf-8")
    rows = [{"audio_filepath": path.name, "duration": 1.0} for path in speech]
    (tmp_path / "nemo.json").write_text("\n".join(map(json.dumps, rows[:2])), encoding="utf-8")
    (tmp_path / "rest.json").write_text(
        json.dumps([{"files": [{"fname": speech[2].name, "speed": 1}]}]), encoding="utf-8"
    )
    sets: list[tuple[list[str | Path], list[Path]]] = [
        ([tmp_path], sorted(speech)),
        (["--data-dir", tmp_path], sorted(speech)),
        (["--manifest", f"{tmp_path}/rest.json,{tmp_path}/nemo.json"], [speech[2], *speech[:2]]),
        (["--manifest", tmp_path / "rest.json", "--data-dir", tmp_path], [speech[2]]),
    ]
    for arguments, paths in sets:
        code, out, err = run(*arguments, "--model", toy_bundle)
        assert (code, err) == (0, "")
        assert out.splitlines() == [f"{path}\t{texts[path]}" for path in paths]


def test_lists_that_say_nothing_or_too_much_are_told_before_anything_runs(tmp_path: Path):
    for arguments, complaint in (
        ([], "name what to transcribe"),
        (["a.wav", "--manifest", "m"], "stand in place of files"),
        (["a.wav", "--data-dir", "d"], "stand in place of files"),
    ):
        code, out, err = run(*arguments, "--url", "localhost:1")
        assert (code, out) == (2, "")
        assert complaint in " ".join(err.replace("│", " ").split())
    (tmp_path / "m.json").write_text('{"path": "/a.wav"}', encoding="utf-8")
    for paths, complaint in (
        ([tmp_path], "no audio in the folder"),
        (["--manifest", tmp_path / "gone.json"], "cannot read"),
        (["--manifest", tmp_path / "m.json", "--data-dir", tmp_path], "m.json:1: the audio is an absolute path"),
    ):
        code, out, err = run(*paths, "--url", "localhost:1")
        assert (code, out) == (1, "")
        assert complaint in err


@pytest.mark.parametrize("streaming", [False, True])
def test_a_server_says_the_same_as_the_bundle_in_process(
    toy_bundle: Path, served_toy: TritonServer, speech: list[Path], streaming: bool
):
    options = [*speech, "--json", "--timestamps", *(["--streaming"] if streaming else [])]
    here, there = run(*options, "--model", toy_bundle), run(*options, "--url", served_toy.grpc_address)
    assert here[0] == there[0] == 0
    final = [[record for record in lines(out) if not record.get("partial")] for _, out, _ in (here, there)]
    assert final[0] == final[1]
    assert [record["text"] for record in final[0]] == ["hello world", "seven 7", "tritone"]


def test_a_bad_file_among_good_ones_fails_alone_in_process_too(toy_bundle: Path, speech: list[Path], tmp_path: Path):
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    for options in ([], ["--streaming"]):
        code, out, err = run(speech[0], tmp_path / "bad.wav", speech[1], "--model", toy_bundle, *options)
        assert code == 1
        assert [line.split("\t")[1] for line in out.splitlines()] == ["hello world", "seven 7"]
        assert "bad.wav" in err


@pytest.fixture
def call(tmp_path: Path) -> Path:
    """Two people on two channels, the second of whom begins while the first talks."""
    first, second = toy_waveform("hello world"), toy_waveform("seven 7")
    late = SAMPLE_RATE // 5
    audio = np.zeros((max(len(first), late + len(second)), 2), np.float32)
    audio[: len(first), 0], audio[late : late + len(second), 1] = first, second
    path = tmp_path / "call.wav"
    soundfile.write(path, audio, SAMPLE_RATE, subtype="FLOAT")
    return path


def test_each_channel_is_a_speaker_in_every_format(toy_bundle: Path, speech: list[Path], call: Path, tmp_path: Path):
    each = (call, "--model", toy_bundle, "--channels", "each")
    code, out, err = run(*each)
    assert (code, sorted(out.splitlines()), err) == (0, ["channel1: hello world", "channel2: seven 7"], "")
    found = json.loads(run(*each, "--format", "json")[1])
    starts = [word["start_s"] for word in found["words"]]
    assert starts == sorted(starts)
    assert {word["text"]: word["speaker"] for word in found["words"]} == {
        **{"hello": "channel1", "world": "channel1", "seven": "channel2", "7": "channel2"}
    }
    times = {
        channel: [
            json.loads(run(call, "--model", toy_bundle, "--channels", channel, "--format", "json")[1])["words"][0][key]
            for key in ("start_s", "end_s")
        ]
        for channel in ("1", "2")
    }
    assert times["2"][0] > times["1"][0]
    assert [[word["start_s"], word["end_s"]] for word in found["words"] if word["text"] in ("hello", "seven")] == [
        *times.values()
    ]
    vtt = run(*each, "--format", "vtt")[1]
    assert all(f"<v channel{number}>{text}</v>" in vtt for number, text in ((1, "hello world"), (2, "seven 7")))
    # Among other files, some of one channel and one that is none, with a journal and again from it.
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    many = (speech[2], tmp_path / "bad.wav", call, "--model", toy_bundle, "--channels", "each")
    plain = run(*many)
    assert plain[0] == 1
    assert [line.split("\t")[1] for line in plain[1].splitlines()] == ["channel1: tritone", *out.splitlines()]
    assert plain[2].count("bad.wav") == 1
    for _ in range(2):
        assert run(*many, "--journal", tmp_path / "journal") == plain


def test_a_server_recognises_each_channel_as_the_bundle_does(toy_bundle: Path, served_toy: TritonServer, call: Path):
    here, there = (
        run(call, "--channels", "each", "--timestamps", *where)
        for where in (("--model", toy_bundle), ("--url", served_toy.grpc_address, "--model", "toy"))
    )
    assert here == there


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "--url"),
        (["--url", "a", "--device", "cpu"], "--device goes with a model that runs here"),
        (["--model", "b", "--model", "m"], "--model is given twice"),
        (["--model", "b", "--realtime"], "--realtime goes with --streaming"),
        (["--url", "a", "--reconnect"], "--reconnect goes with --streaming"),
        (["--model", "b", "--streaming", "--reconnect"], "--reconnect goes with --url"),
        (["--model", "b", "--channels", "0"], "--channels is mixed, each or the number of one"),
        (["--model", "b", "--channels", "each", "--nbest", "2"], "for whole files and one reading"),
        (["--model", "b", "--channels", "each", "--speakers"], "does not go with --ray or with labels"),
        (["--url", "a", "--channels", "each", "s3://b/a.wav"], "copy s3://b/a.wav to a file first"),
        (["--url", "a:b"], "port must be a number"),
        (["--url", "http://a", "--protocol", "grpc"], "speaks http"),
        (["--url", "a", "--timeout-s", "0"], "timeout_s must be positive"),
        (["--model", "b", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(options: list[str], complaint: str):
    code, out, err = run("a.wav", *options)
    assert (code, out) == (2, "")
    assert complaint in " ".join(err.replace("│", "").split())


def test_an_unknown_device_is_wrong_usage(toy_bundle: Path, speech: list[Path]):
    for options in ([], ["--streaming"]):
        code, out, err = run(speech[0], "--model", toy_bundle, "--device", "tpu", *options)
        assert (code, out) == (2, "")
        assert "tpu" in err


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_ctrl_c_ends_a_waiting_command_with_130_and_without_a_traceback(tmp_path: Path, protocol: str):
    for seconds in (0, 30):
        soundfile.write(tmp_path / f"{seconds}.wav", np.full(16000, float(seconds)), 16000, subtype="FLOAT")
    with toy_server(tmp_path / "repository", "slow") as server:
        address = server.grpc_address if protocol == "grpc" else server.http_address
        command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "transcribe", "--concurrency", "1"]
        command += [str(tmp_path / "0.wav"), str(tmp_path / "30.wav"), "--url", f"{protocol}://{address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline().endswith(b"\tdone\n")
            waiting.send_signal(signal.SIGINT)
            _, err = waiting.communicate(timeout=20)
        assert (waiting.returncode, err) == (130, b"")


def test_the_limit_on_a_files_length_can_be_raised_here(toy_bundle: Path, speech: list[Path]):
    code, _, err = run(speech[0], "--model", toy_bundle, "--max-audio-s", 0.1)
    assert (code, "the limit is 0.1 s" in err, "max_audio_s" in err) == (1, True, True)
    assert run(speech[0], "--model", toy_bundle, "--max-audio-s", 900)[:2] == (0, "hello world\n")


def test_a_wav_scp_is_a_list_of_recordings(toy_bundle: Path, speech: list[Path], tmp_path: Path):
    listed = tmp_path / "wav.scp"
    listed.write_text(f"one {speech[0].name}\ntwo {speech[2]}\n", encoding="utf-8")
    code, out, _ = run("--model", toy_bundle, "--wavscp", listed)
    assert (code, out) == (0, "one hello world\ntwo tritone\n")  # a file `text` of Kaldi
    code, out, _ = run("--model", toy_bundle, "--wavscp", listed, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["id"], each["path"], each["text"]) for each in found] == [
        ("one", str(speech[0]), "hello world"),
        ("two", str(speech[2]), "tritone"),
    ]
    for wrong, complaint in (
        ([listed], f"{listed} is a list of recordings and no audio; give it as --wavscp {listed}"),
        (["out.json"], "there is no out.json. A list of recordings is given as --manifest FILE; --json takes none"),
        (["--wavscp", listed, "--manifest", "a.json"], "give either --wavscp or --manifest"),
        ([speech[0], "--wavscp", listed], "stand in place of files"),
    ):
        code, out, err = run("--model", toy_bundle, *wrong)
        assert (code, out) == (2, "")
        assert "".join(complaint.split()) in "".join(err.replace("│", "").split())


def test_a_journal_that_was_cut_off_is_gone_on_with_to_the_same_output(tmp_path: Path, toy_bundle: Path):
    for number in range(40):
        soundfile.write(
            tmp_path / f"{number:02d}.wav", np.random.default_rng(number).normal(0, 0.1, 3000 + 90 * number), 16000
        )
    (tmp_path / "07.wav").write_text("no audio", encoding="utf-8")
    arguments = [tmp_path, "--model", toy_bundle, "--details", "--timestamps"]
    whole = run(*arguments)
    journal = tmp_path / "journal"
    assert run(*arguments, "--journal", journal) == whole
    lines = journal.read_bytes().splitlines(keepends=True)
    before = b"".join(lines[:20])
    journal.write_bytes(before + lines[20][:9])  # killed while it wrote
    assert run(*arguments, "--journal", journal) == whole
    assert journal.read_bytes().startswith(before)
    assert len(journal.read_bytes().splitlines()) == len(lines) + 2  # another session, and the failed file again
    soundfile.write(tmp_path / "07.wav", np.random.default_rng(7).normal(0, 0.1, 3630), SAMPLE_RATE)
    code, _, err = run(*arguments, "--journal", journal)
    assert (code, "ids, paths or audio files have changed" in err) == (1, True)
    assert run(*arguments[:-1], "--journal", journal)[0] == 1
