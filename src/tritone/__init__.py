"""Tritone: trained speech models into production on NVIDIA Triton Inference Server.

tritone.load(WHAT).transcribe(["a.wav"])          recognition in this process: a bundle, a checkpoint, hf://…
tritone.load("demo-speaker").embed(["a.wav"])     a speaker's voice as a vector
tritone.load("vad").segments("a.wav")             where a recording has speech
tritone.load("joe").speak("Good morning.")        a text, spoken by a voice
tritone.load("letters").infer({"image": array})   any other model, arrays by name
tritone.load("spec.yaml").infer({"text": array})  models that a file wires to an ensemble
tritone.Client("localhost:8001")                  the same verbs, of a running server; AsyncClient in an event loop
"""

from typing import TYPE_CHECKING, Any

from tritone import errors
from tritone.errors import TritoneError
from tritone.later import attributes

if TYPE_CHECKING:
    __version__: str

    from tritone.activity import SpeechActivity, SpeechSegment
    from tritone.audio.spoken import Spoken
    from tritone.client import AsyncClient, Client
    from tritone.kinds.synthesis.model import Voice
    from tritone.kinds.synthesis.options import SynthesisOptions
    from tritone.pipelines.detector import Detector
    from tritone.pipelines.embed_options import EmbedOptions
    from tritone.pipelines.embedder import Embedder
    from tritone.pipelines.frames import FrameScores
    from tritone.pipelines.generic.model import GenericModel
    from tritone.pipelines.live import Stream
    from tritone.pipelines.loading import (
        load,
        load_as,
        load_detector,
        load_embedder,
        load_ensemble,
        load_model,
        load_whisper,
    )
    from tritone.pipelines.model import Model
    from tritone.pipelines.recognizer import Recognizer
    from tritone.pipelines.whisper.options import DecodingOptions
    from tritone.pipelines.whisper.transcriber import Transcriber
    from tritone.pipelines.wiring.ensemble import Ensemble
    from tritone.runtime.graph import Models
    from tritone.search.activity import ActivityOptions
    from tritone.search.endpoint import EndpointRules
    from tritone.search.options import SearchOptions
    from tritone.transcript import Alternative, Span, Transcript

__all__ = [
    "ActivityOptions",
    "Alternative",
    "AsyncClient",
    "Client",
    "DecodingOptions",
    "Detector",
    "EmbedOptions",
    "Embedder",
    "EndpointRules",
    "Ensemble",
    "FrameScores",
    "GenericModel",
    "Model",
    "Models",
    "Recognizer",
    "SearchOptions",
    "Span",
    "SpeechActivity",
    "SpeechSegment",
    "Spoken",
    "Stream",
    "SynthesisOptions",
    "Transcriber",
    "Transcript",
    "TritoneError",
    "Voice",
    "__version__",
    "errors",
    "load",
    "load_as",
    "load_detector",
    "load_embedder",
    "load_ensemble",
    "load_model",
    "load_whisper",
]

# Imported on first use, so that `import tritone` costs nothing and the client works without the runtime.
LAZY = {
    "ActivityOptions": "tritone.search.activity",
    "Alternative": "tritone.transcript",
    "AsyncClient": "tritone.client",
    "Client": "tritone.client",
    "DecodingOptions": "tritone.pipelines.whisper.options",
    "Detector": "tritone.pipelines.detector",
    "EmbedOptions": "tritone.pipelines.embed_options",
    "Embedder": "tritone.pipelines.embedder",
    "EndpointRules": "tritone.search.endpoint",
    "Ensemble": "tritone.pipelines.wiring.ensemble",
    "FrameScores": "tritone.pipelines.frames",
    "GenericModel": "tritone.pipelines.generic.model",
    "Model": "tritone.pipelines.model",
    "Models": "tritone.runtime.graph",
    "Recognizer": "tritone.pipelines.recognizer",
    "SearchOptions": "tritone.search.options",
    "Span": "tritone.transcript",
    "SpeechActivity": "tritone.activity",
    "SpeechSegment": "tritone.activity",
    "Spoken": "tritone.audio.spoken",
    "Stream": "tritone.pipelines.live",
    "SynthesisOptions": "tritone.kinds.synthesis.options",
    "Transcriber": "tritone.pipelines.whisper.transcriber",
    "Transcript": "tritone.transcript",
    "Voice": "tritone.kinds.synthesis.model",
    **dict.fromkeys((name for name in __all__ if name.startswith("load")), "tritone.pipelines.loading"),
}


_attribute = attributes(__name__, LAZY)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _attribute(name)
    from importlib.metadata import version

    globals()[name] = version("tritone")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
