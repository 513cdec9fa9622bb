"""Small random icefall models, as files in upstream's layout, and bundles of them that many tests share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shared import Shared
from tritone.corpus.clips import read_clips
from tritone.families.export.report import ExportReport
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.export import export_icefall
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.stateless import PredictorConfig
from tritone.families.icefall.zipformer import StackConfig, ZipformerConfig

TOKENS = ["<blk>", "<sos/eos>", "<unk>", *(f"▁{letter}" for letter in "ABCDEFGH"), *"abcdefgh"]
CHUNK, LEFT, RIGHT = 4, 8, 1

PREDICTOR = PredictorConfig(vocab_size=len(TOKENS), width=16, joiner_dim=64, context_size=2)
CONFORMER = ConformerConfig(encoder_dim=32, heads=2, feed_forward_dim=48, layers=1, kernel=5)


def stack(layers: int, downsampling: int, width: int) -> StackConfig:
    return StackConfig(
        layers=layers,
        downsampling=downsampling,
        width=width,
        heads=2,
        query_size=8,
        value_size=6,
        position_size=4,
        feed_forward=24,
        kernel=7,
    )


ZIPFORMER = ZipformerConfig(stacks=(stack(1, 1, 16), stack(1, 2, 24)), causal=True, position_width=16)


@dataclass(frozen=True)
class Files:
    checkpoint: Path
    tokens: Path


def write_files(folder: Path, config: IcefallConfig, tokens: list[str] = TOKENS, seed: int = 0) -> Files:
    """Random weights, in which every input matters and no token wins everywhere."""
    torch.manual_seed(seed)
    model = IcefallModel.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1:
                value.mul_(2.0)
            elif name.endswith("bias"):
                value.normal_(0, 0.2)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.upstream_state()}, folder / "pretrained.pt")
    lines = [*tokens, "#0", "#1"]  # as lexicons have them
    (folder / "tokens.txt").write_text("".join(f"{token} {id}\n" for id, token in enumerate(lines)), encoding="utf-8")
    return Files(folder / "pretrained.pt", folder / "tokens.txt")


def export_files(files: Files, output: Path, **options: Any) -> ExportReport:
    return export_icefall(checkpoint=files.checkpoint, tokens=files.tokens, output=output, **options)


STREAMED: dict[str, Any] = {
    "causal": True,
    "streaming": True,
    "chunk_size": CHUNK,
    "left_context": LEFT,
    "right_context": RIGHT,
}


def export_shared(name: str, folder: Path) -> ExportReport:
    """What several tests look at: a transducer for a runtime, or a CTC head.

    torch.export takes its time, so the transducer for torch is for whole utterances alone.
    """
    if name == "ctc":
        config = IcefallConfig(encoder=ZIPFORMER, predictor=PREDICTOR, ctc_vocab_size=len(TOKENS))
        return export_files(
            write_files(folder / "zipformer", config),
            folder / name,
            head="ctc",
            tail_padding_ms=300,
            streaming=True,
            chunk_size=CHUNK // 2,  # encoder frames, of two of the network's
            left_context=LEFT // 2,
        )
    conformer = write_files(folder / "conformer", IcefallConfig(encoder=CONFORMER, predictor=PREDICTOR))
    if name == "onnx":
        return export_files(conformer, folder / name, precisions=("fp32", "int8"), force=True, **STREAMED)
    if name == "torch":
        return export_files(conformer, folder / name, causal=True, runtimes=("torch",))
    # Half precision is slow on a CPU: one recording is enough of it.
    (folder / "audio").mkdir()
    recording = read_clips()[0].path
    (folder / "audio" / recording.name).write_bytes(recording.read_bytes())
    scripts: dict[str, Any] = {"runtimes": ("torchscript",), "force": True, "check_audio": folder / "audio"}
    return export_files(conformer, folder / name, precisions=("fp32", "fp16"), **STREAMED, **scripts)


class SharedReports(Mapping[str, ExportReport]):
    """The reports of `export_shared` by name; each is made when a test asks for it first."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __getitem__(self, name: str) -> ExportReport:
        return self._shared(f"icefall-{name}", partial(export_shared, name))

    def __iter__(self) -> Iterator[str]:
        return iter(("onnx", "script", "torch", "ctc"))

    def __len__(self) -> int:
        return len([*self])
