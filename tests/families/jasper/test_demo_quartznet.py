"""The trained QuartzNet of the demo: from its checkpoint to a bundle that writes what is said."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tritone
from tritone.cli.main import app
from tritone.corpus.clips import read_clips
from tritone.evaluate.score import count_errors, pool

TRAINED = Path(__file__).resolve().parents[3] / "training/demo-quartznet"
MAX_WER = 0.15  # of the shipped clips, whose texts are in no training part


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("quartznet") / "demo-quartznet"
    files = ["--checkpoint", str(TRAINED / "quartznet.pt"), "--config", str(TRAINED / "quartznet.yaml")]
    done = CliRunner().invoke(app, ["export", "jasper", *files, "--output", str(output)])
    assert done.exit_code == 0, done.output
    return output


def test_the_trained_quartznet_writes_what_the_clips_say(bundle: Path) -> None:
    recognizer = tritone.load(bundle)
    clips = read_clips()
    texts = [recognizer.transcribe(clip.path).text for clip in clips]
    total = pool([count_errors(clip.reference.split(), text.split()) for clip, text in zip(clips, texts, strict=True)])
    assert total.rate <= MAX_WER, texts
