"""Models that transcribe or embed files, or find speech in them: served or in this process, behind one interface."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.systems.activity import play_activity
    from tritone.systems.bundled import BundleSystem
    from tritone.systems.journaled import transcribe_journaled
    from tritone.systems.served import ServedSystem, activity_system, embedder, transcriber
    from tritone.systems.spec import open_embedder_system, open_system, parse_spec
    from tritone.systems.streams import Playback
    from tritone.systems.system import System

__all__ = [
    "BundleSystem",
    "Playback",
    "ServedSystem",
    "System",
    "activity_system",
    "embedder",
    "open_embedder_system",
    "open_system",
    "parse_spec",
    "play_activity",
    "transcribe_journaled",
    "transcriber",
]

__getattr__ = attributes(
    __name__,
    {
        "play_activity": "tritone.systems.activity",
        "BundleSystem": "tritone.systems.bundled",
        "transcribe_journaled": "tritone.systems.journaled",
        **dict.fromkeys(("ServedSystem", "activity_system", "embedder", "transcriber"), "tritone.systems.served"),
        **dict.fromkeys(("open_embedder_system", "open_system", "parse_spec"), "tritone.systems.spec"),
        "Playback": "tritone.systems.streams",
        "System": "tritone.systems.system",
    },
)
