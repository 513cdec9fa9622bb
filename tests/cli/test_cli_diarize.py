"""`tritone diarize`, and `tritone score` of turns, with the toy speaker model, whose voices are known."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import tritone
from toy_segmentation import write_toy_segmentation
from toy_speaker import SAMPLE_RATE, toy_voice, write_toy_speaker
from tritone.audio import read_audio
from tritone.cli.main import app
from tritone.cli.shared.speaker_labels import SpeakerLabels
from tritone.cli.shared.transcript_printer import TranscriptPrinter
from tritone.cli.shared.where import Where
from tritone.corpus.clips import read_clips
from tritone.formats.rttm import Turn, read_rttm, write_rttm
from tritone.kinds.diarization.model import SpeakerDetector
from tritone.result import TranscriptResult
from tritone.transcript import Span, Transcript

VOICES = {"anna": [0, 1, 1], "ben": [0, 0, 0, 1, 1]}  # shares of the toy's levels
PARTS = [(0.5, 2.5, "anna"), (3.1, 5.1, "ben"), (5.7, 8.2, "anna")]
TRUTH = [Turn("meeting", *part) for part in PARTS]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, who really speaks in it, and the toy model."""
    folder = tmp_path_factory.mktemp("meeting")
    audio = np.zeros(round(8.7 * SAMPLE_RATE), np.float32)
    for number, (start_s, end_s, name) in enumerate(PARTS):
        first, behind = round(start_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE)
        audio[first:behind] = toy_voice(VOICES[name], behind - first, seed=number)
    soundfile.write(folder / "meeting.wav", audio, SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(folder / "ben.wav", toy_voice(VOICES["ben"]), SAMPLE_RATE, subtype="FLOAT")
    (folder / "truth.rttm").write_text(write_rttm(TRUTH), encoding="utf-8")
    write_toy_speaker(folder / "toy")
    write_toy_segmentation(folder / "segmentation")
    return folder


def diarize(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    return run("diarize", folder / "meeting.wav", "--model", folder / "toy", *arguments)


def labels(turns: Sequence[Turn]) -> list[str]:
    return [each.speaker for each in turns]


def test_a_segmentation_network_finds_speech_and_speakers(folder: Path) -> None:
    given = ("--segmentation", folder / "segmentation", "--reference", folder / "truth.rttm", "--format", "json")
    code, out, err = diarize(folder, *given)
    found = json.loads(out)
    assert (code, "speech is found by its level" in err) == (0, False)
    assert [each["speaker"] for each in found["speakers"]] == ["speaker1", "speaker2"]
    assert found["errors"]["der"] < 0.1  # a window of a second has both where they change
    for option in (("--vad", "x"), ("--speech", folder / "truth.rttm"), ("--streaming",)):
        code, _, err = diarize(folder, "--segmentation", folder / "segmentation", *option)
        assert (code, "--segmentation finds speech itself" in err) == (2, True)
    code, _, err = diarize(folder, "--segmentation", folder / "toy")
    assert (code, "a bundle of `tritone export pyannote`" in err) == (1, True)


def test_turns_are_written_as_text_rttm_and_json(folder: Path, tmp_path: Path) -> None:
    code, out, err = diarize(folder)
    assert code == 0
    assert [line.split("\t")[2] for line in out.splitlines()] == ["speaker1", "speaker2", "speaker1"]
    assert err == "speech is found by its level; --vad is better where there is noise"
    code, out, _ = diarize(folder, "--format", "rttm", "--output", tmp_path / "who.rttm")
    assert (code, out) == (0, "")
    turns = read_rttm((tmp_path / "who.rttm").read_text(encoding="utf-8"))
    assert labels(turns) == ["speaker1", "speaker2", "speaker1"]
    assert {each.recording for each in turns} == {"meeting"}
    assert [each.start_s for each in turns] == pytest.approx([start_s - 0.05 for start_s, _, _ in PARTS], abs=0.03)
    code, out, _ = diarize(folder, "--format", "json")
    fields = json.loads(out)
    assert [each["speaker"] for each in fields["speakers"]] == ["speaker1", "speaker2"]
    assert len(fields["turns"]) == 3
    assert fields["audio_s"] == 8.7


def test_error_rates_are_printed_for_a_reference(folder: Path) -> None:
    code, out, err = diarize(folder, "--speech", folder / "truth.rttm", "--reference", folder / "truth.rttm")
    assert code == 0
    assert [line.split("\t")[2] for line in out.splitlines()] == ["speaker1", "speaker2", "speaker1"]
    assert "meeting 6.5 0.00 0.00 0.00 0.00 0.00" in err
    assert "Collar 0 s, overlapped speech is scored." in err
    code, out, err = diarize(
        folder, "--num-speakers", 1, "--reference", folder / "truth.rttm", "--collar-s", 0.25, "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["errors"]["confusion"] == pytest.approx(1.5 / 5.0)
    assert "Collar 0.25 s before and after" in err


def test_enrolled_speakers_have_their_names(folder: Path, tmp_path: Path) -> None:
    voices = tmp_path / "voices"
    assert run("enroll", "ben", folder / "ben.wav", "--store", voices, "--model", folder / "toy")[0] == 0
    code, out, _ = diarize(folder, "--store", voices, "--threshold", 0.8)
    assert code == 0
    assert [line.split("\t")[2] for line in out.splitlines()] == ["speaker1", "ben", "speaker1"]
    code, out, _ = diarize(folder, "--store", voices, "--threshold", 0.8, "--streaming", "--format", "rttm")
    assert code == 0
    assert labels(read_rttm(out)) == ["speaker1", "ben", "speaker1"]
    code, _, err = diarize(folder, "--store", voices)
    assert code == 2
    assert "--store needs --threshold: this model does not come with one" in err
    assert run("enroll", "ben the 2nd", folder / "ben.wav", "--store", voices, "--model", folder / "toy")[0] == 0
    code, _, err = diarize(folder, "--store", voices, "--threshold", 0.8, "--format", "rttm")
    assert code == 1
    assert "'ben the 2nd' has a space, which separates the fields of RTTM" in err


def test_streams_label_as_they_go_on(folder: Path) -> None:
    for format in ("text", "json"):
        code, out, err = diarize(
            folder, "--streaming", "--format", format, "--reference", folder / "truth.rttm", "--collar-s", 0.25
        )
        assert code == 0
        assert "meeting 5.0 0.00 0.00 0.00 0.00 0.00" in err
        assert out.count("speaker1") == 2


def test_a_recording_that_fails_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no audio")
    code, out, err = run(
        "diarize", tmp_path / "bad.wav", folder / "meeting.wav", "--model", folder / "toy", "--format", "rttm"
    )
    assert code == 1
    assert f"error: {tmp_path / 'bad.wav'}" in err
    assert len(read_rttm(out)) == 3
    code, out, err = run("diarize", folder / "ben.wav", "--model", folder / "toy", "--reference", folder / "truth.rttm")
    assert (code, out) == (1, "")
    assert "truth.rttm has no turns of the recording 'ben'; it has meeting" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--vad", "x", "--speech", "y"], "--speech stands in place of --vad"),
        (["--threshold", "0.5"], "--threshold goes with --store"),
        (["--streaming", "--num-speakers", "2"], "are for whole recordings: --streaming labels as it goes on"),
        (["--streaming", "--speech", "x"], "--speech is for whole recordings"),
        (["--collar-s", "0.5"], "--collar-s and --skip-overlap go with --reference"),
        (["--window-s", "1", "--shift-s", "2"], "shift_s (2) is more than window_s (1)"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(folder: Path, arguments: list[str], complaint: str) -> None:
    code, out, err = diarize(folder, *arguments)
    assert out == ""
    assert code in (1, 2)
    assert complaint in err


def test_turns_that_others_made_are_scored(folder: Path, tmp_path: Path) -> None:
    guess = tmp_path / "guess.rttm"
    guess.write_text(write_rttm([Turn("meeting", 0.5, 2.5, "x"), Turn("meeting", 3.1, 8.2, "y")]), encoding="utf-8")
    code, out, err = run("score", "--reference", folder / "truth.rttm", "--hypothesis", guess)
    assert (code, err) == (0, "")
    assert "meeting" in out
    code, out, _ = run("score", "--reference", folder / "truth.rttm", "--hypothesis", guess, "--json")
    fields = json.loads(out.splitlines()[0])
    assert fields["recording"] == "meeting"
    assert fields["der"] == pytest.approx((0.6 + 2.5) / 6.5)
    code, _, err = run("score", "--hypothesis", guess)
    assert code == 2
    assert "--hypothesis and --reference go together" in err
    guess.write_text("SPEAKER meeting\n", encoding="utf-8")
    code, _, err = run("score", "--reference", folder / "truth.rttm", "--hypothesis", guess)
    assert code == 1
    assert "guess.rttm:1: expected 'SPEAKER recording channel start duration" in err


class Known:
    """A system that knows what is said in the recording: a word in the middle of each part."""

    name, mode, concurrency, batch = "known", "offline", 1, 1

    def describe(self) -> dict[str, str]:
        return {"kind": "known"}

    def run(self, paths: Iterable[str], on_partial: object = None) -> Iterator[TranscriptResult]:
        words = tuple(Span(name, start_s + 0.2, end_s - 0.2, 1.0) for start_s, end_s, name in PARTS)
        for index, path in enumerate(paths):
            yield TranscriptResult(index=index, source=path, value=Transcript("anna ben anna", words=words))


@pytest.mark.parametrize("segmentation", [None, "segmentation"])
def test_words_of_transcripts_get_speakers_whatever_transcribes(
    folder: Path, capsys: pytest.CaptureFixture[str], segmentation: str | None
) -> None:
    network = None if segmentation is None else str(folder / segmentation)
    options = SpeakerLabels(speakers=True, speaker_model=str(folder / "toy"), segmentation=network)
    with options.added_to(Known(), Where(model="unused")) as system:
        assert system.describe()["speakers_model"] == "speaker"
        results = list(system.run([str(folder / "meeting.wav"), str(folder / "missing.wav"), "s3://bucket/a.wav"]))
    assert [word.speaker for word in results[0].words] == ["speaker1", "speaker2", "speaker1"]
    assert "missing.wav" in str(results[1].error)
    assert "--speakers reads files of this machine" in str(results[2].error)
    for as_json in (False, True):
        TranscriptPrinter(num_files=1, as_json=as_json, timestamps=False).show(results[0])
    *lines, fields = capsys.readouterr().out.splitlines()
    assert lines == ["speaker1: anna", "speaker2: ben", "speaker1: anna"]
    assert [word["speaker"] for word in json.loads(fields)["words"]] == ["speaker1", "speaker2", "speaker1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--num-speakers", "2"], "--num-speakers goes with --speakers"),
        (["--speakers", "--speaker-threshold", "0.5"], "--speaker-threshold goes with --store"),
        (["--speakers", "--streaming", "--num-speakers", "2"], "are for whole files: --streaming labels as the audio"),
    ],
)
def test_options_of_speakers_are_checked_before_anything_is_transcribed(arguments: list[str], complaint: str) -> None:
    code, _, err = run("transcribe", "a.wav", "--model", "demo-asr", *arguments)
    assert code == 2
    assert complaint in err


def test_a_model_that_tells_speakers_apart_stands_in_place_of_clustering(
    diarization_bundle: Path, folder: Path, tmp_path: Path
) -> None:
    clip = next(iter(read_clips())).path
    model = tritone.load_as(SpeakerDetector, diarization_bundle)
    code, out, err = run("diarize", clip, "--model", diarization_bundle, "--format", "json")
    assert (code, err) == (0, "")  # nobody asks for a detector
    found = json.loads(out)
    expected = model.diarize(clip).segments
    assert [(each["start_s"], each["speaker"]) for each in found["turns"]] == [
        (round(each.start_s, 3), each.speaker) for each in sorted(expected, key=lambda each: each.start_s)
    ]
    ends = [each["end_s"] for each in found["turns"]]
    assert any(end > after["start_s"] for end, after in zip(ends, found["turns"][1:], strict=False))  # they overlap
    code, out, _ = run("diarize", clip, "--model", diarization_bundle, "--streaming", "--format", "rttm")
    assert code == 0
    with model.stream() as stream:
        audio = read_audio(clip, 16000)
        played = [*stream.accept(audio).segments, *stream.finish().segments]
    assert sorted((round(each.start_s, 3), each.speaker) for each in read_rttm(out)) == sorted(
        (round(each.start_s, 3), each.speaker) for each in played
    )
    for arguments, complaint in (
        (["--vad", "vad"], "--vad: this model tells speakers apart itself"),
        (["--store", tmp_path], "--store: this model tells speakers apart itself"),
        (["--num-speakers", "2"], "leave options of clustering out"),
    ):
        code, _, err = run("diarize", clip, "--model", diarization_bundle, *arguments)
        assert code == 2
        assert complaint in err


def test_words_of_files_and_of_streams_get_its_speakers(diarization_bundle: Path) -> None:
    clip = next(iter(read_clips())).path
    of_model = ("--model", "demo-asr", "--speakers", "--speaker-model", diarization_bundle)
    code, out, _ = run("transcribe", clip, *of_model, "--timestamps", "--json")
    assert code == 0
    turns = tritone.load_as(SpeakerDetector, diarization_bundle).diarize(clip).segments
    words = json.loads(out)["words"]
    assert words
    for word in words:
        talking = {each.speaker for each in turns if each.start_s < word["end_s"] and each.end_s > word["start_s"]}
        assert word["speaker"] in talking
    code, out, _ = run("transcribe", clip, *of_model, "--streaming", "--timestamps", "--json")
    last = json.loads(out.splitlines()[-1])
    assert code == 0
    assert all(word["speaker"].startswith("speaker") for word in last["words"])
    code, out, _ = run("transcribe", clip, *of_model[:3], "--streaming", "--timestamps", "--json")  # by voices
    texts = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {word["speaker"] for each in texts for word in each.get("words", ())} == {"speaker1"}
    code, _, err = run("transcribe", clip, *of_model, "--num-speakers", "2")
    assert code == 2
    assert "this one tells speakers apart itself" in err
