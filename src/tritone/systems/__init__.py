"""Models that transcribe or embed files: a served one or a bundle in this process, behind one interface."""

from tritone.systems.bundled import BundleSystem
from tritone.systems.served import ServedSystem, embedder, transcriber
from tritone.systems.spec import open_embedder_system, open_system, parse_spec
from tritone.systems.streams import Playback
from tritone.systems.system import System

__all__ = [
    "BundleSystem",
    "Playback",
    "ServedSystem",
    "System",
    "embedder",
    "open_embedder_system",
    "open_system",
    "parse_spec",
    "transcriber",
]
