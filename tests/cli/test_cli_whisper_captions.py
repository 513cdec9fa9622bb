"""Words of a Whisper model are measured for captions and whoever asks for words, in process and by the gateway."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

import tritone
from families.whisper_models import random_model, speech, write_ctranslate2
from tritone.cli.main import app
from tritone.families.whisper.export import export_whisper
from tritone.gateway.ask import search_of
from tritone.gateway.protocols.openai.request import TranscriptionRequest
from tritone.pipelines.whisper.options import DecodingOptions, read_decoding
from tritone.transcript import Span

DECODING = ("--language=de", "--temperatures=0", "--no-speech-threshold=none", "--no-previous-text")
CLOCK = re.compile(r"(\d+):(\d+):(\d+)[.,](\d+) --> (\d+):(\d+):(\d+)[.,](\d+)")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    checkpoint = write_ctranslate2(folder / "model", random_model())
    soundfile.write(folder / "a.wav", speech(2.7, 9), 16000)
    return export_whisper(checkpoint=checkpoint, output=folder / "bundle").bundle.path


def measured(bundle: Path, recording: Path) -> Sequence[Span]:
    """The words of the recording with the times that the model has, asked for in this process."""
    options = {"language": "de", "temperature": [0], "no_speech_threshold": None, "previous_text": False}
    model = tritone.load(bundle, threads=1, word_times=True, **options)
    words: Sequence[Span] = model.transcribe(recording).get().words
    return words


@pytest.mark.parametrize("format", ["srt", "vtt", "ctm"])
def test_captions_have_the_times_of_words_without_being_asked(bundle: Path, format: str) -> None:
    recording = bundle.parent / "a.wav"
    asked = ["transcribe", "--model", str(bundle), str(recording), *DECODING, "--format", format]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    words = measured(bundle, recording)
    assert len(words) >= 3
    if format == "ctm":
        assert len(done.stdout.splitlines()) >= len(words)
        return
    times = [[int(each) for each in match] for match in CLOCK.findall(done.stdout)]
    starts = {1000 * (3600 * h + 60 * m + s) + ms for h, m, s, ms, *_ in times}
    assert starts <= {round(1000 * each.start_s) for each in words}, "a cue begins where a word does"


@pytest.mark.parametrize(
    ("format", "asked"), [("srt", "auto"), ("vtt", "auto"), ("diarized_json", True), ("json", False)]
)
def test_the_gateway_asks_for_times_of_words_where_they_are_needed(format: str, asked: str | bool) -> None:
    from tritone.client.models import ModelInfo

    info = ModelInfo(name="w", kind="offline", sample_rate=16000, has_prompt=True, has_word_times=True)
    found = TranscriptionRequest.read([("response_format", format)]).ask(info)
    assert search_of(found, info) == {"word_times": asked}


@pytest.mark.parametrize("asked", ["--timestamps", "--word-times", "--timestamps --json", "--word-times --json"])
def test_whoever_asks_the_command_for_times_gets_those_of_words(bundle: Path, asked: str) -> None:
    recording = bundle.parent / "a.wav"
    given = ["transcribe", "--model", str(bundle), str(recording), *DECODING, *asked.split()]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    words = measured(bundle, recording)
    if "--json" in asked:
        found = [(each["text"], each["start_s"], each["end_s"]) for each in json.loads(done.stdout)["words"]]
        assert found == [(each.text, round(each.start_s, 3), round(each.end_s, 3)) for each in words]
    else:
        lines = [line for line in done.stdout.splitlines() if re.match(r" +\d+\.\d\d +\d+\.\d\d  ", line)]
        assert lines == [f"{each.start_s:9.2f} {each.end_s:8.2f}  {each.text}" for each in words]


@pytest.mark.parametrize("timed", [False, True])
def test_segments_end_with_the_recording_and_at_words_where_these_have_times(bundle: Path, timed: bool) -> None:
    recording = bundle.parent / "a.wav"
    model = tritone.load(
        bundle, threads=1, language="de", temperature=[0], no_speech_threshold=None, previous_text=False
    )
    found = model.transcribe(recording, options={"word_times": timed}).get()
    assert found.segments
    assert max(each.end_s for each in (*found.segments, *found.words)) <= found.audio_s == pytest.approx(2.7)
    if timed:
        starts, ends = {each.start_s for each in found.words}, {each.end_s for each in found.words}
        assert {each.start_s for each in found.segments} <= starts
        assert {each.end_s for each in found.segments} <= ends
    else:
        assert found.words == ()


def test_a_served_model_has_the_same_options(bundle: Path, tmp_path: Path) -> None:
    words = ["--output", str(tmp_path / "repository"), "--name", "w", "--overcommit", "--beam", "3", *DECODING]
    done = CliRunner().invoke(app, ["build", str(bundle), *words])
    assert done.exit_code == 0, done.output
    config = (tmp_path / "repository" / "w" / "config.pbtxt").read_text(encoding="utf-8")
    settings = text_format.Parse(config, model_config_pb2.ModelConfig()).parameters
    assert read_decoding(json.dumps(json.loads(settings["served"].string_value)["decoding"])) == DecodingOptions(
        language="de", beam=3, temperature=(0.0,), no_speech_threshold=None, previous_text=False
    )
    refused = CliRunner().invoke(app, ["build", "demo-asr", "--task", "translate", "--output", str(tmp_path / "other")])
    assert refused.exit_code == 1
    assert "--task is for Whisper models" in refused.output


def test_the_language_of_recordings_is_printed_and_listed(bundle: Path, tmp_path: Path) -> None:
    recording, broken = bundle.parent / "a.wav", tmp_path / "b.wav"
    broken.write_bytes(b"nothing that is audio")
    expected = tritone.load(bundle, threads=1).identify(recording).get()
    asked = ["language", "--model", str(bundle), str(recording)]
    done = CliRunner().invoke(app, [*asked, str(broken), "--json", "--lists", str(tmp_path / "lists")])
    assert (done.exit_code, str(broken) in done.stderr) == (1, True)
    told = json.loads(done.stdout)
    assert (told["recording"], told["language"]) == (str(recording), expected.language)
    assert told["languages"] == {code: round(share, 4) for code, share in expected.languages}
    [written] = (tmp_path / "lists").iterdir()
    assert written.name == f"{expected.language}.json"
    again = CliRunner().invoke(app, ["language", "--model", str(bundle), "--manifest", str(written)])
    assert (again.exit_code, again.stdout.split("\t")[1].split()[0]) == (0, expected.language)
    other = expected.languages[1][0]
    one = CliRunner().invoke(app, [*asked, "--allowed-languages", other])
    assert one.stdout.strip() == f"{recording}\t{other} 1.00"


@pytest.mark.parametrize("allowed", ["xx", "../en", "e" * 99, ",".join(f"a{at}" for at in range(999))])
def test_languages_that_no_model_has_are_wrong_usage(bundle: Path, allowed: str) -> None:
    asked = ["language", "--model", str(bundle), str(bundle.parent / "a.wav"), "--allowed-languages", allowed]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code in (1, 2)
    assert "languages" in done.output
    assert "Traceback" not in done.output
