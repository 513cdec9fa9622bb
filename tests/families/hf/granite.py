"""Features that transformers' extractor of Granite Speech 5 makes, kept beside this file as `granite.npz`.

    python tests/families/hf/granite.py

Run in an environment with torch 2.13, transformers 5.24 and torchaudio 2.11, whose Python alone is needed.
"""

import sys
import types
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("granite.npz")
LENGTHS = (3200, 3360, 3499, 5000)  # an even number of frames; odd ones, without a sample more and with some
SETTINGS = {"num_mel_bins": 24}


def signals() -> list[Any]:
    """A sound that grows, of each of the lengths, and behind it nearly silence."""
    found = []
    for seed, length in enumerate(LENGTHS):
        random, time = np.random.default_rng(seed), np.arange(length) / 16000
        tone = np.sin(2 * np.pi * (200 + 900 * seed + 3000 * time) * time) * np.minimum(1, 8 * time)
        found.append(np.where(time < 0.15, tone + random.normal(0, 0.02, length), 1e-6).astype(np.float32))
    return found


def without_init(name: str, places: Sequence[str]) -> None:
    """A package whose own `__init__.py` does not run: it loads a library that does not fit every torch."""
    package = types.ModuleType(name)
    package.__path__, package.__spec__ = list(places), ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package


if __name__ == "__main__":
    spec = find_spec("torchaudio")
    assert spec is not None
    assert spec.submodule_search_locations
    without_init("torchaudio", spec.submodule_search_locations)
    extension: Any = types.ModuleType("torchaudio._extension")  # of compiled code, none of which is called
    extension._IS_TORCHAUDIO_EXT_AVAILABLE, extension.fail_if_no_align = False, lambda function: function
    sys.modules[extension.__name__] = extension
    for part in ("functional", "transforms"):
        import_module(f"torchaudio.{part}")
    from transformers import GraniteSpeech5FeatureExtractor

    extractor = GraniteSpeech5FeatureExtractor(**SETTINGS)
    made = [extractor(each, sampling_rate=16000, return_tensors="pt") for each in signals()]
    assert all(bool(each["attention_mask"].all()) for each in made)
    found = {str(len(wave)): each["input_features"][0].numpy() for wave, each in zip(signals(), made, strict=True)}
    np.savez_compressed(PATH, **found)  # type: ignore[arg-type]  # numpy's stub takes arrays for its own keyword
