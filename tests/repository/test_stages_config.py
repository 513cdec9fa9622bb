"""What Triton is told of ensembles, of their stages, and of where these run."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner

from toy import BINS, TOKENS, toy_waveform, write_toy_bundle
from toy_transducer import write_toy_transducer
from tritone.backend.settings import STAGES
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import State
from tritone.cli.main import app
from tritone.errors import BundleError, InputError, OperatorError, ServerSetupError, TritoneError
from tritone.loadtest.plans.build_options import BuildOptions, parse_option
from tritone.pipelines import open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.stages import DecodingJob, DecodingPipeline, FeaturePipeline
from tritone.repository import (
    EnsembleOptions,
    Instances,
    ModelOptions,
    backends_of,
    build_repository,
    compiled_searches,
    is_all_ours,
    parse_stages,
    read_repository,
    runtimes_of,
    shared_memory_bytes,
)
from tritone.repository.config import model_config
from tritone.repository.ensemble import native_backends
from tritone.repository.instances import AUTO, STREAMS_ON_GPU, USUAL
from tritone.repository.native import natives
from tritone.repository.stage_config import Signature, acoustic_config, ensemble_config
from tritone.runtime import TensorSpec
from tritone.server import TritonServer

CPU, GPU = pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(tmp_path_factory.mktemp("staged") / "toy", stages=True)


@pytest.fixture(scope="module")
def transducer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_transducer(tmp_path_factory.mktemp("staged") / "transducer", streaming=False, stages=True)


def edited(bundle: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return bundle


def with_engine(bundle: Path) -> Path:
    """The toy with an engine for its network, which nothing here could run."""

    def add(manifest: dict[str, Any]) -> None:
        (acoustic,) = (each for each in manifest["artifacts"] if each["role"] == "acoustic")
        engine = {"library": "tensorrt", "version": "10.3.0", "profiles": ["1x2s 4x7s 6x16.7s", "1x16s 1x60s 1x90s"]}
        (bundle / "acoustic.plan").write_bytes((bundle / "acoustic.onnx").read_bytes())
        files = {"files": ["acoustic.plan"], "sha256": acoustic["sha256"][:1]}
        manifest["artifacts"].append({**acoustic, **files, "runtime": "tensorrt", "engine": engine})

    return edited(bundle, add)


def built(bundle: Path, output: Path, layout: EnsembleOptions | None = None, **options: Any) -> dict[str, Any]:
    """The configurations of an ensemble `m`, by what follows the name."""
    layout = layout or EnsembleOptions()
    models = build_repository(
        [bundle], output, names=["m"], modes="offline", options=ModelOptions(**options), layout=layout
    )
    read = {
        each.name: text_format.Parse((each.path / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig())
        for each in models
    }
    return {name.removeprefix("m").removeprefix("-"): config for name, config in read.items()}


def placed(config: Any) -> tuple[int, int, list[int]]:
    (group,) = config.instance_group
    return group.count, group.kind, list(group.gpus)


GPUS = st.lists(st.integers(0, 99), max_size=4, unique=True).map(tuple)


@given(st.integers(1, 9999).map(Instances) | st.builds(Instances, st.integers(1, 9999), st.just("gpu"), GPUS))
def test_what_is_written_of_instances_is_read_back(instances: Instances) -> None:
    place = ",".join(map(str, instances.gpus)) or instances.device
    assert Instances.parse(f"{instances.count}@{place}", Instances(7, "gpu", (5,))) == instances
    assert str(instances) == f"{instances.count}@{place}"


def test_gpus_can_have_different_numbers_of_instances(staged: Path, tmp_path: Path) -> None:
    def groups(config: Any) -> list[Any]:
        return [(each.count, each.kind, list(each.gpus)) for each in config.instance_group]

    configs = built(staged, tmp_path, instances="1@0,2@1,2")
    assert groups(configs["acoustic"]) == [(1, GPU, [0]), (2, GPU, [1, 2])]
    assert placed(configs["decoder"]) == (5, CPU, [])
    told = EnsembleOptions(stages=parse_stages(["acoustic=3@2,1@0"], Instances()))
    assert groups(built(staged, tmp_path, told)["acoustic"]) == [(3, GPU, [2]), (1, GPU, [0])]


def test_places_decide_the_device_and_what_suits_it() -> None:
    assert ModelOptions(instances="2@1,2") == ModelOptions(instances=2, device="gpu", gpus=(1, 2))
    assert ModelOptions(instances="2@cpu") == ModelOptions(instances=2)
    uneven = ModelOptions(instances="1@0,2@1,2", max_streams=10)
    assert (uneven.device, uneven.gpus, uneven.max_batch_size) == ("gpu", (0, 1, 2), USUAL["gpu"].max_batch_size)
    assert uneven.streams_per_instance == 2, "ten streams on five processes"
    assert replace(uneven, threads=1).usual_instances == uneven.usual_instances
    field, value = parse_option("instances", "1@0,2@1,2")
    command = BuildOptions(**{field: value}).build_command("b")  # type: ignore[arg-type]
    assert "--instances 1@0,2@1,2" in command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instances": "1@0,2@0,1"}, "different indices"),
        ({"instances": "1,2@1"}, "only GPUs by their indices can have different numbers"),
        ({"instances": "1@cpu,2@1"}, "only GPUs by their indices can have different numbers"),
        ({"instances": "2@1", "device": "gpu", "gpus": (0,)}, "gpus 0 are of different places"),
        ({"instances": "2@cpu", "device": "gpu"}, "device gpu are of different places"),
        ({"instances": "many"}, "does not say how many instances"),
    ],
)
def test_places_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelOptions(**options)


def test_a_count_alone_is_where_models_are_anyway() -> None:
    assert Instances.parse("3", Instances(1, "gpu", (0, 2))) == Instances(3, "gpu", (0, 2))


@pytest.mark.parametrize("text", ["", "two", "2@", "2@tpu", "@0", "2@0,", "2@-1", "1.5", "2 @ 0", "2@0;1", "99999"])
def test_what_says_no_place_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(ValueError, match=r"COUNT@0,1"):
        Instances.parse(text, Instances())


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["accoustic=2"], "of features, acoustic, decoder"),
        (["2"], r"STAGE=COUNT\[@PLACE\]"),
        (["decoder=0"], "above 0"),
        (["decoder=1@0,0"], "different indices"),
        (["decoder=1", "decoder=2"], "given twice"),
    ],
)
def test_stages_are_told_once_and_by_their_names(texts: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_stages(texts, Instances())


def test_stages_are_where_they_are_told_and_the_decoder_is_on_the_cpu(staged: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"device": "gpu", "gpus": (0, 1), "instances": 2}
    configs = built(staged, tmp_path, **usual)
    assert {stage: placed(configs[stage]) for stage in STAGES} == {
        "features": (2, GPU, [0, 1]),
        "acoustic": (2, GPU, [0, 1]),
        "decoder": (4, CPU, []),
    }
    layout = EnsembleOptions(
        stages=parse_stages(["features=3@cpu", "decoder=1"], ModelOptions(**usual).usual_instances)
    )  # type: ignore[arg-type]
    configs = built(staged, tmp_path, layout, **usual)
    assert placed(configs["features"]) == (3, CPU, [])
    assert placed(configs["decoder"]) == (1, GPU, [0, 1])
    assert runtimes_of(tmp_path) == {("", "cpu"), ("", "gpu")}


def test_the_ensemble_hands_tensors_from_stage_to_stage(staged: Path, tmp_path: Path) -> None:
    configs = built(staged, tmp_path)
    fused = build_repository([staged], tmp_path / "fused", names=["m"], modes="offline")[0].path / "config.pbtxt"
    usual = text_format.Parse(fused.read_text(encoding="utf-8"), pb.ModelConfig())
    whole = configs[""]
    assert whole.platform == "ensemble"
    assert [(each.name, each.data_type, each.dims) for each in (*whole.input, *whole.output)] == [
        (each.name, each.data_type, each.dims) for each in (*usual.input, *usual.output)
    ]
    steps = [(step.model_name, dict(step.input_map), dict(step.output_map)) for step in whole.ensemble_scheduling.step]
    handed = ("num_frames", "log_probs")
    assert steps == [
        ("m-features", {n: n for n in ("WAV", "WAV_LENS", "PCM")}, {n: n for n in ("features", "num_samples")}),
        ("m-acoustic", {n: n for n in ("features", "num_samples")}, {n: n for n in handed}),
        ("m-decoder", {"WAV_LENS": "WAV_LENS", **{n: n for n in handed}}, {n: n for n in ("TRANSCRIPTS", "DETAILS")}),
    ]
    (features, samples) = configs["acoustic"].input
    assert (list(features.dims), features.allow_ragged_batch) == ([-1, BINS], False)
    assert (list(samples.dims), samples.HasField("reshape"), list(samples.reshape.shape)) == ([1], True, [])
    assert [each.allow_ragged_batch for each in configs["decoder"].input] == [False, True, False]


def test_what_the_search_needs_is_handed_on_and_no_more(transducer: Path, tmp_path: Path) -> None:
    decoding = write_toy_bundle(tmp_path / "decoding", streaming=False, decoder=True, stages=True)
    configs = built(decoding, tmp_path / "rescoring", search="rescoring")
    assert [each.name for each in configs["acoustic"].output] == ["num_frames", "log_probs", "encoder_out"]
    assert compiled_searches(tmp_path / "rescoring") == {("ctc", "rescoring")}
    roles = {a.role for a in Bundle.open(tmp_path / "rescoring" / "m-decoder" / "1" / "bundle").manifest.artifacts}
    assert roles == {"decoder"}
    configs = built(transducer, tmp_path / "transducer")
    assert [each.name for each in configs["acoustic"].output] == ["encoder_out", "num_frames"]
    assert compiled_searches(tmp_path / "transducer") == {("transducer", "greedy")}


def test_memory_is_that_of_what_goes_into_and_out_of_each_stage(staged: Path, tmp_path: Path) -> None:
    built(staged, tmp_path, max_batch_size=4, max_audio_s=10.0)
    audio, features, said = 16000 * 4, 100 * BINS * 4, 25 * len(TOKENS) * 4  # bytes a second
    assert shared_memory_bytes(tmp_path) == 4 * 10 * (audio + features + (features + said) + said)


def test_streams_stay_one_model(staged: Path, tmp_path: Path) -> None:
    models = build_repository([staged], tmp_path, names=["m"], layout=EnsembleOptions())
    assert [each.name for each in models] == ["m-features", "m-acoustic", "m-decoder", "m", "m-streaming"]
    assert {each.name: each.mode for each in read_repository(tmp_path)}["m-streaming"] == "streaming"


def test_onnxruntime_of_triton_gets_the_graph_with_its_weights(staged: Path, tmp_path: Path) -> None:
    configs = built(staged, tmp_path, EnsembleOptions(native=True, stages={"acoustic": Instances(2, "gpu", (1,))}))
    acoustic, version = configs["acoustic"], tmp_path / "m-acoustic" / "1"
    assert (acoustic.platform, acoustic.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert sorted(path.name for path in version.iterdir()) == ["model.onnx", "weights.bin"]
    assert (version / "model.onnx").read_bytes() == (staged / "acoustic.onnx").read_bytes()
    assert placed(acoustic) == (2, GPU, [1])
    assert acoustic.HasField("dynamic_batching")
    assert acoustic.version_policy.latest.num_versions == 1
    declared = {each.name: (list(each.dims), each.data_type, each.HasField("reshape")) for each in acoustic.output}
    assert declared == {
        "log_probs": ([-1, len(TOKENS)], pb.TYPE_FP32, False),
        "num_frames": ([1], pb.TYPE_INT64, True),
        "encoder_out": ([-1, 1], pb.TYPE_FP32, False),
    }
    assert is_all_ours(tmp_path)
    assert {each.mode for each in read_repository(tmp_path)} == {"offline", *STAGES}
    assert backends_of(tmp_path) == {"onnxruntime"}
    assert runtimes_of(tmp_path) == {("", "cpu")}, "the GPU is Triton's own business"
    with pytest.raises(ServerSetupError, match=r"backend onnxruntime: .*--acoustic python"):
        TritonServer(tmp_path).start()


def test_what_is_left_open_suits_the_device() -> None:
    on_cpu, on_gpu = ModelOptions(), ModelOptions(device="gpu", gpus=(0, 1))
    assert (on_cpu.instances, on_cpu.max_batch_size, on_cpu.queue_delay_ms) == (1, 32, 5.0)
    assert {name: getattr(on_gpu, name) for name in asdict(USUAL["gpu"])} == asdict(USUAL["gpu"])
    assert on_gpu.usual_instances == Instances(USUAL["gpu"].instances, "gpu", (0, 1))
    assert on_gpu.usual_instances.count > 1
    assert (ModelOptions(device="gpu", instances=1).instances, ModelOptions(instances=AUTO).instances) == (1, 1)
    assert parse_option("instances", "auto") == ("instances", AUTO)


def test_what_is_left_open_suits_streams_on_a_gpu(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)

    def served(**options: Any) -> Any:
        return model_config("m", "streaming", ModelOptions(**options), bundle)

    usual = served(device="gpu")
    assert usual.instance_group[0].count == STREAMS_ON_GPU.instances
    assert usual.max_batch_size == STREAMS_ON_GPU.max_batch_size
    assert int(usual.parameters["max_streams"].string_value) == -(-10_240 // STREAMS_ON_GPU.instances)
    own = served(device="gpu", instances=4, max_batch_size=64, max_streams=256)
    assert (own.instance_group[0].count, own.max_batch_size) == (4, 64)
    assert own.parameters["max_streams"].string_value == "64"
    assert served().parameters["max_streams"].string_value == "256"
    assert "left" not in BuildOptions(device="gpu", instances=2).build_command("b")


@pytest.mark.parametrize(
    ("thousands", "options", "instances"),
    [(2, {}, 6), (3_600, {}, 1), (1_800, {}, 3), (3_600, {"max_batch_size": 64}, 6), (50_000, {}, 1)],
)
def test_streams_with_large_states_have_fewer_processes(
    thousands: int, options: dict[str, Any], instances: int, toy_bundle: Path
) -> None:
    """Recorded steps keep the states of a batch a few times, in each process."""
    bundle = Bundle.open(toy_bundle)
    streaming = bundle.manifest.streaming
    assert streaming is not None
    kept = State(name="kept", shape=(thousands, 1000), dtype="float32")
    large = streaming.model_copy(update={"states": (*streaming.states, kept)})
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"streaming": large}))
    assert ModelOptions(device="gpu", **options).for_streams(bundle).instances == instances
    assert ModelOptions(device="gpu", instances=5, **options).for_streams(bundle).instances == 5
    assert ModelOptions(device="cpu", **options).for_streams(bundle).instances == 1


def test_the_backend_of_pytorch_goes_by_places(staged: Path) -> None:
    bundle = Bundle.open(staged)
    any_frames, counts = TensorSpec(np.dtype(np.float32), (None, None, 64)), TensorSpec(np.dtype(np.int64), (None,))
    signature = Signature(
        {"features": any_frames, "num_samples": counts},
        {"log_probs": any_frames, "num_frames": counts, "encoder_out": any_frames, "best_tokens": counts},
    )
    common: dict[str, Any] = {"backend": natives()["torchscript"]}
    config = acoustic_config("m-acoustic", ModelOptions(), Instances(), bundle, signature, ("num_frames",), **common)
    assert (config.platform, config.default_model_filename) == ("pytorch_libtorch", "model.pt")
    assert [each.name for each in config.input] == ["features__0", "num_samples__1"]
    assert [each.name for each in config.output] == [
        "log_probs__0",
        "num_frames__1",
        "encoder_out__2",
        "best_tokens__3",
    ]
    names = {stage: f"m-{stage}" for stage in STAGES}
    handed = ("num_frames", "best_tokens")
    step = ensemble_config("m", ModelOptions(), names, bundle, signature, handed, **common).ensemble_scheduling.step[1]
    assert dict(step.input_map) == {"features__0": "features", "num_samples__1": "num_samples"}
    assert dict(step.output_map) == {"num_frames__1": "num_frames", "best_tokens__3": "best_tokens"}


def test_an_engine_is_given_what_its_first_profile_has_room_for(tmp_path: Path) -> None:
    bundle = with_engine(write_toy_bundle(tmp_path / "b", streaming=False, stages=True))
    native = EnsembleOptions(native=True)
    configs = built(bundle, tmp_path / "r", native, runtime="", max_audio_s=16.7)
    assert configs["acoustic"].platform == "onnxruntime_onnx", "the bundle's first"
    edited(bundle, lambda manifest: manifest["artifacts"].reverse())
    with pytest.raises(ValueError, match=r"up to 16\.7 s.*120 s.*--max-audio-s 16\.7"):
        built(bundle, tmp_path / "r", native)
    with pytest.raises(ValueError, match=r"on GPUs alone.*--stage acoustic=1@gpu"):
        built(bundle, tmp_path / "r", native, max_audio_s=16.7)
    native = EnsembleOptions(native=True, stages={"acoustic": Instances(1, "gpu")})
    configs = built(bundle, tmp_path / "r", native, max_audio_s=16.7, preferred_batch_sizes=(4, 8))
    assert (configs["acoustic"].platform, configs["acoustic"].default_model_filename) == ("tensorrt_plan", "model.plan")
    assert {name: config.max_batch_size for name, config in configs.items()} == dict.fromkeys(("", *STAGES), 6)
    assert list(configs["acoustic"].dynamic_batching.preferred_batch_size) == [4]
    assert configs["features"].parameters["min_padded_s"].string_value == "2.0"
    assert [each.name for each in configs["acoustic"].output] == ["log_probs", "num_frames", "encoder_out"]
    assert native_backends([bundle], ModelOptions()) == {"tensorrt"}


def test_features_are_padded_to_what_an_engine_takes(staged: Path) -> None:
    features = FeaturePipeline(Bundle.open(staged), placement=Placement(threads=1), max_audio_s=2.9, min_padded_s=2.0)
    lengths = [int(seconds * 16000) for seconds in (0.5, 1.9, 2.0, 2.7, 2.9)]
    jobs = [[np.zeros(each, np.float32)] for each in lengths]
    found = [each["features"].shape[1] for each in features.run(jobs)]
    # Of 16 lengths from 16384 samples to the double, and so on; the longest is not padded to 47104.
    frames = [(samples - 800) // 640 + 1 for samples in (32768, 46400)]
    assert min(found) == found[0] == found[2] == frames[0]
    assert max(found) == found[-1] == frames[1], "not the next standard length, which is longer"
    assert len(set(found)) < len(found)


def test_greedy_search_in_best_tokens_is_that_in_log_probabilities_and_others_are_refused(staged: Path) -> None:
    """Of a large vocabulary, programs for torch hand on a thousandth."""
    bundle = Bundle.open(staged)
    decoding = DecodingPipeline(bundle, ("num_frames", "best_tokens", "best_log_probs"), placement=Placement(threads=1))
    ids = np.array([[TOKENS.index(each) for each in "heello"]])
    said = {
        "num_frames": np.array([6]),
        "best_tokens": ids,
        "best_log_probs": np.full((1, 6), np.log(0.95), np.float32),
    }
    wave = toy_waveform("h")
    (texts,) = decoding.run([DecodingJob(said, [6 * 640 + 160], decoding.searching.options)])
    assert not isinstance(texts, TritoneError)
    (found,) = texts
    assert found.text == "helo"
    (whole,) = open_offline(bundle, placement=Placement(threads=1)).recognize([wave])
    assert found.tokens[0].confidence == pytest.approx(whole.tokens[0].confidence)
    with pytest.raises(InputError, match=r"needs log_probs.*--search prefix-beam"):
        decoding.check(decoding.searching.options.changed({"search": "prefix-beam"}))


def test_class_ids_are_blank_beyond_the_end_and_divide_among_the_rows(staged: Path) -> None:
    decoding = DecodingPipeline(Bundle.open(staged), ("num_frames", "log_probs"), placement=Placement(threads=1))
    log_probs = np.log(np.full((3, 4, len(TOKENS)), 0.01, np.float32) + np.eye(len(TOKENS), dtype=np.float32)[5])
    ids = decoding.class_ids({"log_probs": log_probs, "num_frames": np.array([4, 0, 2])})
    assert ids.dtype == np.int32
    assert ids.tolist() == [[5, 5, 5, 5, 0, 0], [0] * 6, [5, 5, 0, 0, 0, 0]]


def test_bundles_without_what_an_ensemble_needs_are_refused(toy_bundle: Path, transducer: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no graphs for stages.*--stages"):
        built(toy_bundle, tmp_path)
    with pytest.raises(BundleError, match=r"kind transducer.*Leave --tensors out"):
        built(transducer, tmp_path, EnsembleOptions(tensors="jasper"))
    torch_alone = write_toy_bundle(tmp_path / "torch", streaming=False, stages=True)
    edited(torch_alone, lambda manifest: [each.update(runtime="torch") for each in manifest["artifacts"]])
    with pytest.raises(BundleError, match=r"no backend of its own for graphs of torch\..*--acoustic python"):
        built(torch_alone, tmp_path / "r", EnsembleOptions(native=True))
    assert native_backends([torch_alone], ModelOptions()) == set()
    assert not (tmp_path / "r").exists()


def test_the_command_builds_an_ensemble_that_python_runs_where_no_backend_is_found(
    staged: Path, tmp_path: Path
) -> None:
    command = ["build", str(staged), "--output", str(tmp_path), "--mode", "offline", "--layout", "ensemble"]
    done = CliRunner().invoke(app, [*command, "--name", "m", "--stage", "features=2", "--tensors", "jasper"])
    assert done.exit_code == 0, done.output
    assert [line.split("\t")[:2] for line in done.stdout.splitlines()] == [
        ["m-features", "features"],
        ["m-acoustic", "acoustic"],
        ["m-decoder", "decoder"],
        ["m", "offline"],
    ]
    config = text_format.Parse((tmp_path / "m" / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig())
    assert [each.name for each in (*config.input, *config.output)] == ["AUDIO_SIGNAL", "NUM_SAMPLES", "TRANSCRIPT"]
    assert (tmp_path / "m-acoustic" / "1" / "model.py").is_file()
    done = CliRunner().invoke(app, [*command, "--acoustic", "native"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "toy-acoustic" / "1" / "model.onnx").is_file()
    for wrong in (["--stage", "decoder=none"], ["--layout", "fused", "--stage", "decoder=1"], ["--mode", "streaming"]):
        assert CliRunner().invoke(app, [*command, *wrong]).exit_code == 2


def test_limits_of_the_queue_hold_for_every_stage_because_requests_wait_before_the_slowest(
    staged: Path, tmp_path: Path
) -> None:
    configs = built(staged, tmp_path, queue_limit=3, queue_timeout_ms=200)
    for stage in STAGES:
        policy = configs[stage].dynamic_batching.default_queue_policy
        assert (policy.max_queue_size, policy.default_timeout_microseconds) == (3, 200_000), stage


def test_stages_go_when_their_ensemble_is_replaced_unless_another_one_asks_for_them(
    staged: Path, tmp_path: Path
) -> None:
    built(staged, tmp_path)
    shared = tmp_path / "by-hand" / "config.pbtxt"
    shared.parent.mkdir()
    shared.write_text(
        'platform: "ensemble" ensemble_scheduling { step { model_name: "m-features" } }', encoding="utf-8"
    )
    build_repository([staged], tmp_path, names=["m"], modes="offline")
    assert {each.name for each in tmp_path.iterdir()} == {"m", "m-features", "by-hand"}
    built(staged, tmp_path)
    assert {each.name for each in read_repository(tmp_path)} == {"m", *(f"m-{stage}" for stage in STAGES)}


def test_a_stage_and_a_model_of_its_own_do_not_take_the_place_of_each_other(staged: Path, tmp_path: Path) -> None:
    build_repository([staged], tmp_path, names=["m-decoder"], modes="offline")
    with pytest.raises(OperatorError, match="m-decoder is a model of its own, and a stage of an ensemble would"):
        built(staged, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["m-decoder"]
    build_repository([staged], tmp_path, names=["m"], modes="offline", layout=EnsembleOptions(), force=True)
    with pytest.raises(OperatorError, match="m-decoder is a stage of an ensemble, and a model of its own would"):
        build_repository([staged], tmp_path, names=["m-decoder"], modes="offline")


@pytest.mark.parametrize("lines", ['platform: "onnxruntime_onnx"', 'backend: "onnxruntime"'])
def test_a_repository_of_others_needs_the_backend_of_its_platform(tmp_path: Path, lines: str) -> None:
    (tmp_path / "theirs" / "1").mkdir(parents=True)
    (tmp_path / "theirs" / "config.pbtxt").write_text(lines, encoding="utf-8")
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "config.pbtxt").write_text('backend: "python"', encoding="utf-8")
    assert backends_of(tmp_path) == {"onnxruntime"}
