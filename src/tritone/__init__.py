"""Tritone: trained speech models into production on NVIDIA Triton Inference Server.

tritone.load("demo-asr").transcribe(["a.wav"])   recognition in this process
tritone.Client("localhost:8001")                 recognition by a running server
"""

from typing import TYPE_CHECKING, Any

from tritone import errors
from tritone.errors import TritoneError

if TYPE_CHECKING:
    import os

    __version__: str

    from tritone.client import Client
    from tritone.pipelines.recognizer import Recognizer, Stream
    from tritone.transcript import Span, Transcript

__all__ = [
    "Client",
    "Recognizer",
    "Span",
    "Stream",
    "Transcript",
    "TritoneError",
    "__version__",
    "errors",
    "load",
]

# Imported on first use, so that `import tritone` costs nothing and the client works without the runtime.
LAZY = {
    "Client": "tritone.client",
    "Recognizer": "tritone.pipelines.recognizer",
    "Span": "tritone.transcript",
    "Stream": "tritone.pipelines.recognizer",
    "Transcript": "tritone.transcript",
}


def load(
    bundle: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    max_audio_s: float = 300.0,
) -> "Recognizer":
    """Load a bundle for recognition in this process.

    Args:
        bundle: a bundle folder, or the name of a shipped bundle.
        device: `cpu`, `cuda` or `cuda:<index>`.
        threads: CPU threads per graph call; None takes every CPU this process may use.
        runtime: `onnxruntime` or `torch`; None takes the first of the bundle's that can run on the device.
        precision: `fp32`, `fp16` or `bf16`, as far as the bundle was exported with them; None takes the first.
        max_audio_s: the longest utterance that `transcribe` accepts, in seconds. Streams have no limit.

    Raises:
        BundleError: the bundle is missing, damaged or too new.
        ValueError: there is no such runtime or precision.

    What the bundle or this machine does not have is told when a graph is first needed.
    """
    from tritone.bundle.bundle import Bundle
    from tritone.pipelines.recognizer import Recognizer

    opened = Bundle.open(bundle)
    opened.verify()  # damaged weights would not fail, they would give other words
    return Recognizer(
        opened, device=device, threads=threads, runtime=runtime, precision=precision, max_audio_s=max_audio_s
    )


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("tritone")
    elif name in LAZY:
        from importlib import import_module

        value = getattr(import_module(LAZY[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
