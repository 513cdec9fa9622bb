"""Container images: the command lines of docker and podman that build and run them."""

from tritone.images.build import TARGETS, ImageBuild
from tritone.images.engine import ENGINES, Engine, find_engine, shown
from tritone.images.requirements import check_requirements, read_pins
from tritone.images.run import ServerRun

__all__ = [
    "ENGINES",
    "TARGETS",
    "Engine",
    "ImageBuild",
    "ServerRun",
    "check_requirements",
    "find_engine",
    "read_pins",
    "shown",
]
