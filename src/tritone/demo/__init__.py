"""What `tritone demo` shows: the shipped clips through a real Triton, offline and streaming, scored."""

from tritone.demo.clips import SHIPPED_CLIPS, Clip, read_clips
from tritone.demo.run import Observer, Run, run_demo
from tritone.demo.score import Measured

__all__ = [
    "SHIPPED_CLIPS",
    "Clip",
    "Measured",
    "Observer",
    "Run",
    "read_clips",
    "run_demo",
]
