"""A kind of another package: an entry point names it, and it is built and served without a line changed elsewhere."""

import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper

from serving import quiet_options
from tritone.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance
from tritone.client import Client
from tritone.errors import BundleError, InputError, OperatorError
from tritone.kinds import kind_named, kind_of
from tritone.repository import EnsembleOptions, ModelOptions, build_repository, read_repository
from tritone.server import TritonServer

RATE = 8000
MODULE = '''
"""Loudness: the mean square of an utterance, times a factor that a request may choose."""

import numpy as np

from tritone.errors import AudioError, InputError
from tritone.pipelines.graphs.runner import GraphRunner
from tritone.pipelines.isolation import prepared, with_options
from tritone.kinds import FLOAT32, WAVEFORMS, Kind
from tritone.pipelines.wire import Tensor
from tritone.runtime.graph import TensorSpec


class LoudnessPipeline:
    def __init__(self, bundle, *, placement, max_audio_s, defaults):
        self.runner = GraphRunner(bundle, "encoder", placement)
        self.work = self.runner.work

    def run(self, waveforms, options=None):
        return prepared(self._checked, self._compute, with_options(waveforms, options))

    def warm_up(self):
        self.runner.warm_up_on_silence(1.0, ("power",), len)

    def _checked(self, item):
        if len(item[0]) < 10:
            raise AudioError("a click has no loudness; send at least 10 samples")
        return item

    def _compute(self, jobs):
        powers = np.empty(len(jobs), np.float32)

        def take(indices, outputs):
            powers[list(indices)] = outputs["power"]

        self.runner.run_waveforms([waveform for waveform, _ in jobs], lambda _: ("power",), take)
        return [power * (factor or 1.0) for power, (_, factor) in zip(powers, jobs)]


class LoudnessKind(Kind):
    name = "loudness"
    noun = "a loudness meter"
    does = "it measures loudness"
    usage = "Serve it"
    encoders = {"offline": "encoder"}
    parameters = ("factor",)

    def tensors(self, manifest, role):
        return dict(WAVEFORMS), {"power": TensorSpec(FLOAT32, (None,))}

    def open(self, bundle, **options):
        return LoudnessPipeline(bundle, **options)

    def outputs(self, bundle):
        return (Tensor(name="LOUDNESS", type="FP32", dims=(1,)),)

    def read_options(self, pipeline, parameters, wanted):
        if unknown := set(parameters) - set(self.parameters):
            raise InputError(f"unknown request parameter {unknown}")
        return float(parameters["factor"]) if parameters else None

    def answer(self, results, wanted):
        return {"LOUDNESS": np.array(results, np.float32)[:, None]}


LOUDNESS = LoudnessKind()
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment like this one into which the package was installed: its module, and its kind's entry point."""
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "rest.pth").write_text("\n".join(path for path in sys.path if path), encoding="utf-8")
    info = site / "loudness_kind-1.0.dist-info"
    info.mkdir()
    (site / "loudness_kind.py").write_text(MODULE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loudness-kind\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[tritone.kinds]\nloudness = loudness_kind:LOUDNESS\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "bin" / "python3"))  # whose environment is served
    monkeypatch.delitem(sys.modules, "loudness_kind", raising=False)
    return site


def write_loudness(path: Path) -> Path:
    """A bundle of the kind, by hand: power = sum(waveform²) / num_samples."""
    value, node = helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph(
        [
            node("Mul", ["waveform", "waveform"], ["squares"]),
            node("ReduceSum", ["squares", "axis"], ["total"], keepdims=0),
            node("Cast", ["num_samples"], ["count"], to=TensorProto.FLOAT),
            node("Div", ["total", "count"], ["power"]),
        ],
        "loudness",
        [
            value("waveform", TensorProto.FLOAT, ["batch", "samples"]),
            value("num_samples", TensorProto.INT64, ["batch"]),
        ],
        [value("power", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.array([1]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with BundleWriter(path) as writer:
        onnx.save(model, writer.folder / "encoder.onnx")
        writer.commit(
            Manifest(
                name="meter",
                kind="loudness",
                sample_rate=RATE,
                features=Features(),
                encoder=Encoder(subsampling_rate=1, output_dim=1, min_samples=1),
                artifacts=(writer.artifact("encoder", "encoder.onnx"),),
                provenance=Provenance(family="toy"),
            )
        )
    return path


def asked(client: triton.InferenceServerClient, wave: np.ndarray, **parameters: object) -> triton.InferResult:
    wav = triton.InferInput("WAV", (1, len(wave)), "FP32")
    wav.set_data_from_numpy(wave[None].astype(np.float32))
    lens = triton.InferInput("WAV_LENS", (1, 1), "INT32")
    lens.set_data_from_numpy(np.array([[len(wave)]], np.int32))
    return client.infer("meter", [wav, lens], parameters=parameters or None)


@pytest.mark.usefixtures("package")
def test_a_kind_of_another_package_is_built_and_served(tmp_path: Path) -> None:
    bundle = write_loudness(tmp_path / "meter")
    build_repository([bundle], tmp_path / "repository", options=ModelOptions(queue_delay_ms=0))
    assert [(model.name, model.mode) for model in read_repository(tmp_path / "repository")] == [("meter", "offline")]
    with TritonServer(tmp_path / "repository", quiet_options()) as server:
        client = triton.InferenceServerClient(server.grpc_address)
        tone = np.full(1000, 0.5)
        assert asked(client, tone).as_numpy("LOUDNESS").tolist() == [[0.25]]
        assert asked(client, tone, factor=4).as_numpy("LOUDNESS").tolist() == [[1.0]]
        with pytest.raises(triton.InferenceServerException, match="a click has no loudness"):
            asked(client, tone[:9])
        with pytest.raises(triton.InferenceServerException, match="unknown request parameter"):
            asked(client, tone, volume=11)
        with Client(server.grpc_address) as ours:
            loud, click = ours.infer([tone.astype(np.float32), np.ones(9, np.float32)], parameters={"factor": 4})
        assert loud.get()["LOUDNESS"].tolist() == [1.0]
        assert isinstance(click.error, InputError)


@pytest.mark.usefixtures("package")
def test_what_it_does_not_do_is_said_in_its_own_words(tmp_path: Path) -> None:
    from tritone.pipelines import check_embeds, open_offline

    bundle = write_loudness(tmp_path / "meter")
    for use, told in (
        (open_offline, "is a loudness meter: it measures loudness and writes no text"),
        (check_embeds, "is of kind 'loudness': it measures loudness and makes no embeddings"),
    ):
        with pytest.raises(BundleError, match=told):
            use(Bundle.open(bundle))
    for arguments, told in (
        ({"modes": "streaming"}, "is a loudness meter: .* has no streams"),
        ({"options": ModelOptions(search="prefix-beam")}, "is a loudness meter, and --search is for models that write"),
        ({"layout": EnsembleOptions()}, "is a loudness meter, of which there are no ensembles"),
    ):
        with pytest.raises(BundleError, match=told):
            build_repository([bundle], tmp_path / "repository", **arguments)


def test_a_kind_that_is_not_installed_is_an_error_that_lists_those_that_are(tmp_path: Path) -> None:
    bundle = Bundle.open(write_loudness(tmp_path / "meter"))
    with pytest.raises(
        BundleError, match=r"is of kind 'loudness'; known are ctc, .*embedding, .*transducer.*tritone\.kinds"
    ):
        kind_of(bundle)


def test_an_entry_point_that_is_no_kind_names_the_package(package: Path) -> None:
    (package / "loudness_kind.py").write_text("LOUDNESS = 3\n", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"loudness = loudness_kind:LOUDNESS .* must be a Kind .* got 3"):
        kind_named("loudness")
    sys.modules.pop("loudness_kind", None)
    (package / "loudness_kind.py").write_text("import nothing_like_it\n", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"cannot be loaded .* ModuleNotFoundError"):
        kind_named("loudness")


def test_no_package_replaces_a_kind_of_ours(package: Path) -> None:
    info = package / "loudness_kind-1.0.dist-info"
    (info / "entry_points.txt").write_text("[tritone.kinds]\nctc = loudness_kind:LOUDNESS\n", encoding="utf-8")
    assert kind_named("ctc").noun == "a CTC model"


def test_a_package_that_imports_kinds_from_where_they_stood_is_warned_and_works() -> None:
    code = "from tritone.pipelines.kinds.base import Kind; import tritone.kinds; assert Kind is tritone.kinds.Kind"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning: tritone.pipelines.kinds goes with 0.3: use tritone.kinds" in done.stderr
