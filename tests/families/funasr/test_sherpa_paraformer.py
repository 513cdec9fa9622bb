"""Paraformer from sherpa-onnx's folder: texts as of the package sherpa-onnx, times of the graph's weights, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import sherpa_toys
from families.funasr import upstream
from families.funasr.test_sherpa_sense_voice import SIGNALS, SIZE, metadata
from tritone.errors import ExportError
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.pipelines.offline import OfflinePipeline

TOKENS = ["<blank>", "<s>", "</s>", "a@@", "b", "c", "你", "好", "们", "<unk>"]
TAIL = 0.45


def write(folder: Path, sigmoids: int = 1, **changes: Any) -> Path:
    """Weights and scores are of each frame alone; token k has the scores of frame k."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(4)
    constants = {
        "w": random.normal(0, 0.2, (SIZE, len(TOKENS))).astype(np.float32),
        "v": random.normal(0, 0.05, (SIZE, 1)).astype(np.float32),
        "tail": np.array([TAIL], np.float32),
        "last": np.array([2]),
        "one": np.array([1]),
        "start": np.array([0]),
        "flat": np.array([-1]),
        "frames": np.array(1),
        "zero": np.array(0),
        "scalar": np.zeros(0, np.int64),
        "nothing": np.array([0], np.float32),
    }
    nodes = [
        ("MatMul", ["speech", "v"], ["raw"]),
        ("Sigmoid", ["raw"], ["alphas"]),
        *([("Sigmoid", ["raw"], ["more"])] if sigmoids > 1 else []),
        ("Squeeze", ["alphas", "last"], ["weights"]),
        ("Shape", ["weights"], ["shape"]),
        ("Gather", ["shape", "frames"], ["count"]),
        ("Range", ["zero", "count", "frames"], ["places"]),
        ("Cast", ["speech_lengths"], ["lengths"], {"to": TensorProto.INT64}),
        ("Unsqueeze", ["lengths", "one"], ["ends"]),
        ("Less", ["places", "ends"], ["inside"]),
        ("Where", ["inside", "weights", "nothing"], ["heard"]),
        ("ReduceSum", ["heard", "one"], ["sum"], {"keepdims": 0}),
        ("Add", ["sum", "tail"], ["total"]),
        ("Floor", ["total"], ["floor"]),
        ("Cast", ["floor"], ["token_num"], {"to": TensorProto.INT32}),
        ("ReduceMax", ["floor"], ["most"], {"keepdims": 0}),
        ("Cast", ["most"], ["longest"], {"to": TensorProto.INT64}),
        ("Reshape", ["longest", "flat"], ["end"]),
        ("Slice", ["speech", "start", "end", "one"], ["chosen"]),
        ("MatMul", ["chosen", "w"], ["logits"]),
    ]
    sherpa_toys.write(
        folder / "model.onnx",
        nodes,
        {"speech": (TensorProto.FLOAT, ["N", "T", SIZE]), "speech_lengths": (TensorProto.INT32, ["N"])},
        {"logits": (TensorProto.FLOAT, ["N", "K", len(TOKENS)]), "token_num": (TensorProto.INT32, ["N"])},
        constants,
        metadata(model_type="paraformer", vocab_size=len(TOKENS), encoder_output_size=512, **changes),
    )
    lines = (f"{token} {id}\n" for id, token in enumerate(TOKENS))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def test_texts_are_those_of_sherpa_onnx_and_times_those_of_the_weights(tmp_path: Path) -> None:
    import sherpa_onnx

    folder = write(tmp_path / "toy")
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    assert (bundle.manifest.kind, bundle.manifest.encoder.equal_lengths) == ("paraformer", False)
    theirs = sherpa_onnx.OfflineRecognizer.from_paraformer(
        paraformer=str(folder / "model.onnx"), tokens=str(folder / "tokens.txt"), num_threads=1
    )
    pipeline = OfflinePipeline(bundle)
    count = 0
    for signal, ours in zip(SIGNALS, pipeline.recognize(SIGNALS), strict=True):
        stream = theirs.create_stream()
        stream.accept_waveform(16000, signal)
        theirs.decode_stream(stream)
        expected = stream.result
        assert "".join(ours.text.split()) == "".join(expected.text.split())
        assert pipeline.recognize([signal])[0].text == ours.text
        count += len(expected.text)
        starts = [token.start_s for token in ours.tokens]
        assert starts == sorted(starts)
        assert all(token.end_s > token.start_s or token.end_s == ours.audio_s for token in ours.tokens)
    assert count > 20


def test_audio_too_short_has_no_text(tmp_path: Path) -> None:
    bundle = export_sherpa_onnx(folder=write(tmp_path / "toy"), output=tmp_path / "b").bundle
    found = OfflinePipeline(bundle).recognize([upstream.signals()[2][:399], np.zeros(0, np.float32)])
    assert [each.text for each in found] == ["", ""]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"sigmoids": 2}, "has 2 sigmoids"), ({"inv_stddev": "0.1"}, "do not fit together")],
)
def test_graphs_that_do_not_say_where_tokens_are_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ExportError, match=said):
        export_sherpa_onnx(folder=write(tmp_path / "toy", **changes), output=tmp_path / "b")
