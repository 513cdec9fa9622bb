"""The demo: shipped recordings through a real Triton, their texts scored, their voices compared."""

from tritone.corpus.clips import SHIPPED_CLIPS, SHIPPED_SENTENCES, Clip, read_clips
from tritone.demo.run import Run, Trial, run_demo
from tritone.demo.score import Measured, yardstick
from tritone.demo.voices import Voice, VoiceRun

__all__ = [
    "SHIPPED_CLIPS",
    "SHIPPED_SENTENCES",
    "Clip",
    "Measured",
    "Run",
    "Trial",
    "Voice",
    "VoiceRun",
    "read_clips",
    "run_demo",
    "yardstick",
]
