"""examples/ocr: its commands, and the texts of the picture that it draws, from a real server."""

import importlib.util
import io
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tritone
from readmes import blocks, followed
from serving import quiet_options
from shared import Shared
from tritone.client import Client
from tritone.errors import TritoneError
from tritone.server import TritonServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr"
NEEDED = ("rapidocr_onnxruntime", "cv2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}; make test-all fetches them"
    ),
]


@pytest.fixture(scope="module")
def example(shared: Shared) -> Path:
    return shared("ocr", partial(followed, EXAMPLE))


@pytest.fixture(scope="module")
def server(example: Path) -> Iterator[TritonServer]:
    with TritonServer(example / "repo", quiet_options()) as running:
        yield running


def drawn() -> list[str]:
    """The lines of the picture, from top to bottom."""
    spec = importlib.util.spec_from_file_location("draw", EXAMPLE / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [text for text, *_ in module.LINES]


def letters(texts: list[str]) -> set[str]:
    """Texts without spaces, which the recogniser drops where a processor rounds otherwise."""
    return {text.replace(" ", "") for text in texts}


def test_a_server_reads_the_picture(server: TritonServer, example: Path) -> None:
    with Client(server.grpc_address) as client:
        (found,) = client.infer([{"PICTURE": [(example / "poster.png").read_bytes()]}], "ocr")
    answer = found.get()
    texts = [text.decode() for text in answer["TEXT"]]
    assert letters(texts) == letters(drawn())
    assert answer["SCORE"].min() > 0.9
    box = answer["BOX"][texts.index("Entry: 7.50")]
    np.testing.assert_allclose(box, [[62, 260], [227, 260], [227, 293], [62, 293]], atol=4)
    tilted = answer["BOX"][[text.startswith("bring") for text in texts].index(True)]
    right, down = tilted[1] - tilted[0]
    assert np.degrees(np.arctan2(-down, right)) == pytest.approx(8, abs=1.5)


def test_the_same_in_this_process(server: TritonServer, example: Path) -> None:
    picture = (example / "poster.png").read_bytes()
    here = tritone.load(example / "ensemble.yaml", trust=True).infer({"PICTURE": np.array([[picture]], object)})
    with Client(server.grpc_address) as client:
        (found,) = client.infer([{"PICTURE": [picture]}], "ocr")
    assert here["TEXT"][0].tolist() == found.get()["TEXT"].tolist()


def test_a_bad_picture_is_an_error_and_an_empty_one_has_no_text(server: TritonServer, example: Path) -> None:
    paper = io.BytesIO()
    Image.new("RGB", (400, 300), "white").save(paper, "PNG")
    picture = (example / "poster.png").read_bytes()
    with Client(server.grpc_address) as client:
        cut, empty, good = client.infer(
            [{"PICTURE": [each]} for each in (picture[:5000], paper.getvalue(), picture)], "ocr"
        )
    with pytest.raises(TritoneError, match="not a picture that can be read"):
        cut.get()
    assert empty.get()["BOX"].shape == (0, 4, 2)
    assert letters([text.decode() for text in good.get()["TEXT"]]) == letters(drawn())


@pytest.mark.parametrize("code", blocks(EXAMPLE / "README.md", "python"))
def test_the_readmes_python_runs(
    code: str, server: TritonServer, example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(example)
    exec(compile(code.replace("localhost:8001", server.grpc_address), "README.md", "exec"), {"__name__": "example"})
    assert "Serving" in capsys.readouterr().out
