"""The demo: the shipped clips through a real Triton, their texts scored, their voices compared."""

from tritone.corpus.clips import SHIPPED_CLIPS, Clip, read_clips
from tritone.demo.run import Run, run_demo
from tritone.demo.score import Measured
from tritone.demo.voices import Voice, VoiceRun

__all__ = [
    "SHIPPED_CLIPS",
    "Clip",
    "Measured",
    "Run",
    "Voice",
    "VoiceRun",
    "read_clips",
    "run_demo",
]
