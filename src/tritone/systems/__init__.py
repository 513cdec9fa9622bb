"""Whatever transcribes: a served model or a bundle in this process, behind one interface."""

from tritone.systems.bundled import BundleSystem
from tritone.systems.outcome import Outcome, Partial, PartialListener, Playback, System
from tritone.systems.served import ServedSystem
from tritone.systems.spec import Spec, open_system, parse_spec

__all__ = [
    "BundleSystem",
    "Outcome",
    "Partial",
    "PartialListener",
    "Playback",
    "ServedSystem",
    "Spec",
    "System",
    "open_system",
    "parse_spec",
]
