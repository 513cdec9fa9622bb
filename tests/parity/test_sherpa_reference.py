"""Results of sherpa-onnx and ours on the same graphs: golden checkpoints in its layout, and hand-written ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import soundfile
import torch

import sherpa_toys as toys
import tritone
from parity.golden_cases import Case
from tritone.bundle.vocabulary import SPACE, read_tokens
from tritone.families.icefall.checkpoint import load_model
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.sherpa_layout import export_sherpa_layout, write_sherpa_layout
from tritone.families.icefall.zipformer import StackConfig, ZipformerConfig
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

pytestmark = pytest.mark.slow

sherpa_onnx = pytest.importorskip("sherpa_onnx")

RATE = 16000
CLIPS = sorted((Path(tritone.__file__).parent / "corpus" / "clips").glob("*.flac"))[:3]
METHODS = {"greedy_search": SearchOptions(), "modified_beam_search": SearchOptions(mode="modified-beam", beam=4)}

DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
GOLDEN_STATES = {"cached_attn": "attn_cache", "cached_conv": "cnn_cache"}

Said = list[tuple[str, float]]


@dataclass(frozen=True)
class Written:
    """A golden checkpoint in sherpa-onnx's layout, and the bundle that was made of it."""

    folder: Path
    recognizer: Any
    streaming: bool
    window_frames: int = 0
    shift_frames: int = 0


