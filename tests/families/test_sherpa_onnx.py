"""Importing folders in sherpa-onnx's layout: tiny hand-written graphs, and folders that should be refused."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import sherpa_toys as toys
from effort import examples
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.sherpa_onnx.export import ImportReport, export_sherpa_onnx
from tritone.kinds.transducer.part import TransducerPart
from tritone.runtime import open_graph

PADDING = np.log(1e-10)
RATE = 16000
WINDOW, SHIFT = 13, 8  # feature frames of the streaming toys


def fbank(waveform: np.ndarray, *, wenet: bool = False) -> np.ndarray:
    """Features by the reference tool, as icefall or WeNet has them."""
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = wenet
    options.mel_opts.num_bins = 80
    options.mel_opts.high_freq = 0 if wenet else -400
    extractor = knf.OnlineFbank(options)
    extractor.accept_waveform(RATE, (waveform * (32768 if wenet else 1)).tolist())
    extractor.input_finished()
    rows = [extractor.get_frame(index) for index in range(extractor.num_frames_ready)]
    return np.array(rows, np.float32).reshape(-1, 80)


def noise(samples: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    loudness = np.repeat(10 ** rng.uniform(-3, -0.5, samples // 800 + 1), 800)[:samples]
    return (loudness * rng.normal(0, 1, samples)).astype(np.float32)


def block(waveforms: list[np.ndarray], samples: int) -> dict[str, np.ndarray]:
    """Waveforms as a graph takes them; behind their ends lies something that must not matter."""
    rows = np.full((len(waveforms), samples), 0.5, np.float32)
    for row, waveform in zip(rows, waveforms, strict=True):
        row[: len(waveform)] = waveform
    return {"waveform": rows, "num_samples": np.array([len(each) for each in waveforms])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.transducer(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def stream_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.stream_transducer(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def imported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ImportReport:
    report = export_sherpa_onnx(folder=model, output=tmp_path_factory.mktemp("bundle") / "b")
    assert isinstance(report, ImportReport)
    return report


def run(bundle: Bundle, role: str, feed: dict[str, np.ndarray], *outputs: str) -> list[np.ndarray]:
    return open_graph(bundle.artifact(role), threads=1)(feed, outputs)  # type: ignore[arg-type]


def original(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(path).run(None, feed)


def test_an_encoder_gets_the_features_of_the_reference_tool(model: Path, imported: ImportReport) -> None:
    waveforms = [noise(9000, 1), noise(16000, 2), noise(280, 3), noise(0)]
    feed = block(waveforms, 20000)
    encoder_out, num_frames = run(imported.bundle, "encoder", feed, "encoder_out", "num_frames")
    assert num_frames.tolist() == [14, 25, 1, 0]
    for waveform, row, count in zip(waveforms[:3], encoder_out, num_frames, strict=False):
        feats = fbank(waveform)
        expected, _ = original(model / "encoder.onnx", {"x": feats[None], "x_lens": np.array([len(feats)])})
        np.testing.assert_allclose(row[:count], expected[0], atol=2e-3)


def test_predictor_and_joiner_give_what_the_originals_give(model: Path, imported: ImportReport) -> None:
    contexts = np.array([[-1, 0], [6, 0], [3, 4]])
    (vectors,) = run(imported.bundle, "predictor", {"context": contexts}, "predictor_out")
    np.testing.assert_allclose(vectors, original(model / "decoder.onnx", {"y": contexts})[0], atol=1e-6)
    frames = np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32)
    (logits,) = run(imported.bundle, "joiner", {"encoder_out": frames, "predictor_out": vectors}, "logits")
    expected = original(model / "joiner.onnx", {"encoder_out": frames, "decoder_out": vectors})[0]
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_the_manifest_tells_what_the_folder_does(imported: ImportReport) -> None:
    manifest = imported.bundle.manifest
    assert manifest.kind == "transducer"
    assert (manifest.features.snip_edges, manifest.features.high_freq, manifest.features.sample_scale) == (
        False,
        -400,
        1,
    )
    assert (manifest.encoder.subsampling_rate, manifest.encoder.min_samples, manifest.encoder.output_dim) == (4, 80, 6)
    assert (manifest.part(TransducerPart).context_size, manifest.part(TransducerPart).start) == (2, (-1, 0))
    assert (manifest.vocabulary.units, manifest.vocabulary.unk_id, manifest.vocabulary.blank_id) == ("bpe", 2, 0)
    assert imported.bundle.vocabulary.text([3, 4, 5, 1]) == "AB C"
    assert max(imported.differences.values()) < 1e-4


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("echo")
    toys.echo(folder / "encoder.onnx")
    toys.decoder(folder / "decoder.onnx", dim=80)
    toys.joiner(folder / "joiner.onnx", dim=80)
    toys.tokens(folder)
    return export_sherpa_onnx(folder=folder, output=folder / "b").bundle


@settings(max_examples=examples(30), deadline=None)
@given(lengths=st.lists(st.integers(0, 4000), min_size=1, max_size=3), more=st.integers(0, 900))
def test_features_of_any_lengths_are_those_of_the_reference_tool(echo: Bundle, lengths: list[int], more: int) -> None:
    waveforms = [noise(length, seed) for seed, length in enumerate(lengths)]
    feed = block(waveforms, max(80, *lengths) + more)
    found, counts = run(echo, "encoder", feed, "encoder_out", "num_frames")
    assert counts.tolist() == [(length + 80) // 160 for length in lengths]
    assert found.shape[1] == max(1, *counts)  # the padding of a call is cut off before the network
    for waveform, row, count in zip(waveforms, found, counts, strict=True):
        # Signals shorter than a window are mirrored several times, which no model's shortest utterance needs.
        if len(waveform) >= 280:
            np.testing.assert_allclose(row[:count], fbank(waveform), atol=2e-3)
        np.testing.assert_allclose(row[count:], PADDING, rtol=1e-6)


@pytest.fixture(scope="module")
def stream_echo(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("echo")
    toys.stream_echo(folder / "encoder.onnx", WINDOW, SHIFT)
    toys.decoder(folder / "decoder.onnx", dim=80)
    toys.joiner(folder / "joiner.onnx", dim=80)
    toys.tokens(folder)
    return export_sherpa_onnx(folder=folder, output=folder / "b").bundle


@settings(max_examples=examples(20), deadline=None)
@given(lengths=st.lists(st.integers(400, 6000), min_size=1, max_size=3))
def test_streams_get_the_features_of_whole_utterances_and_then_padding(stream_echo: Bundle, lengths: list[int]) -> None:
    streaming = stream_echo.manifest.streaming
    assert streaming is not None
    assert streaming.flush_samples is not None
    window, shift, lead = streaming.window_samples, streaming.shift_samples, streaming.lead_samples
    waveforms = [noise(length, seed) for seed, length in enumerate(lengths)]
    steps = [len(range(0, length + streaming.flush_samples, shift)) for length in lengths]
    signals = np.zeros((len(lengths), lead + max(steps) * shift + window), np.float32)
    for signal, waveform in zip(signals, waveforms, strict=True):
        signal[lead : lead + len(waveform)] = waveform
    states = {state.name: np.zeros((len(lengths), *state.shape), state.dtype) for state in streaming.states}
    found = []
    graph = open_graph(stream_echo.artifact("streaming_encoder"), threads=1)
    for step in range(max(steps)):
        start = step * shift
        valid = np.clip(lead + np.array(lengths) - start, 0, window)
        feed = {"waveform": signals[:, start : start + window], "num_samples": valid, **states}
        encoded, counts, *nexts = graph(feed, ["encoder_out", "num_frames", *(f"next_{name}" for name in states)])
        assert counts.tolist() == [SHIFT] * len(lengths)
        found.append(encoded)
        states = dict(zip(states, nexts, strict=True))
    for row, (waveform, count) in enumerate(zip(waveforms, steps, strict=True)):
        given = np.concatenate([step[row] for step in found[:count]])
        feats = fbank(waveform)
        # All audio comes out, and steps end when the padding that the model wants behind it has begun a window.
        assert len(feats) + WINDOW - SHIFT <= len(given) < len(feats) + WINDOW
        np.testing.assert_allclose(given[: len(feats)], feats, atol=2e-3)
        np.testing.assert_allclose(given[len(feats) :], PADDING, rtol=1e-6)
    assert states["state1"].tolist() == np.full((len(lengths), 2, 4), max(steps)).tolist()


def test_a_streaming_model_hands_its_states_on_with_the_streams_first(stream_model: Path, tmp_path: Path) -> None:
    report = export_sherpa_onnx(folder=stream_model, output=tmp_path / "b")
    streaming = report.bundle.manifest.streaming
    assert streaming is not None
    assert {state.name: state.shape for state in streaming.states} == {
        "steps": (),
        "state0": (1, toys.DIM),
        "state1": (1, 5),
    }
    assert (streaming.window_samples, streaming.shift_samples) == (160 * 12 + 400, 160 * 8)
    assert (streaming.lead_samples, streaming.flush_samples, streaming.chunk_size) == (120, 160 * 5 - 79, 2)
    assert report.differences["streaming_encoder.onnx"] < 1e-4


@pytest.mark.parametrize("leaking", [False, True])
def test_what_depends_on_padding_is_marked_for_equal_lengths(leaking: bool, tmp_path: Path) -> None:
    report = export_sherpa_onnx(folder=toys.transducer(tmp_path / "m", leaking=leaking), output=tmp_path / "b")
    assert report.bundle.manifest.encoder.equal_lengths is leaking
    assert str(report.leaks["encoder.onnx"]).startswith("padding changes" if leaking else "results do not depend")


def test_what_depends_on_its_mates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="even at equal lengths"):
        export_sherpa_onnx(folder=toys.transducer(tmp_path / "m", mixing=True), output=tmp_path / "b")


def test_a_decoder_without_a_mask_starts_with_blanks(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    toys.decoder(folder / "decoder.onnx", masked=False)
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    assert bundle.manifest.part(TransducerPart) is not None
    assert bundle.manifest.part(TransducerPart).start == (0, 0)
    (vectors,) = run(bundle, "predictor", {"context": np.array([[-1, 0], [0, 0], [6, 0]])}, "predictor_out")
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert np.abs(vectors[0] - vectors[2]).max() > 0.1


def test_precisions_are_found_by_name_and_a_small_network_serves_them_all(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    shutil.copy(folder / "encoder.onnx", folder / "encoder.int8.onnx")
    shutil.copy(folder / "joiner.onnx", folder / "joiner.int8.onnx")
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    found = {(each.role, each.precision): each.files for each in bundle.manifest.artifacts}
    assert found == {
        ("encoder", "fp32"): ("encoder.onnx",),
        ("predictor", "fp32"): ("predictor.onnx",),
        ("joiner", "fp32"): ("joiner.onnx",),
        ("encoder", "int8"): ("encoder.int8.onnx",),
        ("predictor", "int8"): ("predictor.onnx",),
        ("joiner", "int8"): ("joiner.int8.onnx",),
    }
    alone = export_sherpa_onnx(folder=folder, output=tmp_path / "b", precisions=("int8",)).bundle
    assert {each.precision for each in alone.manifest.artifacts} == {"int8"}
    with pytest.raises(ExportError, match="has no encoder in fp16, only in fp32, int8"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b", precisions=("fp16",))
    with pytest.raises(ValueError, match="expected each precision once"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b", precisions=("int4",))  # type: ignore[arg-type]


def test_of_several_models_in_a_folder_one_is_chosen(tmp_path: Path) -> None:
    for suffix in ("-epoch-99-avg-1", "-epoch-99-avg-1-chunk-16"):
        toys.transducer(tmp_path / "m", suffix)
    with pytest.raises(ExportError, match="several models, choose one with --variant: '-epoch-99-avg-1', '-epoch-99"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b")
    report = export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b", variant="-epoch-99-avg-1-chunk-16")
    assert report.bundle.manifest.provenance.sources.keys() == {
        "tokens",
        *(f"{part}-epoch-99-avg-1-chunk-16.onnx" for part in ("encoder", "decoder", "joiner")),
    }
    with pytest.raises(ExportError, match="has no model 'other'"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b", variant="other")


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("model_type", ["zipformer2_ctc", "wenet_ctc"])
def test_ctc_models_get_the_features_they_were_trained_on(model_type: str, normalised: bool, tmp_path: Path) -> None:
    toys.ctc(tmp_path / "model.onnx", model_type, normalised=normalised)
    toys.tokens(tmp_path)
    bundle = export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b").bundle
    assert bundle.manifest.kind == "ctc"
    waveform = noise(12345)
    log_probs, counts = run(bundle, "encoder", block([waveform], 15000), "log_probs", "num_frames")
    feats = fbank(waveform, wenet=model_type == "wenet_ctc")
    scores, lengths = original(tmp_path / "model.onnx", {"x": feats[None], "x_lens": np.array([len(feats)])})
    expected = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    assert counts.tolist() == lengths.tolist()
    np.testing.assert_allclose(log_probs[0, : counts[0]], expected[0], atol=5e-3)


def test_neither_torch_nor_its_exporter_is_needed(model: Path, tmp_path: Path) -> None:
    program = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnxscript", "sentencepiece"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
sys.argv = ["tritone", "export", "sherpa-onnx", {str(model)!r}, "--output", {str(tmp_path / "b")!r}]
from tritone.cli.main import app
app()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "b")
    assert "results do not depend on padding" in done.stderr


def test_graphs_inside_of_nodes_keep_what_they_take_from_around_them(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    output = [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Mul", ["product", factor], ["chosen"])], name, [], output
        )
        for name, factor in (("then", "two"), ("else", "one"))
    }
    nodes = [
        ("Add", ["encoder_out", "decoder_out"], ["sum"]),
        ("MatMul", ["sum", "w"], ["product"]),
        ("ReduceMax", ["sum"], ["most"], {"keepdims": 0}),
        ("Less", ["one", "most"], ["is_large"]),
        ("If", ["is_large"], ["logit"], branches),
    ]
    vector = (toys.FLOAT, ["N", toys.DIM])
    constants = {"w": toys.weights(3, toys.DIM, toys.VOCAB), "one": np.float32(1), "two": np.float32(2)}
    outputs = {"logit": (toys.FLOAT, ["N", toys.VOCAB])}
    path = folder / "joiner.onnx"
    toys.write(path, nodes, {"encoder_out": vector, "decoder_out": vector}, outputs, constants, {})
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    for size in (0.2, 3.0):
        frames, none = np.full((2, toys.DIM), size, np.float32), np.zeros((2, toys.DIM), np.float32)
        (found,) = run(bundle, "joiner", {"encoder_out": frames, "predictor_out": none}, "logits")
        (expected,) = original(path, {"encoder_out": frames, "decoder_out": none})
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def metadata(key: str, value: str | None) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        kept = {entry.key: entry.value for entry in model.metadata_props if entry.key != key}
        helper.set_model_props(model, kept | ({key: value} if value is not None else {}))

    return change


def external(location: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        tensor = next(each for each in model.graph.initializer if each.name in ("w", "table"))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def opset(version: int) -> Callable[[onnx.ModelProto], None]:
    return lambda model: setattr(model.opset_import[0], "version", version)


def foreign_node(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="somebody.else", version=1)
    model.graph.node.add(op_type="Spell", input=[], output=["spelt"], domain="somebody.else")


def lost_output(model: onnx.ModelProto) -> None:
    del model.graph.output[1:]


def double_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE


FAULTS: dict[str, tuple[str, Callable[[onnx.ModelProto], None], str]] = {
    "no vocab_size": ("decoder", metadata("vocab_size", None), "the metadata has no 'vocab_size'.*context_size"),
    "other vocab_size": ("decoder", metadata("vocab_size", "8"), "has 7 tokens, but .*decoder.onnx has 8"),
    "huge number": ("decoder", metadata("vocab_size", "9" * 5000), "vocab_size = '9999.*expected decimal numbers"),
    "large number": ("decoder", metadata("vocab_size", "99999999"), "vocab_size = 99999999; expected 1 to 1048576"),
    "negative number": ("decoder", metadata("context_size", "-2"), "context_size = '-2'; expected decimal numbers"),
    "no context": ("decoder", metadata("context_size", "0"), "context_size = 0; expected 1 to"),
    "long context": ("decoder", metadata("context_size", "17"), "context_size is 17; at most 16"),
    "other context": ("decoder", metadata("context_size", "3"), "fails when it is run with y"),
    "other joiner": ("joiner", metadata("joiner_dim", "7"), "joiner_dim is 7, the encoder gives 6"),
    "weights elsewhere": ("encoder", external("../secret.bin"), r"takes weights from '\.\./secret\.bin'"),
    "absolute weights": ("joiner", external("/etc/passwd"), "takes weights from '/etc/passwd'"),
    "weights missing": ("encoder", external("weights.bin"), "cannot read .*encoder.onnx or its weights"),
    "old opset": ("encoder", opset(11), "is written in opset 11; at least 13"),
    "foreign operator": ("encoder", foreign_node, "needs operators of somebody.else"),
    "lengths missing": ("encoder", lost_output, "this is not the interface of upstream's export-onnx scripts"),
    "doubles": ("encoder", double_input, "first should come features, float32|not a valid ONNX graph"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folders_that_are_not_what_they_say_are_refused(fault: str, model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    (tmp_path / "secret.bin").write_bytes(bytes(4 * toys.BINS * toys.DIM))
    part, change, message = FAULTS[fault]
    path = folder / f"{part}.onnx"
    graph = onnx.load(path)
    change(graph)
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(ExportError, match=message):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


STREAM_FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "no window": (metadata("T", None), "the metadata has no 'T'"),
    "other window": (metadata("T", "14"), r"T is 14 by the metadata, the graph takes x: float \(any, 13, 80\)"),
    "shift beyond the window": (metadata("decode_chunk_len", "14"), "decode_chunk_len is 14, more than the window"),
    "other state": (metadata("rnn_hidden_size", "4"), r"state1: float \(1, any, 5\) should be float \(1, any, 4\)"),
    "other type": (
        metadata("model_type", "ebranchformer"),
        "type 'ebranchformer'; those .* zipformer2, zipformer, con",
    ),
    "other states": (metadata("model_type", "conformer"), "the metadata has no 'left_context'"),
    "other features": (metadata("feature", "whisper"), "type 'lstm', takes other features than Kaldi's fbank: whisper"),
    "state lost": (lost_output, "hands on 2 states and gives back 0; by its metadata a lstm has 2"),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_streaming_models_are_held_against_their_metadata(fault: str, stream_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stream_model, tmp_path / "m")
    change, message = STREAM_FAULTS[fault]
    graph = onnx.load(folder / "encoder.onnx")
    change(graph)
    (folder / "encoder.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ExportError, match=message):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")


def test_states_are_limited_and_have_names_of_their_own(stream_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stream_model, tmp_path / "m")
    toys.stream_encoder(folder / "encoder.onnx", hidden=2**20, metadata={"rnn_hidden_size": 2**20})
    graph = onnx.load(folder / "encoder.onnx")
    for tensor in graph.graph.input[2], graph.graph.output[2]:
        tensor.type.tensor_type.shape.dim[0].dim_value = 2**10
    metadata("num_encoder_layers", str(2**10))(graph)
    graph.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2**10
    (folder / "encoder.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(ExportError, match=r"a stream would keep 429\d+ bytes of states; at most 268435456"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    toys.stream_encoder(folder / "encoder.onnx")
    graph = onnx.load(folder / "encoder.onnx")
    for node in graph.graph.node:
        node.input[:] = ["next_steps" if name == "state0" else name for name in node.input]
    graph.graph.input[1].name = "next_steps"
    (folder / "encoder.onnx").write_bytes(graph.SerializeToString())
    streaming = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle.manifest.streaming
    assert streaming is not None
    assert [state.name for state in streaming.states] == ["steps", "state.next_steps", "state1"]


def test_vectors_of_the_metadata_have_a_number_for_every_stack(stream_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stream_model, tmp_path / "m")
    graph = onnx.load(folder / "encoder.onnx")
    keys = ("query_head_dims", "value_head_dims", "num_heads", "num_encoder_layers", "cnn_module_kernels")
    numbers = {"model_type": "zipformer2", "T": "13", "decode_chunk_len": "8", "left_context_len": "4,4"}
    numbers |= dict.fromkeys(keys, "1,1") | {"encoder_dims": "8,8"}
    for changed, message in (
        ({"num_heads": "1"}, "the metadata has 1 numbers for num_heads; expected 2"),
        ({"encoder_dims": ",".join(["8"] * 9000)}, "more than 64 numbers for encoder_dims"),
        ({"num_encoder_layers": "1000000,1"}, "has 6000006 states; at most 1024"),
        ({}, "hands on 2 states and gives back 2; by its metadata a zipformer2 has 14"),
    ):
        helper.set_model_props(graph, numbers | changed)
        (folder / "encoder.onnx").write_bytes(graph.SerializeToString())
        with pytest.raises(ExportError, match=message):
            export_sherpa_onnx(folder=folder, output=tmp_path / "b")


def test_a_graph_for_one_stream_alone_is_refused(tmp_path: Path) -> None:
    folder = toys.stream_transducer(tmp_path / "m", batch=1)
    with pytest.raises(ExportError, match="takes batches of 1 alone; export it with a free batch"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")


def test_other_folders_are_named_for_what_they_are(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot read the folder"):
        export_sherpa_onnx(folder=tmp_path / "absent", output=tmp_path / "b")
    (tmp_path / "m").mkdir()
    with pytest.raises(ExportError, match="holds no model: it needs encoder"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b")
    shutil.copy(model / "encoder.onnx", tmp_path / "m" / "encoder.onnx")
    shutil.copy(model / "decoder.onnx", tmp_path / "m" / "decoder.onnx")
    with pytest.raises(ExportError, match=r"'' has .*encoder.* and no joiner.*such as Canary"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b")
    shutil.copy(model / "joiner.onnx", tmp_path / "m" / "joiner.onnx")
    with pytest.raises(ExportError, match="there is no token table"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b")
    (tmp_path / "m" / "encoder.onnx").write_bytes(b"\0" * 100)
    toys.tokens(tmp_path / "m")
    with pytest.raises(ExportError, match=r"not an ONNX graph|not a valid ONNX graph"):
        export_sherpa_onnx(folder=tmp_path / "m", output=tmp_path / "b")


def test_other_ctc_models_are_refused_by_name(tmp_path: Path) -> None:
    toys.ctc(tmp_path / "model.int8.onnx", "tdnn")
    toys.tokens(tmp_path)
    with pytest.raises(ExportError, match=r"type 'tdnn'; CTC models .* are zipformer2_ctc, wenet_ctc"):
        export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b")


def test_symbols_of_the_lexicon_behind_the_table_are_left_out(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "m")
    toys.tokens(folder, [*toys.TOKENS, "#0", "#1"])
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    assert bundle.vocabulary.tokens == tuple(toys.TOKENS)
    toys.tokens(folder, [*toys.TOKENS, "more"])
    with pytest.raises(ExportError, match=r"has 8 tokens, but .* has 7"):
        export_sherpa_onnx(folder=folder, output=tmp_path / "b")


def test_states_of_the_first_zipformer_are_those_of_its_metadata(tmp_path: Path) -> None:
    """Two stacks; states are returned as they came, but for the lengths, which count steps."""
    layers, dims, attention, lefts, kernels = (1, 2), (8, 6), (4, 6), (5, 3), (3, 5)
    shapes: dict[str, list[int | str]] = {}
    for stack, (count, dim, width, left, kernel) in enumerate(
        zip(layers, dims, attention, lefts, kernels, strict=True)
    ):
        shapes |= {
            f"cached_len_{stack}": [count, "N"],
            f"cached_avg_{stack}": [count, "N", dim],
            f"cached_key_{stack}": [count, left, "N", width],
            f"cached_val_{stack}": [count, left, "N", width // 2],
            f"cached_val2_{stack}": [count, left, "N", width // 2],
            f"cached_conv1_{stack}": [count, "N", dim, kernel - 1],
            f"cached_conv2_{stack}": [count, "N", dim, kernel - 1],
        }
    # In the files all states of a kind come together.
    shapes = dict(sorted(shapes.items(), key=lambda item: list(shapes).index(item[0].rsplit("_", 1)[0] + "_0")))
    specs = {name: (toys.INT64 if "len" in name else toys.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        ("Slice", ["x", "zero", "end", "one", "four"], ["picked"]),
        ("MatMul", ["picked", "w"], ["encoder_out"]),
        *(
            ("Add", [name, "unit"], [f"new_{name}"]) if "len" in name else ("Identity", [name], [f"new_{name}"])
            for name in shapes
        ),
    ]
    constants = {key: np.array([value]) for key, value in (("zero", 0), ("end", 8), ("one", 1), ("four", 4))}
    toys.write(
        tmp_path / "encoder.onnx",
        nodes,
        {"x": (toys.FLOAT, ["N", 15, toys.BINS]), **specs},
        {"encoder_out": (toys.FLOAT, ["N", 2, toys.DIM]), **{f"new_{name}": spec for name, spec in specs.items()}},
        {**constants, "unit": np.int64(1), "w": toys.weights(5, toys.BINS, toys.DIM)},
        {
            "model_type": "zipformer",
            "T": 15,
            "decode_chunk_len": 8,
            "num_encoder_layers": "1,2",
            "encoder_dims": "8,6",
            "attention_dims": "4,6",
            "left_context_len": "5,3",
            "cnn_module_kernels": "3,5",
        },
    )
    toys.decoder(tmp_path / "decoder.onnx")
    toys.joiner(tmp_path / "joiner.onnx")
    toys.tokens(tmp_path)
    bundle = export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b").bundle
    streaming = bundle.manifest.streaming
    assert streaming is not None
    found = {state.name: state.shape for state in streaming.states[1:]}
    assert found == {name: tuple(axis for axis in shape if axis != "N") for name, shape in shapes.items()}
    rng = np.random.default_rng(0)
    states = {state.name: rng.integers(0, 9, (3, *state.shape)).astype(state.dtype) for state in streaming.states}
    waveform = np.zeros((3, streaming.window_samples), np.float32)
    feed = {"waveform": waveform, "num_samples": np.array([0, 500, streaming.window_samples]), **states}
    names = [f"next_{name}" for name in states]
    for name, value in zip(states, run(bundle, "streaming_encoder", feed, *names), strict=True):
        np.testing.assert_array_equal(value, states[name] + (name == "steps" or "len" in name))
