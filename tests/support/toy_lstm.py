"""A transducer with an LSTM whose encoder is one product of a frame's samples, as programs for the runtime `torch`.

    write_toy_lstm(path, durations=(0, 1, 2))  ->  a bundle with all four roles; what it says is random

Predictor and joiner are those of a bundle of NeMo's. A frame is 640 samples (40 ms), in streams too.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toy import BINS, CHUNK, FRAME, SAMPLE_RATE, TOKENS
from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance, Role, State, Streaming, Vocabulary
from tritone.families.export.joiner import JoinerGraph
from tritone.families.export.torch_program import save_program
from tritone.families.nemo.config import TransducerConfig
from tritone.families.nemo.graphs import PredictorGraph
from tritone.families.nemo.transducer import Joint, Predictor
from tritone.kinds.transducer.part import TransducerPart

SIZE = len(TOKENS)
HIDDEN, LAYERS, JOINT = 12, 2, 14
OUTPUTS = ("encoder_out", "num_frames")


class ToyEncoder(nn.Module):
    """Either role: a vector for each whole frame."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(FRAME, JOINT)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        frames = waveform.shape[1] // FRAME
        blocks = waveform[:, : frames * FRAME].reshape(waveform.shape[0], frames, FRAME)
        return self.product(blocks), num_samples // FRAME


def write_toy_lstm(path: Path, durations: tuple[int, ...] = (), seed: int = 0) -> Path:
    """Write the bundle to `path` and return `path`; with `durations` it is a TDT model."""
    settings = TransducerConfig(hidden=HIDDEN, layers=LAYERS, joint=JOINT, activation="relu", durations=durations)
    predictor, joint, encoder = Predictor(settings, SIZE - 1), Joint(settings, JOINT, SIZE - 1), ToyEncoder()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (predictor, joint, encoder):
            for weight in part.parameters():
                weight.copy_(torch.randn(weight.shape, generator=random))
        encoder.product.weight.mul_(0.5)
        last: Any = joint.joint_net[-1]
        last.bias[SIZE - 1] += 8.0  # about half of the frames are blank
    heard = {"waveform": torch.zeros(3, 9 * FRAME), "num_samples": torch.full((3,), 9 * FRAME)}
    window = {"waveform": torch.zeros(3, CHUNK * FRAME), "num_samples": torch.full((3,), CHUNK * FRAME)}
    rows = {0: "batch"}
    programs: dict[Role, tuple[Any, ...]] = {
        "encoder": (encoder, heard, OUTPUTS, {"waveform": {**rows, 1: "samples"}, "num_samples": rows}),
        "streaming_encoder": (encoder, window, OUTPUTS, {"waveform": rows, "num_samples": rows}),
    }
    graphs: dict[Role, Any] = {"predictor": PredictorGraph(predictor, joint), "joiner": JoinerGraph(joint)}
    programs |= {role: (each.eval(), each.example(), each.outputs, each.dynamic) for role, each in graphs.items()}
    with BundleWriter(path) as writer:
        writer.write_tokens([*TOKENS[1:], TOKENS[0]])
        for role, (module, inputs, outputs, dynamic) in programs.items():
            save_program(module, writer.folder / f"{role}.pt2", inputs, outputs, dynamic, {"producer": "tests"})
        states = tuple(State(name=name, shape=(LAYERS, HIDDEN), dtype="float32") for name in ("hidden", "cell"))
        writer.commit(
            Manifest(
                name="toy-lstm",
                kind="transducer",
                sample_rate=SAMPLE_RATE,
                features=Features(frame_length=400, frame_shift=160, num_mel_bins=BINS),
                encoder=Encoder(subsampling_rate=4, output_dim=JOINT, min_samples=FRAME),
                vocabulary=Vocabulary(
                    size=SIZE, units="char", blank_id=SIZE - 1, sos_id=SIZE - 2, eos_id=SIZE - 2, connect_symbol=""
                ),
                streaming=Streaming(
                    chunk_size=CHUNK,
                    left_chunks=0,
                    window_samples=CHUNK * FRAME,
                    shift_samples=CHUNK * FRAME,
                    states=(),
                ),
                parts=(
                    TransducerPart(
                        context_size=1, start=(SIZE - 1,), states=states, durations=durations, max_symbols=3
                    ),
                ),
                artifacts=tuple(writer.artifact(role, f"{role}.pt2", runtime="torch") for role in programs),
                provenance=Provenance(family="toy"),
            )
        )
    return path