@pytest.fixture(scope="module")
def written(icefall_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Written:
    sizes = json.loads((icefall_case.path / "hparams.json").read_text(encoding="utf-8"))
    streaming = bool(sizes["streaming"])
    conformer = "conformer" in sizes["kind"]
    model = load_model([icefall_case.path / "pretrained.pt"], causal=streaming if conformer else None)
    options: dict[str, Any] = {}
    if streaming and conformer:
        # sherpa-onnx counts fbank frames where the model counts encoder frames, and so shows the model more of the past
        # than there is, unless one chunk is all of the past.
        chunk = int(sizes["decode_chunk_size"])
        options = {"chunk_size": chunk, "left_context": chunk, "right_context": int(sizes["right_context"])}
    elif streaming:
        options = {"chunk_size": int(sizes["chunk_size"]), "left_context": int(sizes["left_context_frames"])}
    folder = tmp_path_factory.mktemp("sherpa")
    tokens = read_tokens(icefall_case.path / "tokens.txt")
    write_sherpa_layout(model, folder / "m", tokens, streaming=streaming, check=False, **options)
    report = export_sherpa_onnx(folder=folder / "m", output=folder / "b")
    assert max(report.differences.values()) < 1e-4
    manifest = report.bundle.manifest
    assert not manifest.encoder.equal_lengths
    window, shift = 0, 0
    if manifest.streaming is not None:
        window = (manifest.streaming.window_samples - 240) // 160
        shift = manifest.streaming.shift_samples // 160
    return Written(folder / "m", tritone.load(folder / "b", threads=1), streaming, window, shift)


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    return [soundfile.read(path, dtype="float32")[0] for path in CLIPS]


def files(folder: Path) -> dict[str, Any]:
    parts = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    return {**parts, "tokens": str(folder / "tokens.txt"), "num_threads": 1, "max_active_paths": 4}


def whole(recognizer: Any, waveform: np.ndarray) -> Said:
    stream = recognizer.create_stream()
    stream.accept_waveform(RATE, waveform)
    recognizer.decode_stream(stream)
    return theirs(stream.result.tokens, stream.result.timestamps)


def theirs(tokens: list[str], times: list[float]) -> Said:
    return [(token.replace(" ", SPACE), round(time, 2)) for token, time in zip(tokens, times, strict=True)]


def ours(transcript: Transcript) -> Said:
    return [(token.text, round(token.start_s, 2)) for token in transcript.tokens]


def whole_steps(audio: np.ndarray, window: int, shift: int) -> tuple[np.ndarray, int]:
    """Audio after which both have run the same steps: sherpa-onnx would run no more, we would go on to its end."""
    steps = (len(audio) // 160 - window) // shift + 1
    samples = 160 * ((steps - 1) * shift + window + shift // 2)
    return np.pad(audio, (0, max(0, samples - len(audio))))[:samples], steps


def live_result(recognizer: Any, audio: np.ndarray, steps: int) -> Said:
    stream = recognizer.create_stream()
    stream.accept_waveform(RATE, audio)
    count = 0
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
        count += 1
    assert count == steps
    return theirs(recognizer.tokens(stream), recognizer.timestamps(stream))


@pytest.mark.parametrize("method", METHODS)
def test_results_are_those_of_sherpa_onnx(written: Written, method: str, clips: list[np.ndarray]) -> None:
    if not written.streaming:
        reference = sherpa_onnx.OfflineRecognizer.from_transducer(**files(written.folder), decoding_method=method)
        # All in one batch here, each alone there.
        found = [ours(each) for each in written.recognizer.transcribe(clips, search=METHODS[method])]
        assert found == [whole(reference, clip) for clip in clips]
    else:
        reference = sherpa_onnx.OnlineRecognizer.from_transducer(**files(written.folder), decoding_method=method)
        audio, steps = whole_steps(np.concatenate(clips), written.window_frames, written.shift_frames)
        with written.recognizer.stream(options=METHODS[method]) as live:
            found = [ours(live.accept(audio))]
        assert found == [live_result(reference, audio, steps)]
    assert sum(map(len, found)) > 10


@pytest.mark.parametrize("leaking", [False, True])
def test_a_graph_that_depends_on_padding_gives_the_same_all_the_same(
    leaking: bool, clips: list[np.ndarray], tmp_path: Path
) -> None:
    folder = toys.transducer(tmp_path / "m", leaking=leaking)
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    assert bundle.manifest.encoder.equal_lengths is leaking
    reference = sherpa_onnx.OfflineRecognizer.from_transducer(**files(folder), decoding_method="greedy_search")
    found = [ours(each) for each in tritone.load(bundle.path, threads=1).transcribe(clips)]
    assert found == [whole(reference, clip) for clip in clips]


def test_ctc_results_are_those_of_sherpa_onnx(clips: list[np.ndarray], tmp_path: Path) -> None:
    toys.ctc(tmp_path / "model.onnx")
    tokens = toys.tokens(tmp_path)
    bundle = export_sherpa_onnx(folder=tmp_path, output=tmp_path / "b").bundle
    reference = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(model=str(tmp_path / "model.onnx"), tokens=str(tokens))
    found = [ours(each) for each in tritone.load(bundle.path, threads=1).transcribe(clips)]
    assert found == [whole(reference, clip) for clip in clips]
    assert sum(map(len, found)) > 10


def test_streamed_ctc_results_are_those_of_sherpa_onnx(clips: list[np.ndarray], tmp_path: Path) -> None:
    sizes = {"layers": 1, "heads": 2, "query_size": 4, "value_size": 4, "position_size": 4, "feed_forward": 16}
    stacks = tuple(StackConfig(downsampling=rate, width=16, kernel=7, **sizes) for rate in (1, 2))
    torch.manual_seed(0)
    config = IcefallConfig(
        encoder=ZipformerConfig(stacks=stacks, causal=True), predictor=None, ctc_vocab_size=toys.VOCAB
    )
    model = IcefallModel.from_config(config).eval()
    assert model.ctc is not None
    with torch.no_grad():
        model.ctc[1].weight.normal_()
    folder = tmp_path / "m"
    write_sherpa_layout(model, folder, toys.TOKENS, head="ctc", streaming=True, chunk_size=8, left_context=16)
    bundle = export_sherpa_onnx(folder=folder, output=tmp_path / "b").bundle
    files = {"model": str(folder / "model.onnx"), "tokens": str(folder / "tokens.txt")}
    audio, steps = whole_steps(clips[0], window=29, shift=16)
    with tritone.load(bundle.path, threads=1).stream() as live:
        found = ours(live.accept(audio))
    assert found == live_result(sherpa_onnx.OnlineRecognizer.from_zipformer2_ctc(**files), audio, steps)
    assert len(found) > 5


def test_written_graphs_step_from_state_to_state_as_upstream_does(
    icefall_case: Case, written: Written, tmp_path: Path
) -> None:
    if not written.streaming:
        pytest.skip("a model for whole utterances")
    sizes = json.loads((icefall_case.path / "hparams.json").read_text(encoding="utf-8"))
    conformer, folder = "conformer" in sizes["kind"], written.folder
    if conformer:  # with all of the past that it has in the golden data
        options = {"tokens": icefall_case.path / "tokens.txt", "causal": True, "streaming": True}
        contexts = {key: int(sizes[key]) for key in ("left_context", "right_context")}
        chunk = int(sizes["decode_chunk_size"])
        folder = tmp_path / "m"
        checkpoint = icefall_case.path / "pretrained.pt"
        export_sherpa_layout(checkpoint=checkpoint, output=folder, chunk_size=chunk, **contexts, **options)
    session = onnxruntime.InferenceSession(folder / "encoder.onnx")
    joiner = load_model([icefall_case.path / "pretrained.pt"], causal=True).joiner
    golden = icefall_case.expected
    inputs = {each.name: each for each in session.get_inputs()}
    streams = {name: each.shape.index("N") for name, each in inputs.items()}
    feed = {
        name: np.zeros([1 if axis == "N" else axis for axis in each.shape], DTYPES[each.type])
        for name, each in inputs.items()
    }
    # The longest stream, as long as it has whole windows of audio.
    count = int(golden["num_chunks"])
    longest = golden[f"chunk{count - 1}_stream_ids"][0]
    rows = [np.flatnonzero(golden[f"chunk{k}_stream_ids"] == longest) for k in range(count)]
    whole = [len(row) and golden[f"chunk{k}_x_lens"][row[0]] == written.window_frames for k, row in enumerate(rows)]
    names = [each.name for each in session.get_outputs()]
    compared = 0
    for k, row in enumerate(rows[: [*whole, False].index(False)]):
        feed["x"] = golden[f"chunk{k}_x"][row]
        results = dict(zip(names, session.run(None, feed), strict=True))
        with torch.no_grad():
            expected = joiner.project_encoder(torch.from_numpy(golden[f"chunk{k}_encoder_out"][row])).numpy()
        np.testing.assert_allclose(results["encoder_out"], expected, atol=5e-4)
        feed |= {name.removeprefix("new_"): value for name, value in results.items() if name != "encoder_out"}
        if conformer:
            feed["processed_lens"] += expected.shape[1]
        for name in feed.keys() - {"x"}:
            kept = golden.get(f"chunk{k}_{GOLDEN_STATES.get(name, f'state_{name}')}")
            if kept is not None:
                kept = kept.take(row, axis=streams[name])
                np.testing.assert_allclose(feed[name], kept, atol=5e-4, err_msg=f"{name} after step {k}")
                compared += 1
    assert compared >= 2
