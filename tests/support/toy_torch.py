"""The toy of `toy.py` as a torch module, for the runtime `torch`; it says the same of every waveform."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from toy import CHUNK, FRAME, LEVELS, MIN_SAMPLES, TOKENS, WINDOW
from tritone.families.export.torch_program import save_program


class ToyModule(nn.Module):
    """Either role; without states it is the offline one."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.from_numpy(table.copy()), requires_grad=False)

    def forward(
        self, waveform: Tensor, num_samples: Tensor, offset: Tensor | None = None, level: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        frames = (waveform.shape[1] - MIN_SAMPLES) // FRAME + 1
        num_frames = torch.clamp(num_samples - (MIN_SAMPLES - FRAME), min=0) // FRAME
        blocks = waveform[:, : frames * FRAME].reshape(waveform.shape[0], frames, FRAME)
        levels = torch.round(blocks.mean(dim=2) * LEVELS)
        before = torch.zeros_like(levels[:, :1])
        if level is not None and offset is not None:
            before = torch.where((offset == 0).unsqueeze(1), before, level)
        change = levels - torch.cat([before, levels[:, :-1]], dim=1)
        outputs = (self.table[change.long() % len(TOKENS)], num_frames, change.unsqueeze(2))
        if offset is None:
            return outputs
        return (*outputs, offset + num_frames, levels[:, -1:])


def save_toy_program(path: Path, table: np.ndarray, *, streaming: bool) -> None:
    """Write the toy's program for one of the roles."""
    batch = 3
    samples = WINDOW if streaming else MIN_SAMPLES + 7 * FRAME
    inputs = {"waveform": torch.zeros(batch, samples), "num_samples": torch.full((batch,), samples)}
    outputs = ["log_probs", "num_frames", "encoder_out"]
    dynamic = {"waveform": {0: "batch"} if streaming else {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}
    if streaming:
        assert (samples - MIN_SAMPLES) // FRAME + 1 == CHUNK
        inputs |= {"offset": torch.zeros(batch, dtype=torch.int64), "level": torch.zeros(batch, 1)}
        outputs += ["next_offset", "next_level"]
        dynamic |= {"offset": {0: "batch"}, "level": {0: "batch"}}
    save_program(ToyModule(table).eval(), path, inputs, outputs, dynamic, {"producer": "tests"})
