"""Requests that no server should have to see, each made of its own hand, and what came back.

name  ->  function of Target  ->  Reply(accepted, message)
"""

import gzip
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 30.0
LEAKS = ("Traceback", 'File "', "site-packages", "/model.py", "triton_python_backend_shm_region")
MAX_ANSWER = 1 << 20


@dataclass(frozen=True)
class Reply:
    """What came back: whether the request was taken as a good one, and the words of the answer or the error."""

    accepted: bool
    message: str

    @property
    def leaks(self) -> bool:
        """Whether it tells of the inside of the server."""
        return any(each in self.message for each in LEAKS)


class Target:
    """A server to be hostile to, and the random numbers to be so with."""

    def __init__(self, grpc: str, http: str, rng: np.random.Generator) -> None:
        self.http = http
        self.rng = rng
        self._grpc = grpc
        self._client: Any = None

    def wav(self, seconds: float = 0.5) -> np.ndarray[Any, Any]:
        return (0.1 * self.rng.standard_normal((1, round(16000 * seconds)))).astype(np.float32)

    def ask(self, model: str, tensors: Mapping[str, np.ndarray[Any, Any]], **options: Any) -> Reply:
        """Send by gRPC."""
        if self._client is None:
            self._client = triton.InferenceServerClient(self._grpc)
        types = {"float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64", "object": "BYTES"}
        inputs = []
        for name, array in tensors.items():
            inputs.append(triton.InferInput(name, array.shape, types[array.dtype.name]))
            inputs[-1].set_data_from_numpy(array)
        names = options.pop("outputs", ())
        outputs = [triton.InferRequestedOutput(name, class_count=options.get("classes", 0)) for name in names] or None
        options.pop("classes", None)
        try:
            answer = self._client.infer(model, inputs, outputs=outputs, client_timeout=TIMEOUT_S, **options)
        except (InferenceServerException, ValueError, TypeError) as error:
            return Reply(False, str(error))
        return Reply(True, str(answer.get_response())[:500])

    def cancel(self, model: str) -> Reply:
        """Send by gRPC and give it up at once."""
        if self._client is None:
            self._client = triton.InferenceServerClient(self._grpc)
        tensors = audio(self.wav(3.0))
        inputs = []
        for name, array in tensors.items():
            inputs.append(triton.InferInput(name, array.shape, "FP32" if name == "WAV" else "INT32"))
            inputs[-1].set_data_from_numpy(array)
        call = self._client.async_infer(model, inputs, lambda result, error: None, client_timeout=TIMEOUT_S)
        time.sleep(float(self.rng.uniform(0, 0.05)))
        call.cancel()
        return Reply(False, "cancelled")

    def post(self, model: str, body: bytes, headers: Mapping[str, str] | None = None, cut: int | None = None) -> Reply:
        """Send bytes by HTTP. `cut`: hang up after so many of them."""
        host, _, port = self.http.rpartition(":")
        lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: {self.http}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()] + ["Connection: close"]
        request = "\r\n".join([*lines, "", ""]).encode() + body
        try:
            with closing(socket.create_connection((host, int(port)), timeout=TIMEOUT_S)) as connection:
                connection.sendall(request if cut is None else request[:cut])
                if cut is not None:
                    return Reply(False, "hung up")
                answer = b""
                while len(answer) < MAX_ANSWER and (piece := connection.recv(65536)):
                    answer += piece
        except OSError as error:
            return Reply(False, f"no answer: {error}")
        text = answer.decode("utf-8", errors="replace")
        return Reply(text.startswith("HTTP/1.1 200"), text[:500])

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()


