"""Small random WeNet models, as files in upstream's layout and as bundles."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from background import background, be_patient
from families.icefall_models import export_shared
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


TRACED_AHEAD = {"causal_bundle", "torch_bundle", "complete_report"}


def trace_ahead(traces: Path) -> None:
    """Export the largest bundles, so that their traces are there when the tests export them."""
    with kept_traces(traces), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        causal = write_model(folder / "causal", with_cmvn)
        export_causal(causal, folder / "1")
        export_complete(write_model(folder / "complete", complete), folder / "2")
        export_torch(causal, folder / "3")


def traces_of(config: pytest.Config) -> Path:
    folder = background(config).folder / "traces"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the exports that tests will ask for."""
    items = [item for item in session.items if TRACED_AHEAD & set(getattr(item, "fixturenames", ()))]
    for item in items:
        be_patient(item)
    if items and not session.config.option.collectonly:
        background(session.config).begin(trace_ahead, trace_ahead, traces_of(session.config))
    items = [item for item in session.items if "icefall_reports" in getattr(item, "fixturenames", ())]
    for item in items:
        be_patient(item)
    if items and not session.config.option.collectonly:
        background(session.config).begin(export_shared, export_shared, background(session.config).folder / "icefall")


@pytest.fixture(scope="session", autouse=True)
def _traces_are_kept(pytestconfig: pytest.Config) -> Iterator[None]:
    with kept_traces(traces_of(pytestconfig)):
        yield


@pytest.fixture(scope="session")
def _traced_ahead(pytestconfig: pytest.Config) -> None:
    background(pytestconfig).result(trace_ahead)


@pytest.fixture(scope="session")
def icefall_reports(pytestconfig: pytest.Config) -> Mapping[str, ExportReport]:
    """Exports of small icefall models; see `export_shared`."""
    reports: Mapping[str, ExportReport] = background(pytestconfig).result(export_shared)
    return reports


@pytest.fixture(scope="session")
def causal_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("causal"), with_cmvn)


def export_causal(files: Path, output: Path, **options: Any) -> Path:
    return export(files, output, streaming=True, chunk_size=4, left_chunks=3, **options)


def export_torch(files: Path, output: Path) -> Path:
    return export_causal(files, output, runtimes=("torch",), precisions=("fp32", "fp16", "bf16"))


@pytest.fixture(scope="session")
def causal_bundle(causal_files: Path, tmp_path_factory: pytest.TempPathFactory, _traced_ahead: None) -> Path:
    """Chunks of 4 frames, 3 of them to the left."""
    return export_causal(causal_files, tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="session")
def torch_bundle(causal_files: Path, tmp_path_factory: pytest.TempPathFactory, _traced_ahead: None) -> Bundle:
    """The model of `causal_bundle` for torch, in every precision."""
    return Bundle.open(export_torch(causal_files, tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="session")
def centred_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A non-causal model, offline only: the form whose upstream results depend on padding."""

    def change(config: dict[str, Any]) -> None:
        with_cmvn(config)
        config["encoder_conf"] |= {"causal": False, "use_dynamic_chunk": False, "cnn_module_norm": "batch_norm"}

    folder = write_model(tmp_path_factory.mktemp("centred"), change)
    return export(folder, tmp_path_factory.mktemp("bundle") / "b")


def complete(config: dict[str, Any]) -> None:
    """U2++ whose reverse weight is 0: upstream's exporter loses an input then."""
    with_cmvn(config)
    config["encoder_conf"] |= {"num_blocks": 1, "output_size": 32, "linear_units": 64}
    config["decoder"] = "bitransformer"
    config["decoder_conf"] |= {"linear_units": 64, "r_num_blocks": 1}
    config["model_conf"] = {"ctc_weight": 0.25, "reverse_weight": 0.0}


@pytest.fixture(scope="session")
def complete_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("complete"), complete)


@pytest.fixture(scope="session")
def complete_report(
    complete_files: Path, tmp_path_factory: pytest.TempPathFactory, _traced_ahead: None
) -> ExportReport:
    """ONNX graphs of encoder and decoder in every precision, whatever they drift. The vocabulary has 30 tokens."""
    return export_complete(complete_files, tmp_path_factory.mktemp("bundle") / "b")


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
