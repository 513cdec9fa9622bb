"""What an exported icefall model promises, and what cannot be exported."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sentencepiece
import soundfile
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from effort import TORCH
from families.conftest import babble
from families.icefall_models import (
    CHUNK,
    CONFORMER,
    LEFT,
    PREDICTOR,
    RIGHT,
    TOKENS,
    Files,
    export_files,
    write_files,
)
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError, InputError
from tritone.families.export.drift import read_recordings
from tritone.families.export.exportable import follow
from tritone.families.export.joiner import JoinerGraph
from tritone.families.export.report import ExportReport
from tritone.families.export.transducer_drift import TransducerDrift
from tritone.families.icefall.checkpoint import load_model
from tritone.families.icefall.export import export_icefall
from tritone.families.icefall.graphs import (
    PADDING,
    OfflineGraph,
    PredictorGraph,
    StreamingGraph,
    make_fbank,
)
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.sherpa_layout import export_sherpa_layout
from tritone.families.icefall.tokens import describe, read_table
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import open_graph

SCRIPT = pytest.param("script", marks=pytest.mark.slow)
ROLES = ["encoder", "streaming_encoder", "predictor", "joiner"]
Reports = Mapping[str, ExportReport]


@pytest.fixture
def network(icefall_reports: Reports) -> IcefallModel:
    """The model of the transducer bundles."""
    return load_model([icefall_reports["onnx"].bundle.path.parent / "conformer" / "pretrained.pt"], causal=True)


def feed(lengths: Sequence[int], filler: float = 0.5) -> dict[str, np.ndarray]:
    waveform = np.full((len(lengths), max(lengths)), filler, np.float32)
    for row, length in zip(waveform, lengths, strict=True):
        row[:length] = babble(length, seed=length)
    return {"waveform": waveform, "num_samples": np.array(lengths)}


def test_the_manifest_tells_what_serving_must_know(icefall_reports: Reports) -> None:
    manifest = icefall_reports["onnx"].bundle.manifest
    assert manifest.kind == "transducer"
    assert (manifest.part(TransducerPart).context_size, manifest.part(TransducerPart).start) == (2, (-1, 0))
    features = manifest.features
    assert (features.num_mel_bins, features.high_freq, features.snip_edges, features.sample_scale) == (
        80,
        -400,
        False,
        1,
    )
    assert (manifest.encoder.subsampling_rate, manifest.encoder.output_dim) == (4, PREDICTOR.joiner_dim)
    assert manifest.encoder.min_samples == 7 * 160 - 80, "the shortest with 7 centred frames"
    vocabulary = manifest.vocabulary
    assert (vocabulary.size, vocabulary.units, vocabulary.blank_id) == (len(TOKENS), "bpe", 0)
    assert (vocabulary.unk_id, vocabulary.sos_id, vocabulary.eos_id) == (2, 1, 1)
    assert icefall_reports["onnx"].bundle.vocabulary.tokens == tuple(TOKENS), "without #0 and #1"
    pad, streaming = (RIGHT + 2) * 4 + 3, manifest.streaming
    assert streaming is not None
    assert not streaming.flexible
    assert (streaming.chunk_size, streaming.left_chunks) == (CHUNK, LEFT // CHUNK)
    assert streaming.window_samples == (CHUNK * 4 + pad - 1) * 160 + 400
    assert streaming.shift_samples == CHUNK * 4 * 160
    assert (streaming.lead_samples, streaming.flush_samples) == (120, 160 * pad - 79)
    assert [each.dtype for each in streaming.states if each.name == "processed"] == ["int64"]


def test_a_report_says_what_was_taken_for_granted(icefall_reports: Reports) -> None:
    assert len(icefall_reports["onnx"].notes) == 1, "it was told all but what a step is"
    assert "taken to have 2,2 heads" in icefall_reports["ctc"].notes[0]


@pytest.mark.parametrize("name", ["onnx", SCRIPT, TORCH])
def test_an_utterance_gives_what_the_network_gives_it_alone(
    icefall_reports: Reports, network: IcefallModel, name: str
) -> None:
    inputs = feed([16000, 1040, 9000, 12345, 500, 0])
    outputs = ["encoder_out", "num_frames"]
    found, frames = open_graph(icefall_reports[name].bundle.artifact("encoder"), threads=1)(inputs, outputs)
    fbank = make_fbank(80)
    for row, samples in enumerate(inputs["num_samples"].tolist()):
        waveform = torch.from_numpy(inputs["waveform"][row : row + 1, :samples])
        if samples < 1040:
            assert frames[row] == 0
            continue
        with torch.no_grad():
            encoded, count = network.encoder(*fbank(waveform, torch.tensor([samples])))
            expected = network.joiner.project_encoder(encoded)
        assert frames[row] == int(count)
        np.testing.assert_allclose(found[row, : frames[row]], expected[0], atol=1e-4)


@pytest.mark.parametrize("name", ["onnx", SCRIPT])
def test_a_stream_gives_what_the_networks_steps_give_of_the_features_of_the_whole(
    icefall_reports: Reports, network: IcefallModel, name: str
) -> None:
    """Streams that begin at different times and end at any sample, each flushed; audio of no frame among them."""
    bundle = icefall_reports[name].bundle
    streaming = bundle.manifest.streaming
    assert streaming is not None
    assert streaming.flush_samples is not None
    graph = open_graph(bundle.artifact("streaming_encoder"), threads=1)
    lengths = [9000, 7777, 5000, 79]
    waveforms = [babble(length, seed=length) for length in lengths]
    rows = len(lengths)
    states = {each.name: np.zeros((rows, *each.sizes(0)), each.dtype) for each in streaming.states}
    parts: list[list[np.ndarray]] = [[] for _ in lengths]
    for call in range(max(lengths) // streaming.shift_samples + rows + 2):
        block, num_samples = np.full((rows, streaming.window_samples), 0.3, np.float32), np.zeros(rows, np.int64)
        steps = [call - row for row in range(rows)]
        for row, step in enumerate(steps):
            if step == 0:
                for state in states.values():
                    state[row] = 0
            padded = np.pad(waveforms[row], (streaming.lead_samples, 0))
            piece = padded[max(0, step) * streaming.shift_samples :][: streaming.window_samples]
            block[row, : len(piece)], num_samples[row] = piece, len(piece)
        outputs = ["encoder_out", "num_frames", *(f"next_{each}" for each in states)]
        found, frames, *rest = graph({"waveform": block, "num_samples": num_samples, **states}, outputs)
        states = {each: value.copy() for each, value in zip(states, rest, strict=True)}
        for row, step in enumerate(steps):
            if 0 <= step * streaming.shift_samples < lengths[row] + streaming.flush_samples:
                parts[row].append(found[row, : frames[row]])
    step_network = network.encoder.streaming(CHUNK, LEFT, RIGHT)
    for waveform, found_parts in zip(waveforms, parts, strict=True):
        expected = _encode_in_steps(network, step_network, waveform)
        assert len(found_parts) == len(expected)
        for ours, theirs in zip(found_parts, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


@torch.no_grad()
def _encode_in_steps(network: IcefallModel, step: Any, waveform: np.ndarray) -> list[np.ndarray]:
    """Upstream's way: features of all, padding after them, windows while there are frames."""
    feats, count = make_fbank(80)(torch.from_numpy(np.pad(waveform, (0, 80))[None]), torch.tensor([len(waveform)]))
    frames = int(count)
    feats = F.pad(feats[:, :frames], (0, 0, 0, 10 * step.window_frames), value=PADDING)
    states = [
        torch.zeros(1, *shape, dtype=torch.int64 if name == "processed" else torch.float32)
        for name, shape in step.state_shapes.items()
    ]
    results = []
    for start in range(0, frames + step.pad_frames, step.shift_frames):
        valid = torch.tensor([min(max(0, frames - start), step.window_frames)])
        encoded, number, *states = step(feats[:, start : start + step.window_frames], valid, *states)
        results.append(network.joiner.project_encoder(encoded)[0, : int(number)].numpy())
    return results