def audio(wav: np.ndarray[Any, Any], length: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    return {"WAV": wav, "WAV_LENS": np.array([[wav.shape[-1] if length is None else length]], dtype=np.int32)}


def body(wav: np.ndarray[Any, Any], parameters: str = "") -> bytes:
    """A request as JSON; `parameters` are put in as they are."""
    samples = [round(float(sample), 3) for sample in wav.ravel()]
    inputs = [
        {"name": "WAV", "shape": list(wav.shape), "datatype": "FP32", "data": samples},
        {"name": "WAV_LENS", "shape": [1, 1], "datatype": "INT32", "data": [wav.shape[-1]]},
    ]
    text = json.dumps({"inputs": inputs})
    return (text[:-1] + (f', "parameters": {parameters}' if parameters else "") + "}").encode("latin-1")


def _with(value: float) -> Callable[[Target], Reply]:
    def attack(target: Target) -> Reply:
        wav = target.wav()
        wav[0, 77] = value
        return target.ask("demo-asr", audio(wav))

    return attack


def _parameter(model: str, **parameters: Any) -> Callable[[Target], Reply]:
    return lambda target: target.ask(model, audio(target.wav()), parameters=parameters)


def _json(model: str, parameters: str) -> Callable[[Target], Reply]:
    return lambda target: target.post(model, body(target.wav(0.1), parameters))


def _tensors(model: str, make: Callable[[Target], Mapping[str, Any]], **options: Any) -> Callable[[Target], Reply]:
    return lambda target: target.ask(model, make(target), **options)


def _huge_hotwords(target: Target) -> Reply:
    words = {f"word {number} {'x' * 20}": 2.0 for number in range(30_000)}  # 1 MB
    parameters = {"search": "prefix-beam", "hotwords": json.dumps(words)}
    return target.ask("demo-asr", audio(target.wav()), parameters=parameters)


def _hang_up(target: Target) -> Reply:
    data = body(target.wav(1.0))
    return target.post("demo-asr", data, cut=int(target.rng.integers(20, len(data))))


def _binary_size(size: int) -> Callable[[Target], Reply]:
    def attack(target: Target) -> Reply:
        head = json.dumps(
            {
                "inputs": [
                    {
                        "name": "WAV",
                        "shape": [1, 800],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": size},
                    }
                ]
            }
        ).encode()
        data = head + struct.pack("<800f", *([0.1] * 800))
        return target.post("demo-asr", data, {"Inference-Header-Content-Length": str(len(head))})

    return attack


def _stream(start: bool, end: bool) -> Callable[[Target], Reply]:
    def attack(target: Target) -> Reply:
        number = int(target.rng.integers(1, 2**62))
        flags = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
        return target.ask("demo-asr-streaming", audio(target.wav()), **flags)

    return attack


HOSTILE: Mapping[str, Callable[[Target], Reply]] = {
    "NaN": _with(math.nan),
    "infinity": _with(math.inf),
    "too long": _tensors("demo-transducer", lambda target: audio(np.zeros((1, 16000 * 121), np.float32))),
    "float64": _tensors("demo-asr", lambda target: audio(target.wav().astype(np.float64))),
    "text as audio": _tensors("demo-asr", lambda target: {"WAV": np.array([[b"audio"]], dtype=object)}),
    "three axes": _tensors("demo-asr", lambda target: audio(target.wav()[None])),
    "no WAV": _tensors("demo-asr", lambda target: {"WAV_LENS": np.array([[8000]], np.int32)}),
    "no WAV for a speaker": _tensors("demo-speaker", lambda target: {"WAV_LENS": np.array([[8000]], np.int32)}),
    "length above": _tensors("demo-asr", lambda target: audio(target.wav(), 2**31 - 1)),
    "length below 0": _tensors("demo-transducer", lambda target: audio(target.wav(), -1)),
    "64 rows": _tensors(
        "demo-asr", lambda target: {"WAV": np.zeros((64, 800), np.float32), "WAV_LENS": np.full((64, 1), 800, np.int32)}
    ),
    "unknown input": _tensors("demo-asr", lambda target: {**audio(target.wav()), "EXTRA": np.zeros((1, 1), np.int32)}),
    "unknown output": _tensors("demo-asr", lambda target: audio(target.wav()), outputs=("NOTHING",)),
    "unknown model": _tensors("nobody", lambda target: audio(target.wav())),
    "window_s 1e308": _parameter("demo-speaker", window_s=1e308),
    "window_s -1": _parameter("demo-speaker", window_s=-1.0),
    "window_s 1e-300": _parameter("demo-speaker", window_s=1e-300),
    "unknown parameter": _parameter("demo-asr", serach="greedy"),
    "beam 10^9": _parameter("demo-asr", search="prefix-beam", beam=10**9),
    "nbest -1": _parameter("demo-transducer", search="modified-beam", nbest=-1),
    "beam as text": _parameter("demo-asr", search="prefix-beam", beam="many"),
    "search of another kind": _parameter("demo-transducer", search="rescoring"),
    "hotwords no JSON": _parameter("demo-asr", search="prefix-beam", hotwords="{" * 1000),
    "huge hotwords": _huge_hotwords,
    "not UTF-8": _json("demo-asr", '{"search": "\xff"}'),
    "not UTF-8 for a speaker": _json("demo-speaker", '{"window_s": "\xff\xfe"}'),
    "sequence_id not UTF-8": _json("demo-asr", '{"sequence_id": "\xff"}'),
    "a name not UTF-8": _json("demo-transducer", '{"\xff": 1}'),
    "a lone surrogate": _json("demo-asr", '{"search": "\\ud800"}'),
    "number too large": _json("demo-asr", '{"beam": 1e999}'),
    "list as parameter": _json("demo-asr", '{"beam": [1, 2]}'),
    "broken JSON": lambda target: target.post("demo-asr", body(target.wav(0.1))[:-20]),
    "no body": lambda target: target.post("demo-asr", b""),
    "binary size above": _binary_size(2**40),
    "binary size below 0": _binary_size(-1),
    "no gzip": lambda target: target.post("demo-asr", body(target.wav(0.1)), {"Content-Encoding": "gzip"}),
    "gzip cut": lambda target: target.post(
        "demo-asr", gzip.compress(body(target.wav(0.1)))[:-9], {"Content-Encoding": "gzip"}
    ),
    "hung up": _hang_up,
    "cancelled": lambda target: target.cancel("demo-asr"),
    "chunk without START": _stream(False, False),
    "END without START": _stream(False, True),
}
"""What every server must refuse, or survive where the client goes away."""

DEADLY: Mapping[str, Callable[[Target], Reply]] = {
    "class_count": _tensors("demo-asr", lambda target: audio(target.wav()), outputs=("TRANSCRIPTS",), classes=5),
    "JSON 100,000 deep": lambda target: target.post("demo-asr", b'{"inputs": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "gzip bomb": lambda target: target.post(
        "demo-asr", gzip.compress(b" " * 300_000_000, 9), {"Content-Encoding": "gzip"}
    ),
}
"""What ends Triton 2.51 or fills its memory, so that our proxy must keep it out; sent only where there is one."""
