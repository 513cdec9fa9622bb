"""Models that do nothing, on a real Triton: what is left is the load generator, the transport and the server.

They speak the wire contract of our models and have their configuration, but answer every request at once with one word:
`echo` takes whole utterances, `echo-streaming` chunks of streams.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tritone.bundle import Bundle
from tritone.repository.config import ModelOptions, model_config, to_text, warmup_files
from tritone.server import ServerOptions, TritonServer, free_ports

OFFLINE, STREAMING = "echo", "echo-streaming"
SAMPLE_RATE = 16000
WORD = "echo"
OPTIONS = ModelOptions(queue_delay_ms=0, max_streams=4096)
CODE = f'''\
"""Answers "{WORD}" for every row, and reads nothing of it."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "WAV_LENS").shape()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRANSCRIPTS", np.full((rows, 1), b"{WORD}", dtype=object))])
'''


@contextmanager
def echoing(options: ModelOptions = OPTIONS, code: str = CODE) -> Iterator[TritonServer]:
    """Serve both models on free loopback ports; ready when entered, gone when left. `code`: of another `model.py`."""
    http, grpc, metrics = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="tritone-echo-") as folder:
        write_models(Path(folder), options, code)
        with TritonServer(
            folder, ServerOptions(http_port=http, grpc_port=grpc, metrics_port=metrics, drain_s=1)
        ) as server:
            yield server


def write_models(repository: Path, options: ModelOptions = OPTIONS, code: str = CODE) -> None:
    """Write both models into a repository."""
    for name in (OFFLINE, STREAMING):
        model = repository / name
        config = model_config(name, "offline" if name == OFFLINE else "streaming", options, Bundle.open("demo-asr"))
        for folder in ("1", "warmup"):
            (model / folder).mkdir(parents=True)
        (model / "config.pbtxt").write_text(to_text(config), encoding="utf-8")
        (model / "1" / "model.py").write_text(code, encoding="utf-8")
        for file, content in warmup_files(config).items():
            (model / "warmup" / file).write_bytes(content)
