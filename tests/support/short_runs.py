"""Training runs of three steps, on tones that stand for words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from training import corpus, train


def run_on_tones(folder: Path, settings: dict[str, Any]) -> Path:
    """Train by a recipe's settings on the CPU, with AN4 and FSDD of six tones each; returns the folder of the run."""
    rng = np.random.default_rng(0)
    rows = []
    for name in ("an4", "fsdd"):
        for number in range(6):
            time = np.arange(12000) / 16000
            tone = 0.3 * np.sin(2 * np.pi * rng.uniform(200, 2000) * time) + 0.01 * rng.standard_normal(len(time))
            recording = corpus.Recording(
                id=f"{name}/{number}",
                text=["enter six", "two"][number % 2],
                speaker=f"{name}/{number % 2}",
                corpus=name,
                split="dev" if number == 5 and name == "an4" else "train",
                sample_rate=16000,
                num_samples=len(time),
            )
            rows.append((recording, corpus.encode_opus(tone, 16000, 24_000)))
    corpus.write_pack(folder / "tiny.zip", rows)
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    arguments = ["--packs", str(folder / "tiny.zip"), "--config", str(folder / "settings.yaml"), "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "LOG_STEPS", 1)
        train.main([*arguments, "--output", str(folder / "run"), "--minutes", "5", "--steps", "3"])
    return folder / "run"
