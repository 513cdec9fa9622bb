"""examples/handwriting: the committed graph is what its card says, and a server answers images with letters."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from serving import quiet_options
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.families.convert.calls import InputFiles
from tritone.kinds.generic.part import GenericPart
from tritone.runtime import open_graph
from tritone.server import TritonServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "handwriting"
GRAPH = EXAMPLE / "handwriting.onnx"
WORD = "TRITONE"


def run(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of a word, in a font that training did not see."""
    folder = tmp_path_factory.mktemp("letters")
    subprocess.run([sys.executable, EXAMPLE / "glyphs.py", WORD, "--output", folder], check=True, timeout=300)
    return folder


def test_the_graph_is_small_and_reads_a_word(letters: Path) -> None:
    assert GRAPH.stat().st_size <= 300_000
    graph = open_graph(GRAPH)
    assert graph.inputs["image"].shape == (None, 128, 128, 3)
    [call] = InputFiles(paths=[letters], rows=len(WORD)).calls(graph.inputs)
    labels = (EXAMPLE / "labels.txt").read_text(encoding="utf-8").split()
    assert len(labels) == 26
    [logits] = graph(call, ["logits"])
    assert "".join(labels[index] for index in logits.argmax(axis=1)) == WORD
    alone = np.concatenate([graph({"image": row[None]}, ["logits"])[0] for row in call["image"]])
    np.testing.assert_allclose(alone, logits, atol=1e-4)


@pytest.mark.slow
def test_a_server_answers_images_with_letters(letters: Path, tmp_path: Path) -> None:
    bundle, repository = tmp_path / "handwriting", tmp_path / "models"
    run("export", "onnx", GRAPH, "--labels", EXAMPLE / "labels.txt", "--axes", "nhwc", "--output", bundle)
    [image] = Bundle.open(bundle).manifest.part(GenericPart).inputs
    assert (image.dims, image.format) == ((128, 128, 3), "nhwc")
    run("build", bundle, "--output", repository, "--no-trial")
    with TritonServer(repository, quiet_options()) as server:
        images = sorted(letters.glob("*.png"))
        command = [sys.executable, str(EXAMPLE / "ask.py"), *map(str, images), "--url", server.http_address]
        asked = subprocess.run(command, check=True, timeout=300, capture_output=True, encoding="utf-8")
    answers = [line.split(": ")[1].split()[0] for line in asked.stdout.splitlines()]
    assert "".join(answers) == WORD
