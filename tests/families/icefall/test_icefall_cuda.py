"""Transducers on a GPU say what they say on the CPU, for whole utterances and streams. Skipped where there is none."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from families.conftest import babble
from families.icefall_models import CONFORMER, PREDICTOR, STREAMED, ZIPFORMER, export_files, write_files
from tritone.bundle.bundle import Bundle
from tritone.families.icefall.model import IcefallConfig
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.streaming import Step
from tritone.runtime import TensorSpec, open_graph
from tritone.search.options import SearchMode, SearchOptions

pytestmark = pytest.mark.gpu

HALVES = {"fp16": 0.02}  # mean differences of encoder_out, whose values are about 1
LENGTHS = (9000, 20000, 1200, 15321, 30000, 500, 16000)
MODES: tuple[SearchMode, ...] = ("greedy", "modified-beam", "fast-beam")


@pytest.fixture(scope="module", params=["conformer-torch", "zipformer-torch", "conformer-torchscript"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    architecture, runtime = request.param.split("-")
    folder: Path = tmp_path_factory.mktemp(request.param)
    (folder / "audio").mkdir()
    # Half precision is slow on a CPU, and what it drifts by is of no interest here.
    soundfile.write(folder / "audio" / "short.wav", babble(8000, seed=1), 16000)
    encoder = CONFORMER if architecture == "conformer" else ZIPFORMER
    return export_files(
        write_files(folder / "files", IcefallConfig(encoder=encoder, predictor=PREDICTOR)),
        folder / "bundle",
        **(STREAMED if architecture == "conformer" else {}),
        runtimes=(runtime,),
        precisions=("fp32", *HALVES),
        check_audio=folder / "audio",
        force=True,
    ).bundle


def texts(bundle: Bundle, device: str, mode: SearchMode) -> list[str]:
    runtime = bundle.runtimes[-1]
    settings = SearchSettings(options=SearchOptions(mode=mode))
    pipeline = open_offline(bundle, placement=Placement(device=device, runtime=runtime), search=settings)
    pipeline.warm_up(1.0)
    return [each.text for each in pipeline.recognize([babble(length, seed=length) for length in LENGTHS])]


def test_graphs_compute_what_they_compute_on_the_cpu(bundle: Bundle) -> None:
    runtime = bundle.runtimes[-1]
    width, context = bundle.manifest.encoder.output_dim, bundle.manifest.find(TransducerPart).context_size  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 50, width)).astype(np.float32)
    feeds = {
        "encoder": (
            {
                "waveform": np.stack([babble(16000, seed=row) for row in range(3)]),
                "num_samples": np.array([16000, 12000, 9001]),
            },
            "num_frames",
        ),
        "predictor": ({"context": rng.integers(-1, 8, (50, context))}, "predictor_out"),
        "joiner": ({"encoder_out": vectors[0], "predictor_out": vectors[1]}, "logits"),
    }
    for role, (inputs, output) in feeds.items():
        path = bundle.artifact(role, runtime, "fp32")  # type: ignore[arg-type]
        for _ in range(4):  # calls are recorded after some
            (found,), (expected,) = open_graph(path, "cuda")(inputs, [output]), open_graph(path)(inputs, [output])
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_stream_states_on_the_device_are_those_of_the_cpu(bundle: Bundle) -> None:
    streaming = bundle.manifest.streaming
    if streaming is None:
        pytest.skip("a model for whole utterances")
    path = bundle.artifact("streaming_encoder", bundle.runtimes[-1], "fp32")
    specs = {state.name: TensorSpec(np.dtype(state.dtype), state.sizes(0)) for state in streaming.states}
    found = []
    for device in ("cpu", "cuda"):
        slots = open_graph(path, device, split_calls=False).slots(specs, 4)
        slots.reserve(3)
        for slot in range(4):
            slots.clear(slot)
        steps = []
        for step in range(5):
            chosen = [step % 4, (step + 1) % 4, (step + 2) % 4]
            waveform = np.stack([babble(streaming.window_samples, seed=10 * step + row) for row in chosen])
            inputs = {"waveform": waveform, "num_samples": np.full(3, streaming.window_samples)}
            steps.append(slots(chosen, inputs, ["encoder_out"])[0].copy())
        found.append(np.stack(steps))
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_utterances_are_searched_as_on_the_cpu(bundle: Bundle, mode: SearchMode) -> None:
    pytest.importorskip("numba")
    found, expected = texts(bundle, "cuda", mode), texts(bundle, "cpu", mode)
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= 1
    assert any(expected)


def test_streams_keep_their_states_on_the_device(bundle: Bundle) -> None:
    if not bundle.has("streaming_encoder"):
        pytest.skip("a model for whole utterances")
    pytest.importorskip("numba")
    heard = []
    for device in ("cpu", "cuda"):
        pipeline = open_streaming(
            bundle, placement=Placement(device=device, runtime=bundle.runtimes[-1]), capacity=8, max_batch=4
        )
        pipeline.warm_up()
        for _ in range(2):  # slots are used again
            slots = [pipeline.open() for _ in LENGTHS]
            waveforms = [babble(length, seed=length) for length in LENGTHS]
            for start in range(0, max(LENGTHS), 2500):
                pieces = [(slot, wave[start : start + 2500]) for slot, wave in zip(slots, waveforms, strict=True)]
                pipeline.advance([Step(slot, piece) for slot, piece in pieces if len(piece)])
            last = pipeline.advance([Step(slot, np.zeros(0, np.float32), True) for slot in slots])
        heard.append([each.text for each in last])
    assert sum(one != other for one, other in zip(*heard, strict=True)) <= 1


@pytest.mark.parametrize("precision", HALVES)
def test_half_precisions_are_close(bundle: Bundle, precision: str) -> None:
    runtime = bundle.runtimes[-1]
    inputs = {
        "waveform": np.stack([babble(16000, seed=row) for row in range(3)]),
        "num_samples": np.array([16000, 12000, 9001]),
    }
    gpu = open_graph(bundle.artifact("encoder", runtime, precision), "cuda")  # type: ignore[arg-type]
    cpu = open_graph(bundle.artifact("encoder", runtime, "fp32"))  # type: ignore[arg-type]
    found, frames = gpu(inputs, ["encoder_out", "num_frames"])
    expected, count = cpu(inputs, ["encoder_out", "num_frames"])
    np.testing.assert_array_equal(frames, count)
    for row, valid in enumerate(count):
        assert np.abs(found[row, :valid] - expected[row, :valid]).mean() < HALVES[precision]