def test_negative_ids_have_no_vector(icefall_reports: Reports, network: IcefallModel) -> None:
    contexts = np.array([[-1, 0], [-1, -1], [3, 5], [len(TOKENS) - 1, 0]])
    [found] = open_graph(icefall_reports["onnx"].bundle.artifact("predictor"))({"context": contexts}, ["predictor_out"])
    table, conv = (each.weight.detach().numpy() for each in (network.predictor.embedding, network.predictor.conv))
    vectors = np.concatenate([table, np.zeros_like(table[:1])])[contexts]
    hidden = np.maximum(np.einsum("rtc,ct->rc", vectors, conv[:, 0]), 0)
    projection = network.joiner.decoder_proj
    expected = hidden @ projection.weight.detach().numpy().T + projection.bias.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("chunk", "left", "right", "kernel"), [(3, 5, 0, 5), (4, 64, 0, 31), (2, 7, 2, 5), (5, 3, 4, 15), (1, 1, 4, 5)]
)
def test_the_chosen_sizes_are_those_of_the_steps(chunk: int, left: int, right: int, kernel: int) -> None:
    """Of any proportion, and to the last step of the flush, which may begin after all audio."""
    torch.manual_seed(0)
    encoder = replace(CONFORMER, causal=True, kernel=kernel)
    network = IcefallModel.from_config(IcefallConfig(encoder=encoder, predictor=PREDICTOR)).eval()
    graph = StreamingGraph(network, make_fbank(80), "transducer", chunk, left, right).eval()
    assert graph.shift_samples == chunk * 4 * 160
    assert graph.window_samples == ((chunk + 2 + right) * 4 + 2) * 160 + 400
    silent_steps = 0
    for samples in (0, 900, 4321, 8000):
        waveform = babble(samples, seed=samples)
        run = graph.hearing(waveform)
        silent_steps += sum(int(step["num_samples"]) == 0 for step in run.steps)
        states, found = list(run.states.values()), []
        with torch.no_grad():
            for step in run.steps:
                encoded, count, *states = graph(*step.values(), *states)
                found.append(encoded[0, : int(count)])
        expected = _encode_in_steps(network, graph.step, waveform)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert silent_steps or right == 0


