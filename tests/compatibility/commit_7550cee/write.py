"""Write what lies beside this file: a repository as commit 7550cee builds it, and what its models answer.

    PYTHONPATH=src:tests/support python path/to/write.py FOLDER      in a checkout of that commit

Of the toys of ../v0_1_0, and models that version 0.1.0 did not have: any ONNX graph, one with states, and an ensemble
of Python functions and a graph. FOLDER must not exist. What comes out is the same each time.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton

sys.path.insert(0, str(Path(__file__).parents[1] / "v0_1_0"))

import make

from ensemble_models import write_parts
from serving import quiet_options
from tritone import load_model
from tritone.pipelines.wiring.spec import read_spec
from tritone.prepare.steps import bundles_of
from tritone.repository import ModelOptions, build_repository
from tritone.repository.wired import build_ensemble
from tritone.server import TritonServer

SCALED, SUMMED, TEXT = [1.0, 2.5, -3.0], [[1.0, 2.0], [10.0, 20.0], [0.5, -0.5]], "a whole sentence"
"""What is asked: of (batch, 3), of (batch, 2) one after the other, and of a text; the same numbers are in the test."""


def build(repository: Path) -> None:
    """Write the models that version 0.1.0 did not have."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_parts(Path(temporary))
        options = ModelOptions(queue_delay_ms=1, queue_limit=32, threads=1)
        build_repository([folder / "scaled"], repository, names=["scaled"], options=options)
        build_repository([folder / "sums"], repository, names=["sums"], options=ModelOptions(max_streams=4))
        spec = read_spec(folder / "spec.yaml")
        build_ensemble(spec, bundles_of(spec, folder, folder / "made"), repository)


def in_process(repository: Path) -> dict[str, Any]:
    scaled = load_model(repository / "scaled" / "1" / "bundle").infer({"x": np.array([SCALED], np.float32)})
    requests = [{"x": np.array([each], np.float32)} for each in SUMMED]
    sums = load_model(repository / "sums" / "1" / "bundle").sequence(requests)
    return {"scaled": scaled["y"][0].tolist(), "sums": [each["sum"][0].tolist() for each in sums]}


def served(repository: Path) -> dict[str, Any]:
    with TritonServer(repository, quiet_options()) as server:
        client = triton.InferenceServerClient(server.grpc_address)
        try:
            return ask(client)
        finally:
            client.close()


def ask(client: Any) -> dict[str, Any]:
    """What the models of any kind answer."""

    def tensor(name: str, kind: str, values: Any) -> Any:
        found = triton.InferInput(name, list(values.shape), kind)
        found.set_data_from_numpy(values)
        return found

    def row(values: list[float]) -> list[Any]:
        return [tensor("x", "FP32", np.array([values], np.float32))]

    sums = []
    for index, values in enumerate(SUMMED):
        place = {"sequence_start": index == 0, "sequence_end": index == len(SUMMED) - 1}
        sums.append(client.infer("sums", row(values), sequence_id=7, **place).as_numpy("sum")[0].tolist())
    mean = client.infer("mean-length", [tensor("TEXT", "BYTES", np.array([[TEXT.encode()]], object))])
    return {
        "scaled": client.infer("scaled", row(SCALED)).as_numpy("y")[0].tolist(),
        "sums": sums,
        "mean-length": {name: mean.as_numpy(name).ravel().tolist() for name in ("MEAN", "COUNT")},
    }


def main(folder: Path) -> None:
    """Write everything but this file and the README."""
    folder.mkdir(parents=True)
    expected: dict[str, Any] = {"in_process": {}, "served": {}}
    for name, maker in (("toys", make), ("others", sys.modules[__name__])):
        with tempfile.TemporaryDirectory() as temporary:
            repository = Path(temporary) / name
            maker.build(repository)
            shutil.copytree(repository, folder / "repository", dirs_exist_ok=True)  # Triton writes into what it serves
            expected["in_process"] |= maker.in_process(repository)
            expected["served"] |= maker.served(repository)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
