"""Folders of transformers that hold NeMo's networks: parity with transformers itself, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from families.conftest import babble
from families.parakeet_models import CLASSES, PIECES, features_of, random_model, save
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.folder import read_folder
from tritone.families.nemo.graphs import OfflineGraph

LENGTHS = (16000, 9000, 24321, 12345)
ALLOWED = 2e-4  # of numbers around 1 to 10, in float32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A folder of each kind, and upstream's model of it."""
    found: dict[str, tuple[Path, Any]] = {}

    def make(kind: str) -> tuple[Path, Any]:
        if kind not in found:
            model = random_model(kind)
            found[kind] = save(tmp_path_factory.mktemp("parakeet") / kind, kind, model), model
        return found[kind]

    return make


def upstream(kind: str, model: Any, waveform: np.ndarray, prompt: int) -> Tensor:
    """What transformers computes for one utterance alone: log-probabilities, or projected encoder frames."""
    inputs = features_of(kind, waveform)
    frames = int(model._get_subsampling_output_length(inputs["attention_mask"].sum()))
    if kind == "parakeet_ctc":
        return torch.log_softmax(model(**inputs).logits[0, :frames], dim=-1)
    more = {"prompt_ids": torch.tensor([prompt])} if kind == "nemotron3_5_asr" else {}
    found: Tensor = model.get_audio_features(**inputs, **more).pooler_output[0, :frames]
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_ragged_batches_have_what_transformers_computes_for_each_utterance_alone(
    kind: str, made: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, theirs = made(kind)
    model, tokens, _ = read_folder(folder)
    assert len(tokens) == PIECES + 1
    graph = OfflineGraph(model, LogMel(model.config.features), "ctc" if model.config.ctc else "transducer").eval()
    waveforms = [babble(length, seed=length) for length in LENGTHS]
    block = torch.full((len(LENGTHS), max(LENGTHS)), 0.3)
    for row, waveform in enumerate(waveforms):
        block[row, : len(waveform)] = torch.from_numpy(waveform)
    prompts = torch.tensor([0, 2, 5, 2])
    told = {"language": prompts} if kind == "nemotron3_5_asr" else {}
    result = dict(zip(graph.outputs, graph(block, torch.tensor(LENGTHS), **told), strict=True))
    worst = 0.0
    for row, waveform in enumerate(waveforms):
        expected = upstream(kind, theirs, waveform, int(prompts[row]))
        found = result[graph.compared[0]][row, : result["num_frames"][row]]
        assert len(found) == len(expected)
        worst = max(worst, float((found - expected).abs().max()))
    assert worst < ALLOWED, worst