@torch.no_grad()
def test_a_ctc_head_is_streamed_with_the_frames_of_its_network(icefall_reports: Reports) -> None:
    bundle = icefall_reports["ctc"].bundle
    model = load_model([bundle.path.parent / "zipformer" / "pretrained.pt"])
    assert model.ctc is not None
    waveform = babble(16000)
    graph = StreamingGraph(model, make_fbank(80), "ctc", CHUNK, LEFT, 0).eval()
    steps = list(follow(graph, open_graph(bundle.artifact("streaming_encoder"), threads=1), graph.hearing(waveform)))
    assert {len(found["log_probs"][0]) for _, found in steps} == {CHUNK // 2}
    feats, count = make_fbank(80)(torch.from_numpy(waveform[None]), torch.tensor([len(waveform)]))
    encoded, _ = model.encoder(feats, count, CHUNK, LEFT)
    expected = model.ctc(encoded)[0]
    streamed = np.concatenate([found["log_probs"][0] for _, found in steps])
    untouched = len(expected) - 2 * CHUNK  # by what comes after the end of the audio
    np.testing.assert_allclose(streamed[:untouched], expected[:untouched], atol=1e-3)


def test_streams_of_a_ctc_head_do_not_depend_on_the_pieces_they_come_in(icefall_reports: Reports) -> None:
    bundle = icefall_reports["ctc"].bundle
    waveforms = [babble(samples, seed=samples) for samples in (16000, 7000, 100)]
    pipeline = open_streaming(bundle, placement=Placement(threads=1))
    together = [pipeline.open() for _ in waveforms]
    whole = pipeline.advance([Step(slot, each, True) for slot, each in zip(together, waveforms, strict=True)])
    for waveform, expected in zip(waveforms, whole, strict=True):
        slot = pipeline.open()
        for start in range(0, len(waveform), 1111):
            [found] = pipeline.advance([Step(slot, waveform[start : start + 1111], start + 1111 >= len(waveform))])
        assert found.text == expected.text
        assert found.tokens == expected.tokens
    assert whole[0].text


def test_a_ctc_head_makes_a_bundle_of_kind_ctc(icefall_reports: Reports) -> None:
    bundle = icefall_reports["ctc"].bundle
    assert (bundle.manifest.kind, bundle.manifest.find(TransducerPart)) == ("ctc", None)
    assert [each.role for each in bundle.manifest.artifacts] == ROLES[:2]
    assert bundle.manifest.encoder.tail_samples == 4800
    model = load_model([bundle.path.parent / "zipformer" / "pretrained.pt"])
    inputs = feed([16000, 9000])
    found, frames = open_graph(bundle.artifact("encoder"))(inputs, ["log_probs", "num_frames"])
    np.testing.assert_allclose(np.exp(found[0, : frames[0]]).sum(axis=1), 1, atol=1e-5)
    with torch.no_grad():
        feats = make_fbank(80)(torch.from_numpy(inputs["waveform"][1:, :9000]), torch.tensor([9000]))
        encoded, _ = model.encoder(*feats)
        assert model.ctc is not None
        np.testing.assert_allclose(found[1, : frames[1]], model.ctc(encoded)[0], atol=1e-4)


def test_graphs_of_a_precision_share_their_weights(icefall_reports: Reports) -> None:
    bundle = icefall_reports["onnx"].bundle
    assert [(each.role, each.precision, each.files[1]) for each in bundle.manifest.artifacts] == [
        *((role, "fp32", "weights.bin") for role in ROLES),
        *((role, "int8", "weights.int8.bin") for role in ROLES),
    ]
    held = []
    for role in ROLES[:2]:
        model = onnx.load(bundle.artifact(role), load_external_data=False)  # type: ignore[arg-type]
        outside = [each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
        held.append({tuple(entry.value for entry in tensor.external_data) for tensor in outside})
    assert len(held[0] & held[1]) > len(held[0] ^ held[1])
    joiner = onnx.load(bundle.artifact("joiner", "onnxruntime", "int8"), load_external_data=False)
    assert "MatMulIntegerToFloat" in {node.op_type for node in joiner.graph.node}


def test_in_int8_every_utterance_is_a_call_of_its_own_length_whatever_comes_with_it(icefall_reports: Reports) -> None:
    bundle = icefall_reports["onnx"].bundle
    pipeline = open_offline(bundle, placement=Placement(precision="int8"))
    graph, blocks, limits = pipeline.runner.graph, pipeline.runner.blocks, pipeline.runner.limits
    assert graph.inputs["waveform"].shape == (1, None)
    lengths = [20011, 16000, 20010, 31999, 20011]
    assert sorted(batch.num_samples for batch in blocks.plan(lengths, limits)) == sorted(lengths)
    waveforms = [babble(length, seed=seed) for seed, length in enumerate(lengths)]
    together = [(each.text, each.confidence) for each in pipeline.recognize(waveforms)]
    assert together == [(each.text, each.confidence) for wave in waveforms for each in pipeline.recognize([wave])]
    assert any(text for text, _ in together)


@pytest.mark.parametrize(
    ("name", "suffix", "frames", "most"),
    [("onnx", "int8.onnx", 600, 0.1), pytest.param("script", "fp16.ts", 40, 0.01, marks=pytest.mark.slow)],
)
def test_drift_of_every_narrow_graph_is_measured_on_real_audio(
    icefall_reports: Reports, name: str, suffix: str, frames: int, most: float
) -> None:
    drifts = icefall_reports[name].drifts
    encoder, predictor, joiner = (drifts[f"{role}.{suffix}"] for role in ("encoder", "predictor", "joiner"))
    assert set(drifts) == {f"{role}.{suffix}" for role in ROLES}
    assert encoder.count == predictor.count == joiner.count > frames  # type: ignore[attr-defined]
    assert all(drift.moved < most for drift in drifts.values())
    assert encoder.moved > 0
    assert name == "script" or predictor.moved < 1e-5, "it stays float32"


def test_drift_of_a_joiner_is_told_along_the_path_of_greedy_search(network: IcefallModel) -> None:
    """Against the distributions on that path, found here frame by frame with the whole joiner of the model."""
    offline = OfflineGraph(network, make_fbank(80), "transducer").eval()
    predictor, joiner = PredictorGraph(network.predictor, network.joiner).eval(), JoinerGraph(network.joiner).eval()
    measure = TransducerDrift(offline, predictor, joiner, (-1, 0), frozenset({0, 2}), len(TOKENS))
    recordings = read_recordings(None, 16000)[:2]
    temperature, moved, frames, spoken = 1.3, 0.0, 0, 0
    with torch.no_grad():
        for waveform in recordings:
            encoded, count = offline(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
            context = [-1, 0]
            for frame in encoded[0, : int(count)]:
                vector = network.joiner.project_predictor(network.predictor(torch.tensor([context])))
                logits = network.joiner(frame[None], vector)[0]
                p, q = torch.softmax(logits, 0), torch.softmax(logits / temperature, 0)
                moved += 0.5 * float((p - q).abs().sum())
                frames += 1
                best = int(logits.argmax())
                if best not in (0, 2):
                    context = [context[1], best]
                    spoken += 1

    class Tempered:
        def __call__(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
            with torch.no_grad():
                return [joiner(*map(torch.from_numpy, inputs.values()))[0].numpy() / temperature]

    drift = measure(joiner, Tempered(), recordings)  # type: ignore[arg-type]
    assert spoken > 5, "the path should not be of blanks alone"
    assert drift.count == frames
    assert drift.changed == 0, "a temperature changes no best token"
    assert drift.moved == pytest.approx(moved / frames, rel=1e-4)


def test_sizes_of_streams_are_counted_in_encoder_frames_whatever_the_network_counts(icefall_reports: Reports) -> None:
    for name, chunk, left in (("onnx", CHUNK, LEFT), ("ctc", CHUNK // 2, LEFT // 2)):
        manifest = icefall_reports[name].bundle.manifest
        assert manifest.streaming is not None
        assert manifest.streaming.chunk_size == chunk, "as --chunk-size said"
        assert manifest.provenance is not None
        assert manifest.provenance.options["left_context"] == left
        told = icefall_reports[name].notes[-1]
        assert f"a streaming step has {chunk} encoder frames ({chunk * 40} ms), sees {left} of the past" in told
        assert (f"upstream, which counts frames of 20 ms, calls that chunk {CHUNK}" in told) == (name == "ctc")


def test_tokens_may_be_given_as_the_folder_that_holds_them(conformer_files: Files, tmp_path: Path) -> None:
    files = Files(conformer_files.checkpoint, conformer_files.tokens.parent)
    bundle = export_files(files, tmp_path / "b", runtimes=("torchscript",), causal=False).bundle
    assert bundle.vocabulary.tokens == tuple(TOKENS)
    provenance = bundle.manifest.provenance
    assert provenance is not None
    assert provenance.sources["tokens"] == sha256(conformer_files.tokens.read_bytes()).hexdigest()
    with pytest.raises(ExportError, match=r"table of tokens not found: .*tokens\.txt"):
        export_files(Files(conformer_files.checkpoint, tmp_path), tmp_path / "c")


@pytest.fixture(scope="module")
def conformer_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("icefall"), IcefallConfig(encoder=CONFORMER, predictor=PREDICTOR))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streaming": True}, r"does not show whether its convolutions are causal.*wrong text"),
        ({"streaming": True, "causal": False}, r"cannot be streamed"),
        ({"chunk_size": 8}, r"add --streaming"),
        ({"head": "ctc"}, r"no CTC head"),
        ({"start_context": [0]}, r"should be 2 token ids, each -1 \(none\) to 18"),
        ({"start_context": [0, 19]}, r"should be 2 token ids"),
        ({"head": "ctc", "start_context": [-1, 0]}, r"a CTC head has none"),
        ({"num_heads": [4]}, r"num_heads cannot be given"),
        ({"average": "running"}, r"taken between two files"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_traced(
    conformer_files: Files, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    given = {"tokens": conformer_files.tokens} | options
    with pytest.raises(ExportError, match=said):
        export_files(Files(conformer_files.checkpoint, given.pop("tokens")), tmp_path / "b", **given)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": None}, r"either tokens.txt .* or bpe.model"),
        ({"tokens": Path("absent")}, r"table of tokens not found: absent"),
        ({"left_context": 8}, r"add --streaming"),
        ({"streaming": True, "left_context": 4097}, r"at most 4096 frames each, got 4097"),
    ],
)
def test_what_no_model_can_have_is_refused_before_one_is_read(
    conformer_files: Files, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    given = {"checkpoint": tmp_path / "absent.pt", "tokens": conformer_files.tokens} | options
    for export in (export_icefall, export_sherpa_layout):
        with pytest.raises(ExportError, match=said):
            export(output=tmp_path / "b", **given)


def test_audio_that_cannot_be_read_is_found_out_before_anything_is_traced(
    conformer_files: Files, tmp_path: Path
) -> None:
    said: list[str] = []
    options = {"precisions": ("fp16",), "check_audio": tmp_path / "absent", "progress": said.append}
    with pytest.raises(InputError, match="absent"):
        export_files(conformer_files, tmp_path / "b", **options)
    assert said == ["reading the checkpoint"]


@pytest.mark.slow
def test_a_graph_that_drifts_too_far_is_refused(conformer_files: Files, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", babble(8000), 16000)
    options: dict[str, Any] = {"runtimes": ("torchscript",), "precisions": ("bf16",), "check_audio": tmp_path}
    with pytest.raises(ExportError, match=r"encoder\.bf16\.ts drifts too far .* the limit is 1e-09"):
        export_files(conformer_files, tmp_path / "b", max_drift=1e-9, **options)
    assert {each.precision for each in Bundle.open(tmp_path / "b").manifest.artifacts} == {"fp32"}
    drifts = export_files(conformer_files, tmp_path / "b", max_drift=1e-9, force=True, **options).drifts
    most = max(drift.moved for drift in drifts.values())
    assert 1e-9 < most < 0.1
    export_files(conformer_files, tmp_path / "at-the-limit", max_drift=most, **options)


def test_the_command_exports_and_says_what_it_took_for_granted(conformer_files: Files, tmp_path: Path) -> None:
    arguments = [
        "--checkpoint",
        conformer_files.checkpoint,
        "--tokens",
        conformer_files.tokens,
        "--start-context",
        "0,0",
    ]
    command = ["export", "icefall", *map(str, arguments), "--runtimes", "torchscript", "--output", str(tmp_path / "b")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'b'}\n"
    assert "note: whether the conformer's convolutions are causal is not given" in result.stderr
    manifest = Bundle.open(tmp_path / "b").manifest
    assert manifest.part(TransducerPart).start == (0, 0)
    assert {each.runtime for each in manifest.artifacts} == {"torchscript"}
    wrong = CliRunner().invoke(app, [*command, "--start-context", "a,b"])
    assert wrong.exit_code == 2


def test_the_command_writes_a_folder_for_sherpa_onnx_that_comes_back_with_the_same_results(
    conformer_files: Files, tmp_path: Path
) -> None:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["export", *map(str, arguments)])

    given = ["--checkpoint", conformer_files.checkpoint, "--tokens", conformer_files.tokens, "--layout", "sherpa-onnx"]
    result = run("icefall", *given, "--output", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'm'}\n"
    assert "note: whether the conformer's convolutions are causal is not given" in result.stderr
    assert run("sherpa-onnx", tmp_path / "m", "--output", tmp_path / "b").exit_code == 0
    bundle = Bundle.open(tmp_path / "b")
    model, inputs = load_model([conformer_files.checkpoint]), feed([9000, 5000])
    assert bundle.vocabulary.tokens == tuple(TOKENS)
    found, frames = open_graph(bundle.artifact("encoder"), threads=1)(inputs, ["encoder_out", "num_frames"])
    offline = OfflineGraph(model, make_fbank(80), "transducer").eval()
    with torch.no_grad():
        expected, counts = offline(*(torch.from_numpy(value) for value in inputs.values()))
    assert frames.tolist() == counts.tolist()
    for ours, theirs, count in zip(found, expected.numpy(), frames, strict=True):
        np.testing.assert_allclose(ours[:count], theirs[:count], atol=1e-3)
    into_a_bundle = run("icefall", *given, "--output", tmp_path / "b")
    assert "is a bundle; name another folder" in into_a_bundle.stderr
    unfit = run("icefall", *given, "--output", tmp_path / "m", "--precision", "fp16")
    assert unfit.exit_code == 2


def table(folder: Path, tokens: Sequence[str]) -> Path:
    path = folder / "tokens.txt"
    path.write_text("".join(f"{token} {id}\n" for id, token in enumerate(tokens)), encoding="utf-8")
    return path


def test_tables_must_fit_the_tensors(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, ["<blk>", "a", "#0", "#12"]), None, 2) == ["<blk>", "a"]
    with pytest.raises(ExportError, match="has 2 tokens, but the model's tensors are for 3"):
        read_table(table(tmp_path, ["<blk>", "a", "#0"]), None, 3)
    with pytest.raises(ExportError, match="token 0 is 'a', but this network takes it for the blank"):
        read_table(table(tmp_path, ["a", "<blk>"]), None, 2)
    with pytest.raises(ExportError, match=r"line 1: expected a token and its id"):
        read_table(table(tmp_path, [""]), None, 1)
    with pytest.raises(ExportError, match="not found"):
        read_table(None, tmp_path / "bpe.model", 2)
    (tmp_path / "bpe.model").write_bytes(b"no model")
    with pytest.raises(ExportError, match="is not a sentencepiece model"):
        read_table(None, tmp_path / "bpe.model", 2)


def test_tokens_come_out_of_a_sentencepiece_model(tmp_path: Path) -> None:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "hello there", "low word"] * 20),
        model_writer=trained,
        vocab_size=16,
        model_type="unigram",
        user_defined_symbols=["<blk>", "<sos/eos>"],
        unk_id=2,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "bpe.model").write_bytes(trained.getvalue())
    tokens = read_table(None, tmp_path / "bpe.model", 16)
    assert tokens[:3] == ["<blk>", "<sos/eos>", "<unk>"]
    assert describe(tokens).units == "bpe"


def test_the_content_of_a_table_tells_how_it_is_written() -> None:
    special = ["<blk>", "<sos/eos>", "<unk>"]
    assert describe([*special, "你", "好"]).units == "char"
    assert describe([*special, "▁A", "B"]).units == "bpe"
    assert describe([*special, "▁ƌŖ", "ƍ"]).units == "byte-bpe"
