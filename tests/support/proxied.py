"""Asking a proxy, or Triton itself, by plain HTTP and by tritonclient: the toy models of words."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton

from serving import descendants, kill_tree
from tritone.proxy import Proxy
from tritone.server import free_ports
from tritone.server.watch import model_of
from wire_toys import COMPLETE

KEY = "a-key-for-tests"

Start = Callable[..., Proxy]


def post(
    port: int, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, method: str = "POST"
) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON or bytes of the body, and headers of an answer by HTTP."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        told = answer.read()
        try:
            return answer.status, json.loads(told), dict(answer.getheaders())
        except ValueError:
            return answer.status, told, dict(answer.getheaders())
    finally:
        connection.close()


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
    return post(port, path, headers=headers, method="GET")


def body(samples: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """An inference request in JSON for the models of words."""
    samples = [0.5, 0.25] if samples is None else samples
    return {
        "inputs": [
            {"name": "WAV", "datatype": "FP32", "shape": [1, len(samples)], "data": samples},
            {"name": "WAV_LENS", "datatype": "INT32", "shape": [1, 1], "data": [len(samples)]},
        ],
        "outputs": [{"name": "TRANSCRIPTS"}],
        **more,
    }


def infer(port: int, model: str, request: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, answer, _ = post(port, f"/v2/models/{model}/infer", json.dumps(request).encode(), headers)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def inputs(samples: list[float] | None = None) -> list[Any]:
    """The same request for tritonclient's gRPC."""
    wav = np.asarray([[0.5, 0.25] if samples is None else samples], dtype=np.float32)
    tensors = [triton.InferInput("WAV", wav.shape, "FP32"), triton.InferInput("WAV_LENS", [1, 1], "INT32")]
    tensors[0].set_data_from_numpy(wav)
    tensors[1].set_data_from_numpy(np.array([[wav.shape[1]]], dtype=np.int32))
    return tensors


def text(result: Any) -> str:
    return str(result.as_numpy("TRANSCRIPTS").ravel()[0].decode())


class Served:
    """A running `tritone serve --proxy`, and its ports."""

    def __init__(self, repository: Path, *more: str) -> None:
        self.http, self.grpc, self.metrics = free_ports(3)
        ports = (f"--http-port={self.http}", f"--grpc-port={self.grpc}", f"--metrics-port={self.metrics}")
        command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", str(repository)]
        self.process = subprocess.Popen(
            [*command, "--proxy", *ports, *more, "--", *COMPLETE],
            encoding="utf-8",
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Serving on"):
                return
        raise AssertionError(self.process.communicate()[1])

    def stub(self, model: str) -> psutil.Process:
        """The process of a model."""
        children = descendants(self.process.pid)
        return next(each for each in children if (model_of(each) or ("",))[0] == model)

    def triton(self) -> psutil.Process:
        return next(each for each in descendants(self.process.pid) if each.name().startswith("tritonserver"))

    def close(self) -> None:
        kill_tree(self.process)
