"""Paraformers for streams from sherpa-onnx's folder: graphs of upstream's export make the bundle of FunASR's folder."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from families import funasr_models
from families.funasr import upstream
from tritone.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.funasr.export import export_funasr
from tritone.families.funasr.sherpa_onnx import read_state
from tritone.families.known import recognise
from tritone.families.onnx.source import read_source
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.pipelines.streaming import StreamingPipeline
from tritone.pipelines.streams import Step
from tritone.transcript import Transcript

PARTS = ("encoder", "decoder")
SIZE = upstream.SMALL_FRONT_END["n_mels"] * 7
TOKENS = upstream.TOKENS[: upstream.SMALL_VOCAB]


def numbers(part: str) -> str:
    """A vector of am.mvn as the metadata has it."""
    return ",".join(upstream.statistics(SIZE).partition(f"<{part}>")[2].partition("[")[2].partition("]")[0].split())


def written(folder: Path, **changes: str) -> Path:
    """A folder as it is published."""
    folder.mkdir(parents=True)
    with tarfile.open(upstream.GRAPHS) as archive:
        archive.extractall(folder, filter="data")
    (folder / "tokens.txt").write_text("".join(f"{each} {id}\n" for id, each in enumerate(TOKENS)), encoding="utf-8")
    model = onnx.load(folder / "encoder.onnx")
    metadata = {
        "model_type": "paraformer",
        "lfr_window_size": "7",
        "lfr_window_shift": "6",
        "neg_mean": numbers("AddShift"),
        "inv_stddev": numbers("Rescale"),
        "encoder_output_size": str(upstream.SMALL_ENCODER["output_size"]),
        "decoder_num_blocks": str(upstream.SMALL_DECODER["num_blocks"]),
        "decoder_kernel_size": str(upstream.SMALL_DECODER["kernel_size"]),
        "vocab_size": str(upstream.SMALL_VOCAB),
    }
    onnx.helper.set_model_props(model, metadata | changes)
    onnx.save_model(model, folder / "encoder.onnx")
    return folder


def of_funasr(folder: Path) -> Path:
    """The folder of FunASR with the same weights."""
    content = funasr_models.stream_content() | {
        "encoder_conf": upstream.SMALL_ENCODER,
        "decoder_conf": upstream.SMALL_DECODER,
        "predictor_conf": upstream.SMALL_PREDICTOR,
        "frontend_conf": upstream.SMALL_FRONT_END | {"cmvn_file": None},
    }
    return funasr_models.write_paraformer(folder, content, tokens=TOKENS)


def texts(bundle: Bundle) -> list[Transcript]:
    pipeline = StreamingPipeline(bundle)
    signals = upstream.stream_signals()[:3]
    slots = [pipeline.open() for _ in signals]
    steps = [Step(slot, signal, final=True) for slot, signal in zip(slots, signals, strict=True)]
    return list(pipeline.advance(steps))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sherpa") / "streaming-paraformer")


def test_the_bundle_is_that_of_funasrs_folder(folder: Path, tmp_path: Path) -> None:
    assert (recognise(folder).family, recognise(folder).extra) == ("sherpa-onnx", "export")
    report = export_sherpa_onnx(folder=folder, output=tmp_path / "ours")
    wanted = export_funasr(folder=of_funasr(tmp_path / "model"), output=tmp_path / "theirs", check=False).bundle
    ours, theirs = (each.manifest.model_copy(update={"provenance": None}) for each in (report.bundle, wanted))
    assert (ours.streaming, ours.encoder, ours.vocabulary) == (theirs.streaming, theirs.encoder, theirs.vocabulary)
    assert any("silence" in note for note in report.notes)
    for found, expected in zip(texts(report.bundle), texts(wanted), strict=True):
        assert [each.text for each in found.tokens] == [each.text for each in expected.tokens]
        np.testing.assert_allclose(
            [each.confidence for each in found.tokens], [each.confidence for each in expected.tokens], atol=1e-4
        )
    assert max(len(each.tokens) for each in texts(wanted)) > 5


def test_files_in_int8_have_the_weights_within_half_a_step(folder: Path, tmp_path: Path) -> None:
    rough = written(tmp_path / "int8")
    for part in PARTS:
        # As upstream quantises: matrices alone, each column with a scale of its own.
        options: dict[str, Any] = {"op_types_to_quantize": ["MatMul"], "per_channel": True}
        quantize_dynamic(rough / f"{part}.onnx", rough / f"{part}.int8.onnx", weight_type=QuantType.QUInt8, **options)
        (rough / f"{part}.onnx").unlink()
    sizes = {"chunk_size": 5, "right_context": 2, "left_chunks": 1}
    streaming = export_funasr(folder=rough, output=tmp_path / "b", check=False, **sizes).bundle.manifest.streaming
    assert streaming is not None
    assert (streaming.chunk_size, streaming.left_chunks) == (5, 1)
    exact, read = (
        read_state(*(read_source(path / f"{part}{end}") for part in PARTS))
        for path, end in ((folder, ".onnx"), (rough, ".int8.onnx"))
    )
    assert set(read) == set(exact)
    for name, wanted in exact.items():
        if wanted.dim() == 2:
            step = (wanted.amax(dim=1).clamp(min=0) - wanted.amin(dim=1).clamp(max=0)) / 255
            assert bool(((read[name] - wanted).abs() <= 0.51 * step[:, None]).all()), name
        else:
            assert torch.equal(read[name], wanted), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": "21"}, "has 21 tokens by its vocab_size, and there are 20"),
        ({"lfr_window_size": "1"}, "do not fit together"),
        ({"encoder_output_size": "16"}, "encoder_output_size = 16, the graphs 8"),
        ({"decoder_kernel_size": "7"}, "decoder_kernel_size = 7, the graphs 5"),
        ({"decoder_num_blocks": "1000000"}, "decoder_num_blocks = 1000000, the graphs 2"),
        ({"neg_mean": "a,b"}, "numbers with commas"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(changes: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said):
        export_sherpa_onnx(folder=written(tmp_path / "m", **changes), output=tmp_path / "b")


def test_other_graphs_and_missing_files_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "tokens")
    (folder / "tokens.txt").unlink()
    with pytest.raises(ExportError, match=r"without tokens\.txt"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    folder = written(tmp_path / "other")
    model = onnx.load(folder / "decoder.onnx")
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.attribute[0].i = 2  # over the tokens
    onnx.save_model(model, folder / "decoder.onnx")
    with pytest.raises(ExportError, match=r"differs by .* of the size of what comes out"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    folder = written(tmp_path / "unnamed")
    model = onnx.load(folder / "encoder.onnx")
    for tensor in model.graph.initializer:
        if tensor.name.endswith("after_norm.weight"):
            for node in model.graph.node:
                node.input[:] = ["renamed" if name == tensor.name else name for name in node.input]
            tensor.name = "renamed"
    onnx.save_model(model, folder / "encoder.onnx")
    with pytest.raises(ExportError, match=r"have no encoder\.after_norm\.weight"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    folder = written(tmp_path / "several")
    for part in PARTS:
        (folder / f"{part}-2.onnx").write_bytes((folder / f"{part}.onnx").read_bytes())
    with pytest.raises(ExportError, match="several Paraformers"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
