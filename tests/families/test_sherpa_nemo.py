"""Importing NeMo's models from sherpa-onnx's folders: tokens as NeMo finds them, and folders that should be refused."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import tritone
from families.conftest import babble
from families.nemo_models import LABELS
from nemo_reference import Reference
from shared import Shared
from sherpa_nemo import SHIFT, WINDOW, nemo_folder, random_model, stream_encoder
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.kinds.transducer.part import TransducerPart
from tritone.runtime import open_graph

LENGTHS = (9000, 16000, 319, 12345)
KINDS = ("ctc", "rnnt", "tdt")


@dataclass(frozen=True)
class Imported:
    folder: Path
    bundle: Path
    model: Reference
    leak: str


def make(kind: str) -> Callable[[Path], Imported]:
    def made(folder: Path) -> Imported:
        model = random_model(kind)
        nemo_folder(folder / "m", model, LABELS, head="ctc" if kind == "ctc" else "transducer")
        report = export_sherpa_onnx(folder=folder / "m", output=folder / "b")
        assert max(report.differences.values()) < 1e-3
        return Imported(folder / "m", folder / "b", model, str(report.leaks["encoder.onnx"]))

    return made


@pytest.fixture(scope="session")
def ctc(shared: Shared) -> Imported:
    return shared("sherpa-nemo-ctc", make("ctc"))


@pytest.fixture(scope="session")
def tdt(shared: Shared) -> Imported:
    return shared("sherpa-nemo-tdt", make("tdt"))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_times_are_those_of_nemo_in_any_company(kind: str, shared: Shared) -> None:
    imported = shared(f"sherpa-nemo-{kind}", make(kind))
    waveforms = [babble(length, seed=length) for length in LENGTHS]
    recognizer = tritone.load(imported.bundle)
    together = recognizer.transcribe(waveforms)
    for waveform, result in zip(waveforms, together, strict=True):
        found = [(token.text, round(token.start_s / 0.08)) for token in result.tokens]
        assert found == [(LABELS[id].replace(" ", "▁"), frame) for id, frame in expected(imported.model, waveform)]
        alone = recognizer.transcribe([waveform])[0]
        assert [(token.text, token.start_s) for token in alone.tokens] == [
            (token.text, token.start_s) for token in result.tokens
        ]
    assert sum(len(result.tokens) for result in together) > 8
    assert imported.leak == "results do not depend on padding"


def expected(model: Reference, waveform: np.ndarray) -> list[tuple[int, int]]:
    """Token ids with their frames, by the reference implementation."""
    if len(waveform) < 320:
        return []
    if hasattr(model, "joint"):
        return model.greedy(torch.from_numpy(waveform))
    best = model.log_probs(torch.from_numpy(waveform)).argmax(dim=1).tolist()
    return [(id, t) for t, id in enumerate(best) if id != model.blank and (t == 0 or best[t - 1] != id)]


def test_the_manifest_tells_what_the_folder_does(tdt: Imported, ctc: Imported) -> None:
    manifest = Bundle.open(tdt.bundle).manifest
    assert (manifest.part(TransducerPart).context_size, manifest.part(TransducerPart).start) == (1, (len(LABELS),))
    assert (manifest.part(TransducerPart).durations, manifest.part(TransducerPart).max_symbols) == ((0, 1, 2, 3), 5)
    assert [(each.name, each.shape) for each in manifest.part(TransducerPart).states] == [
        ("hidden", (2, 12)),
        ("cell", (2, 12)),
    ]
    # The encoder has 16 numbers, the predictor 12.
    assert (manifest.encoder.subsampling_rate, manifest.encoder.output_dim) == (8, 16)
    assert (manifest.encoder.min_samples, manifest.encoder.equal_lengths) == (320, False)
    assert (manifest.features.kind, manifest.features.num_mel_bins, manifest.features.normalize) == (
        *("log-mel", 80, "per-feature"),
    )
    assert (manifest.tokens.size, manifest.tokens.blank_id) == (len(LABELS) + 1, len(LABELS))
    manifest = Bundle.open(ctc.bundle).manifest
    assert (manifest.kind, manifest.tokens.blank_id, manifest.encoder.output_dim) == (
        *("ctc", len(LABELS), len(LABELS) + 1),
    )


@pytest.mark.parametrize("normalize", ["NA", "all_features"])
def test_features_are_normalised_as_the_metadata_says(normalize: str, ctc: Imported, tmp_path: Path) -> None:
    folder = shutil.copytree(ctc.folder, tmp_path / "m")
    change(folder / "model.onnx", "normalize_type", normalize)
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    waveform = babble(9000, seed=1)
    feed = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    found, counts = open_graph(bundle.artifact("encoder"))(feed, ["log_probs", "num_frames"])
    settings = {**ctc.model.preprocessor.featurizer.config, "normalize": normalize}
    ctc.model.preprocessor.featurizer.config = settings
    wanted = ctc.model.log_probs(torch.from_numpy(waveform)).numpy()
    assert counts.tolist() == [len(wanted)]
    np.testing.assert_allclose(found[0], wanted, atol=2e-3)


def test_in_int8_every_utterance_is_as_it_is_alone(ctc: Imported, tmp_path: Path) -> None:
    quantize_dynamic(ctc.folder / "model.onnx", tmp_path / "model.int8.onnx", weight_type=QuantType.QUInt8)
    shutil.copy(ctc.folder / "tokens.txt", tmp_path)
    report = export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b")
    assert "each is a call" in str(report.leaks["encoder.int8.onnx"])
    assert [each.precision for each in report.bundle.manifest.artifacts] == ["int8"]
    graph = open_graph(report.bundle.artifact("encoder"))
    assert graph.inputs["waveform"].shape[0] == 1
    recognizer = tritone.load(report.bundle.path)
    waveforms = [babble(length, seed=length) for length in LENGTHS]
    together = recognizer.transcribe(waveforms)
    for waveform, result in zip(waveforms, together, strict=True):
        assert recognizer.transcribe([waveform])[0].to_dict() == result.to_dict()
    assert sum(len(result.tokens) for result in together) > 5


def change(path: Path, key: str, value: str | None) -> None:
    model = onnx.load(path)
    kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != key}
    helper.set_model_props(model, kept | ({key: value} if value is not None else {}))
    path.write_bytes(model.SerializeToString())


FAULTS: dict[str, tuple[str, str | None, str]] = {
    "no vocab_size": ("vocab_size", None, "the metadata has no 'vocab_size'"),
    "other vocab_size": ("vocab_size", "11", "tokens.txt has 11 tokens, but .*encoder.onnx has 12"),
    "no factor": ("subsampling_factor", None, "the metadata has no 'subsampling_factor'"),
    "other factor": ("subsampling_factor", "4", "subsampling_factor is 4, but 8 feature frames make one"),
    "no layers": ("pred_rnn_layers", None, "the metadata has no 'pred_rnn_layers'"),
    "other layers": ("pred_rnn_layers", "1", "decoder.onnx fails when it is run"),
    "other hidden": ("pred_hidden", "13", "decoder.onnx fails when it is run"),
    "huge hidden": ("pred_hidden", "9" * 40, "pred_hidden = '999.*expected decimal numbers"),
    "other features": ("normalize_type", "fixed_mean", "normalize_type = 'fixed_mean'; known are"),
    "GigaAM": ("is_giga_am", "1", "is a GigaAM, whose features are others"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_transducers_that_are_not_what_they_say_are_refused(fault: str, tdt: Imported, tmp_path: Path) -> None:
    folder = shutil.copytree(tdt.folder, tmp_path / "m")
    key, value, message = FAULTS[fault]
    change(folder / "encoder.onnx", key, value)
    with pytest.raises(ExportError, match=message):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


CTC_FAULTS: dict[str, tuple[str, str | None, str]] = {
    "other vocab_size": ("vocab_size", "11", "gives 11 scores; by its vocab_size it has 11 tokens and the blank"),
    "other factor": ("subsampling_factor", "4", "by its subsampling_factor 4 feature frames make one"),
    "huge factor": ("subsampling_factor", "4000", "subsampling_factor is 4000; at most 40"),
    "other type": ("model_type", "EncDecMultiTaskModel", "type 'EncDecMultiTaskModel'; CTC models that can be"),
}


@pytest.mark.parametrize("fault", CTC_FAULTS)
def test_ctc_models_that_are_not_what_they_say_are_refused(fault: str, ctc: Imported, tmp_path: Path) -> None:
    folder = shutil.copytree(ctc.folder, tmp_path / "m")
    key, value, message = CTC_FAULTS[fault]
    change(folder / "model.onnx", key, value)
    with pytest.raises(ExportError, match=message):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")


def test_files_of_several_models_are_refused_together(tdt: Imported, ctc: Imported, tmp_path: Path) -> None:
    folder = shutil.copytree(tdt.folder, tmp_path / "m")
    shutil.copy(ctc.folder / "model.onnx", folder / "decoder.onnx")
    with pytest.raises(ExportError, match=r"decoder\.onnx takes audio_signal"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    shutil.copy(tdt.folder / "decoder.onnx", folder / "decoder.onnx")
    shutil.copy(tdt.folder / "decoder.onnx", folder / "joiner.onnx")
    with pytest.raises(ExportError, match=r"joiner\.onnx takes targets"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")


@pytest.fixture(scope="module")
def stream_folder(tdt: Imported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(tdt.folder, tmp_path_factory.mktemp("stream") / "m")
    stream_encoder(folder / "encoder.onnx", 16)
    return folder


def test_streams_have_caches_and_the_features_before_their_windows(stream_folder: Path, tmp_path: Path) -> None:
    report = export_sherpa_onnx(folder=stream_folder, output=tmp_path / "b")
    streaming = report.bundle.manifest.streaming
    assert streaming is not None
    assert report.differences["streaming_encoder.onnx"] < 1e-4
    assert (streaming.chunk_size, streaming.left_chunks, streaming.shift_samples) == (1, 3, 160 * SHIFT)
    # Of the nine features before the first, and of half of that one; one sample is for the pre-emphasis.
    assert (streaming.lead_samples, streaming.flush_samples) == (160 * (WINDOW - SHIFT) + 201, 0)
    assert streaming.window_samples == 160 * (WINDOW - 1) + 401
    assert {state.name: (state.shape, state.dtype) for state in streaming.states} == {
        "steps": ((), "int64"),
        "cache_last_channel": ((1, 3, 80), "float32"),
        "cache_last_time": ((1, 80, 2), "float32"),
        "cache_last_channel_len": ((), "int64"),
    }


def test_streams_say_the_same_in_any_company(stream_folder: Path, tmp_path: Path) -> None:
    export_sherpa_onnx(folder=stream_folder, output=tmp_path / "b")
    waveforms = [babble(length, seed=length) for length in (9000, 12800, 700)]
    recognizer = tritone.load(tmp_path / "b")
    alone = []
    for waveform in waveforms:
        with recognizer.stream() as stream:
            stream.accept(waveform)
            alone.append(stream.finish().text)
    streams = [recognizer.stream() for _ in waveforms]
    for start in range(0, 12800, 1000):
        for stream, waveform in zip(streams, waveforms, strict=True):
            if start < len(waveform):
                stream.accept(waveform[start : start + 1000])
    assert [stream.finish().text for stream in streams] == alone
    assert min(map(len, alone[:2])) > 3


def test_streams_of_ctc_models_are_those_of_the_graph(ctc: Imported, tmp_path: Path) -> None:
    stream_encoder(tmp_path / "model.onnx", 11, ctc=True)
    shutil.copy(ctc.folder / "tokens.txt", tmp_path)
    report = export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b")
    assert report.differences["streaming_encoder.onnx"] < 1e-4
    assert (report.bundle.manifest.kind, report.bundle.manifest.tokens.blank_id) == ("ctc", 10)


STREAM_FAULTS: dict[str, tuple[str, str | None, str]] = {
    "no window": ("window_size", None, "the metadata has no 'window_size'"),
    "huge window": ("window_size", "100000", "window_size is 100000, the graph takes audio_signal"),
    "shift beyond the window": ("chunk_shift", "18", "chunk_shift is 18, more than the window_size of 17"),
    "other caches": ("cache_last_channel_dim3", "81", "the state cache_last_channel.* should be.*81"),
    "huge caches": ("cache_last_channel_dim2", "1000000", "a stream would keep 32000"),
    "normalised": ("normalize_type", "per_feature", "cannot be normalised over all of it"),
    "other shift": ("chunk_shift", "4", "subsampling_factor is 8, but 4 feature frames make one"),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_streaming_models_are_held_against_their_metadata(fault: str, stream_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stream_folder, tmp_path / "m")
    key, value, message = STREAM_FAULTS[fault]
    change(folder / "encoder.onnx", key, value)
    with pytest.raises(ExportError, match=message):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
