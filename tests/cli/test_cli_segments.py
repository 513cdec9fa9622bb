"""`tritone segments` with silero's detector, in this process and served: all ways have the detector's segments."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tritone
from tritone.activity import SpeechActivity
from tritone.cli.main import app
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.formats import Turn, read_rttm
from tritone.server import TritonServer

CLIPS = [str(SHIPPED_CLIPS / f"clip-0{number}.flac") for number in (1, 2)]
OPTIONS = {"threshold": 0.6, "min_silence_s": 0.5}
FLAGS = ("--speech-threshold", "0.6", "--min-silence-s", "0.5")


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["segments", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def detector(silero_bundle: Path) -> tritone.Detector:
    return tritone.load(silero_bundle, threads=1)


@pytest.fixture(params=["bundle", "grpc", "http"])
def where(
    request: pytest.FixtureRequest, silero_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str | Path, ...]:
    if request.param == "bundle":
        return "--model", silero_bundle
    server: TritonServer = request.getfixturevalue("served_toy")
    monkeypatch.setenv("TRITONE_KEY", server.options.key)
    return "--url", server.grpc_address if request.param == "grpc" else f"http://{server.http_address}"


def found(detector: tritone.Detector, path: str, **options: float) -> list[tuple[float, float]]:
    return [(round(each.start_s, 3), round(each.end_s, 3)) for each in detector.segments(path, **options)]


def test_segments_are_those_of_the_detector_wherever_it_runs(
    where: tuple[str | Path, ...], detector: tritone.Detector
) -> None:
    code, out, err = run(*CLIPS, *where, *FLAGS)
    lines = [f"{path}\t{a:.3f}\t{b:.3f}\n" for path in CLIPS for a, b in found(detector, path, **OPTIONS)]
    assert (code, out, err) == (0, "".join(lines), "")
    code, out, _ = run(CLIPS[0], *where)
    assert (code, out) == (0, "".join(f"{a:.3f}\t{b:.3f}\n" for a, b in found(detector, CLIPS[0])))


def test_a_stream_writes_the_segments_that_it_ends(where: tuple[str | Path, ...], detector: tritone.Detector) -> None:
    wanted = []
    with detector.stream(options=OPTIONS) as stream:
        wanted += stream.accept(tritone.audio.read_audio(CLIPS[0], detector.sample_rate)).segments
        wanted += stream.finish().segments
    code, out, err = run(CLIPS[0], *where, *FLAGS, "--streaming", "--chunk-ms", "70", "--format", "rttm")
    assert (code, err) == (0, "")
    assert read_rttm(out) == [
        Turn("clip-01", round(each.start_s, 3), round(each.end_s, 3), "speech") for each in wanted
    ]
    code, out, _ = run(CLIPS[0], *where, *FLAGS, "--streaming", "--format", "json")
    assert (code, len(json.loads(out)["segments"])) == (0, len(wanted))


def test_each_recording_may_have_a_file(silero_bundle: Path, detector: tritone.Detector, tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text(f"one {CLIPS[0]}\nothers/two {CLIPS[1]}\n", encoding="utf-8")
    code, out, err = run(
        *(
            "--wavscp",
            tmp_path / "wav.scp",
            "--model",
            silero_bundle,
            "--format",
            "json",
            "--output",
            f"{tmp_path}/out/",
        )
    )
    assert (code, out, err) == (0, "", "")
    records = [
        json.loads((tmp_path / "out" / name).read_text(encoding="utf-8")) for name in ("one.json", "others/two.json")
    ]
    for path, record in zip(CLIPS, records, strict=True):
        assert SpeechActivity.from_dict(record) == detector.detect(path).get()


def test_a_bad_recording_fails_alone_and_the_command_with_it(silero_bundle: Path) -> None:
    code, out, err = run("absent.wav", CLIPS[0], "--model", silero_bundle, "--format", "rttm", "--streaming")
    assert code == 1
    assert err == "error: cannot read 'absent.wav': No such file or directory\n"
    assert out.startswith("SPEAKER clip-01 1 ")


def test_a_reference_scores_the_segments_in_place_of_writing_them(silero_bundle: Path, tmp_path: Path) -> None:
    truth, found = tmp_path / "truth.rttm", tmp_path / "found.rttm"
    command = (*CLIPS, "--model", silero_bundle)
    assert run(*command, "--format", "rttm", "--output", truth) == (0, "", "")
    code, out, err = run(*command, "--reference", truth)
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}
    for name in ("clip-01", "clip-02", "all"):
        assert rows[name][5:] == ["0", "0", "0", "0"]  # but for the rounding to milliseconds
    code, out, _ = run(*command, "--reference", truth, "--padding-s", "0", "--output", found, "--collar-s", "0.01")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}
    assert (code, rows["all"][6]) == (0, "30")  # ms: the padding, but where the audio ends
    assert len(found.read_text(encoding="utf-8").splitlines()) == len(truth.read_text(encoding="utf-8").splitlines())
    code, _, err = run("absent.wav", "--model", silero_bundle, "--reference", truth)
    assert code == 1
    assert "it has clip-01, clip-02, and the recordings are called absent" in err
    assert "--collar-s goes with --reference" in run(*command, "--collar-s", "1")[2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--speech-threshold", "3"), "threshold must be 0.01 to 1, got 3.0"),
        (("--streaming", "--min-speech-s", "1"), "--min-speech-s is for whole recordings"),
        (("--realtime",), "--realtime goes with --streaming"),
        (("--format", "textgrid"), "holds one recording and there are 2: add --output DIR"),
        (("--format", "srt"), "'srt' is not one of 'text', 'json'"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_read(
    arguments: tuple[str, ...], complaint: str, silero_bundle: Path
) -> None:
    code, _, err = run("absent.wav", "none.wav", "--model", silero_bundle, *arguments)
    assert code == 2
    assert complaint in " ".join(err.split())


def test_a_model_that_detects_nothing_is_named(toy_bundle: Path) -> None:
    code, _, err = run(CLIPS[0], "--model", toy_bundle)
    assert code == 1
    assert "detects no voice activity" in err
