"""Small random WeNet models, as files in upstream's layout and as bundles."""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from families.icefall_models import SharedReports
from shared import Shared
from traces import kept_traces
from tritone.bundle.bundle import Bundle
from tritone.families.export.report import ExportReport
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.export import export_wenet
from tritone.families.wenet.model import AsrModel

LETTERS = "abcdefghijklmnopqrstuvwxyz"
UNITS = ["<blank>", "<unk>", *LETTERS, "▁", "<sos/eos>"]

CONFIG: dict[str, Any] = {
    "encoder": "conformer",
    "encoder_conf": {
        "output_size": 16,
        "attention_heads": 2,
        "linear_units": 24,
        "num_blocks": 2,
        "input_layer": "conv2d",
        "cnn_module_kernel": 7,
        "cnn_module_norm": "layer_norm",
        "causal": True,
        "use_dynamic_chunk": True,
    },
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 1},
    "input_dim": 80,
    "output_dim": len(UNITS),
}


def write_model(folder: Path, change: Callable[[dict[str, Any]], None] | None = None, seed: int = 7) -> Path:
    """Write final.pt, train.yaml and units.txt of a random model whose output depends strongly on its input."""
    config = copy.deepcopy(CONFIG)
    if change is not None:
        change(config)
    torch.manual_seed(seed)
    model = AsrModel(parse_config(config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.6)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
        # log-mel features lie around -5 … 15; centre them so that no activation saturates
        if model.encoder.global_cmvn is not None:
            model.encoder.global_cmvn.mean.fill_(5.0)
            model.encoder.global_cmvn.istd.fill_(0.3)
    balance(model)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "final.pt")
    (folder / "train.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "units.txt").write_text("".join(f"{u} {i}\n" for i, u in enumerate(UNITS)), encoding="utf-8")
    return folder


def babble(samples: int, seed: int = 0) -> np.ndarray:
    """Noise whose loudness and colour change every 40 ms, so that a model's tokens change too."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 1, samples)
    segments = samples // 640 + 1
    loudness = np.repeat(10 ** rng.uniform(-3, -0.5, segments), 640)[:samples]
    colour = np.repeat(rng.uniform(-0.95, 0.95, segments), 640)[:samples]
    return (loudness * (noise + colour * np.roll(noise, 1)) / 2).astype(np.float32)


@torch.no_grad()
def balance(model: AsrModel) -> None:
    """Set the CTC head so that no token wins everywhere: a random one would say the same few letters to everything."""
    waveform = torch.from_numpy(babble(160000, seed=1))[None]
    feats, count = Fbank()(waveform, torch.tensor([waveform.shape[1]]))
    encoded, _ = model.eval().encoder(feats, count)
    head = model.ctc.ctc_lo
    logits = encoded[0] @ head.weight.T
    scale = 3.0 / logits.std(dim=0)
    head.weight.mul_(scale.unsqueeze(1))
    head.bias.copy_(-logits.mean(dim=0) * scale)
    head.bias[0] += 4.0


def with_cmvn(config: dict[str, Any]) -> None:
    config |= {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "/training/machine/global_cmvn", "is_json_cmvn": True}}


def export(folder: Path, output: Path, *, decoder: bool = False, **options: Any) -> Path:
    """Without the decoder unless a test is about it: translating it takes as long as the encoder."""
    return export_wenet(
        decoder=decoder,
        checkpoint=folder / "final.pt",
        config=folder / "train.yaml",
        tokens=folder / "units.txt",
        output=output,
        **options,
    ).bundle.path


@pytest.fixture(scope="session", autouse=True)
def _traces_are_kept(shared: Shared) -> Iterator[None]:
    with kept_traces(shared.folder):
        yield


@pytest.fixture(scope="session")
def icefall_reports(shared: Shared) -> Mapping[str, ExportReport]:
    """Exports of small icefall models; see `SharedReports`."""
    return SharedReports(shared)


@pytest.fixture(scope="session")
def causal_files(shared: Shared) -> Path:
    return shared("causal", lambda folder: write_model(folder, with_cmvn))


def export_causal(files: Path, output: Path, **options: Any) -> Path:
    return export(files, output, streaming=True, chunk_size=4, left_chunks=3, **options)


@pytest.fixture(scope="session")
def causal_bundle(causal_files: Path, shared: Shared) -> Path:
    """Chunks of 4 frames, 3 of them to the left."""
    return shared("causal-onnx", lambda folder: export_causal(causal_files, folder / "b"))


@pytest.fixture(scope="session")
def torch_bundle(causal_files: Path, shared: Shared) -> Bundle:
    """The model of `causal_bundle` for torch, in every precision."""
    options: dict[str, Any] = {"runtimes": ("torch",), "precisions": ("fp32", "fp16", "bf16")}
    return Bundle.open(shared("causal-torch", lambda folder: export_causal(causal_files, folder / "b", **options)))


@pytest.fixture(scope="session")
def centred_bundle(shared: Shared) -> Path:
    """A non-causal model, offline only: the form whose upstream results depend on padding."""

    def change(config: dict[str, Any]) -> None:
        with_cmvn(config)
        config["encoder_conf"] |= {"causal": False, "use_dynamic_chunk": False, "cnn_module_norm": "batch_norm"}

    return shared("centred", lambda folder: export(write_model(folder / "files", change), folder / "b"))


def complete(config: dict[str, Any]) -> None:
    """U2++ whose reverse weight is 0: upstream's exporter loses an input then."""
    with_cmvn(config)
    config["encoder_conf"] |= {"num_blocks": 1, "output_size": 32, "linear_units": 64}
    config["decoder"] = "bitransformer"
    config["decoder_conf"] |= {"linear_units": 64, "r_num_blocks": 1}
    config["model_conf"] = {"ctc_weight": 0.25, "reverse_weight": 0.0}


@pytest.fixture(scope="session")
def complete_files(shared: Shared) -> Path:
    return shared("complete", lambda folder: write_model(folder, complete))


@pytest.fixture(scope="session")
def complete_report(complete_files: Path, shared: Shared) -> ExportReport:
    """ONNX graphs of encoder and decoder in every precision, whatever they drift. The vocabulary has 30 tokens."""
    return shared("complete-onnx", lambda folder: export_complete(complete_files, folder / "b"))


def export_complete(files: Path, output: Path) -> ExportReport:
    return export_wenet(
        checkpoint=files / "final.pt",
        config=files / "train.yaml",
        tokens=files / "units.txt",
        output=output,
        precisions=("fp32", "fp16", "int8"),
        max_drift=1e-9,
        force=True,
    )
