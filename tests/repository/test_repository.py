"""Writing repositories: what Triton is told, and what is never overwritten."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner

from toy import write_toy_bundle
from tritone.backend.settings import Settings
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, OperatorError
from tritone.repository import (
    BuiltModel,
    ModelOptions,
    build_repository,
    is_all_ours,
    read_repository,
    shared_memory_bytes,
)
from tritone.repository.folder import FolderWriter


def config_of(model: BuiltModel) -> pb.ModelConfig:
    return text_format.Parse((model.path / "config.pbtxt").read_text(encoding="utf-8"), pb.ModelConfig())


def test_both_modes_are_built_and_the_streaming_model_has_a_suffix(toy_bundle: Path, tmp_path: Path) -> None:
    offline, streaming = build_repository([toy_bundle], tmp_path / "repo")
    assert (offline.name, offline.mode, streaming.name, streaming.mode) == (
        "toy",
        "offline",
        "toy-streaming",
        "streaming",
    )
    assert read_repository(tmp_path / "repo") == [offline, streaming]
    assert is_all_ours(tmp_path / "repo")


def test_the_shim_is_an_import_and_nothing_else(toy_bundle: Path, tmp_path: Path) -> None:
    for model in build_repository([toy_bundle], tmp_path):
        lines = [line for line in (model.path / "1" / "model.py").read_text(encoding="utf-8").splitlines() if line]
        assert lines[1:] == [f"from tritone.backend.{model.mode} import TritonPythonModel"]


def test_the_offline_config_reads_back_as_it_was_meant(toy_bundle: Path, tmp_path: Path) -> None:
    options = ModelOptions(
        instances=3,
        threads=2,
        max_batch_size=16,
        preferred_batch_sizes=(4, 8),
        queue_delay_ms=2.5,
        queue_limit=99,
        queue_timeout_ms=1500,
        max_audio_s=33.5,
    )
    (model,) = build_repository([toy_bundle], tmp_path, modes="offline", options=options)
    assert config_of(model) == text_format.Parse(
        """
        name: "toy" backend: "python" max_batch_size: 16
        input { name: "WAV" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true optional: true }
        input { name: "WAV_LENS" data_type: TYPE_INT32 dims: 1 }
        input { name: "PCM" data_type: TYPE_INT16 dims: -1 allow_ragged_batch: true optional: true }
        output { name: "TRANSCRIPTS" data_type: TYPE_STRING dims: 1 }
        output { name: "DETAILS" data_type: TYPE_STRING dims: 1 }
        instance_group { count: 3 kind: KIND_CPU }
        model_warmup {
          name: "silence" batch_size: 1 count: 1
          inputs { key: "WAV" value { data_type: TYPE_FP32 dims: 160000 zero_data: true } }
          inputs { key: "WAV_LENS" value { data_type: TYPE_INT32 dims: 1 input_data_file: "WAV_LENS" } }
        }
        dynamic_batching {
          preferred_batch_size: [4, 8]
          max_queue_delay_microseconds: 2500
          default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1500000 max_queue_size: 99 }
        }
        parameters { key: "sample_rate" value { string_value: "16000" } }
        parameters { key: "bundle" value { string_value: "bundle" } }
        parameters { key: "threads" value { string_value: "2" } }
        parameters { key: "max_audio_s" value { string_value: "33.5" } }
        parameters { key: "max_streams" value { string_value: "86" } }
        parameters { key: "max_queued_s" value { string_value: "1333.3" } }
        parameters { key: "idle_timeout_s" value { string_value: "15.0" } }
        parameters { key: "search" value { string_value: "greedy" } }
        parameters { key: "kind" value { string_value: "ctc" } }
        parameters {
          key: "served"
          value { string_value: '{"answers": "transcripts", "searches": ["greedy", "prefix-beam"]}' }
        }
        parameters { key: "beam" value { string_value: "0" } }
        parameters { key: "nbest" value { string_value: "1" } }
        parameters { key: "lm_unit" value { string_value: "auto" } }
        parameters { key: "word_bonus" value { string_value: "0.0" } }
        parameters { key: "timestamps" value { string_value: "true" } }
            parameters { key: "use_itn" value { string_value: "false" } }
        """,
        pb.ModelConfig(),
    )


def test_without_a_queue_limit_there_is_no_queue_policy(toy_bundle: Path, tmp_path: Path) -> None:
    # With one Triton 2.51 pauses for half a second now and then.
    (model,) = build_repository([toy_bundle], tmp_path, modes="offline")
    assert not config_of(model).dynamic_batching.HasField("default_queue_policy")


def test_the_warm_up_reads_a_file_that_says_how_long_it_is(toy_bundle: Path, tmp_path: Path) -> None:
    (model,) = build_repository([toy_bundle], tmp_path, modes="offline", options=ModelOptions(max_audio_s=2))
    (warmup,) = config_of(model).model_warmup
    assert list(warmup.inputs["WAV"].dims) == [32000]
    assert np.fromfile(model.path / "warmup" / "WAV_LENS", "<i4").tolist() == [32000]


def test_the_streaming_config_shares_the_streams_among_the_instances(toy_bundle: Path, tmp_path: Path) -> None:
    options = ModelOptions(device="gpu", gpus=(0, 2), instances=2, max_streams=10, stream_idle_timeout_s=7)
    (model,) = build_repository([toy_bundle], tmp_path, modes="streaming", options=options)
    config = config_of(model)
    (group,) = config.instance_group
    assert (group.kind, list(group.gpus), group.count) == (pb.ModelInstanceGroup.KIND_GPU, [0, 2], 2)
    assert config.parameters["max_streams"].string_value == "3", "ten streams on four processes"
    # Triton must ask the model about more streams than it has slots for, and forget idle ones after the model did.
    assert config.sequence_batching.oldest.max_candidate_sequences > 1000
    assert config.sequence_batching.max_sequence_idle_microseconds > 7_000_000


@pytest.mark.parametrize("mode", ["offline", "streaming"])
def test_the_command_puts_different_numbers_of_instances_on_gpus(toy_bundle: Path, tmp_path: Path, mode: str) -> None:
    words = ["build", toy_bundle, "--output", tmp_path, "--mode", mode, "--instances", "1@0,2@1,2", "--max-streams", 10]
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    (model,) = read_repository(tmp_path)
    groups = config_of(model).instance_group
    gpu = pb.ModelInstanceGroup.KIND_GPU
    assert [(each.count, each.kind, list(each.gpus)) for each in groups] == [(1, gpu, [0]), (2, gpu, [1, 2])]
    if mode == "streaming":
        assert config_of(model).parameters["max_streams"].string_value == "2", "ten streams on five processes"


def test_settings_survive_the_way_through_the_config() -> None:
    settings = Settings(sample_rate=8000, threads=3, max_audio_s=12.25, max_streams=7, idle_timeout_s=0.5)
    assert Settings.from_parameters(settings.to_parameters() | {"EXECUTION_ENV_PATH": "triton's own"}) == settings


def test_settings_of_repositories_that_listed_what_a_model_knows_are_read() -> None:
    before = {"sample_rate": "8000", "searches": "", "languages": "de,en", "decoding": '{"beam": 3}'}
    settings = Settings.from_parameters(before)
    assert json.loads(settings.served) == {"languages": ["de", "en"], "decoding": {"beam": 3}}
    assert json.loads(settings.decoding) == {"beam": 3}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_audio": "3"}, "unknown model parameter 'max_audio'"),
        ({"threads": "many"}, "threads must be a whole number, got 'many'"),
        ({"max_streams": "0"}, "max_streams must be a number above 0"),
        ({"max_audio_s": "inf"}, "max_audio_s must be a number above 0, got inf"),
        ({"idle_timeout_s": "nan"}, "idle_timeout_s must be a number above 0, got nan"),
    ],
)
def test_a_wrong_parameter_is_named(change: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings.from_parameters(Settings(sample_rate=16000).to_parameters() | change)


def test_a_repository_needs_nothing_outside_its_folder(tmp_path: Path) -> None:
    write_toy_bundle(tmp_path / "bundle")
    models = build_repository([tmp_path / "bundle"], tmp_path / "repo")
    (tmp_path / "bundle").rename(tmp_path / "gone")
    for model in models:
        Bundle.open(model.path / "1" / "bundle").verify()


def test_link_points_at_the_bundle(toy_bundle: Path, tmp_path: Path) -> None:
    (model,) = build_repository([toy_bundle], tmp_path, modes="offline", link=True)
    assert (model.path / "1" / "bundle").resolve() == toy_bundle.resolve()
    Bundle.open(model.path / "1" / "bundle").verify()


def test_building_again_replaces_our_own_model_and_leaves_the_others(toy_bundle: Path, tmp_path: Path) -> None:
    build_repository([toy_bundle, toy_bundle], tmp_path, names=["one", "two"], modes="offline")
    (again,) = build_repository(
        [toy_bundle], tmp_path, names=["two"], modes="offline", options=ModelOptions(max_batch_size=3)
    )
    assert config_of(again).max_batch_size == 3
    assert [(model.name, config_of(model).max_batch_size) for model in read_repository(tmp_path)] == [
        ("one", 32),
        ("two", 3),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "no temporary folder is left"


def test_a_model_called_like_the_old_one_of_another_does_not_get_in_its_way(toy_bundle: Path, tmp_path: Path) -> None:
    for _ in range(2):
        build_repository([toy_bundle, toy_bundle], tmp_path, names=["a", "a.old"], modes="offline")
    assert [model.name for model in read_repository(tmp_path)] == ["a", "a.old"]


def test_a_foreign_model_is_replaced_only_by_force(toy_bundle: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "toy" / "1"
    foreign.mkdir(parents=True)
    (foreign / "model.py").write_text("mine = True\n", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"was not written by Tritone.*--force"):
        build_repository([toy_bundle], tmp_path)
    assert (foreign / "model.py").read_text(encoding="utf-8") == "mine = True\n"
    assert [path.name for path in tmp_path.iterdir()] == ["toy"], "nothing was written at all"
    build_repository([toy_bundle], tmp_path, force=True)
    assert "tritone.backend" in (foreign / "model.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", "/abs", ".hidden", "a b", "a\n", "ü", "x" * 201])
def test_a_name_that_is_no_plain_folder_name_is_refused(toy_bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"--name"):
        build_repository([toy_bundle], tmp_path / "repo", names=[name])
    assert not (tmp_path / "repo").exists()


def test_two_models_of_one_name_are_refused(toy_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two models would be named 'toy'"):
        build_repository([toy_bundle, toy_bundle], tmp_path / "repo")
    with pytest.raises(ValueError, match="two models would be named 'a-streaming'"):
        build_repository([toy_bundle, toy_bundle], tmp_path / "repo", names=["a", "a-streaming"])
    assert not (tmp_path / "repo").exists()


def test_a_bundle_without_a_streaming_graph_is_served_offline_or_refused(tmp_path: Path) -> None:
    bundle = write_toy_bundle(tmp_path / "bundle", streaming=False)
    assert [model.mode for model in build_repository([bundle], tmp_path / "repo")] == ["offline"]
    with pytest.raises(BundleError, match=r"no streaming graph.*--streaming"):
        build_repository([bundle], tmp_path / "repo", modes="streaming")


def test_a_broken_bundle_leaves_the_repository_as_it_was(toy_bundle: Path, tmp_path: Path) -> None:
    broken = write_toy_bundle(tmp_path / "broken")
    (broken / "weights.bin").unlink()
    with pytest.raises(BundleError, match=r"weights\.bin"):
        build_repository([toy_bundle, broken], tmp_path / "repo", names=["good", "bad"])
    assert not (tmp_path / "repo").exists()


def test_a_full_disk_is_told_and_leaves_the_repository_as_it_was(
    toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_repository([toy_bundle], tmp_path / "repo")
    before = sorted(path for path in (tmp_path / "repo").rglob("*"))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a", None, "b")

    monkeypatch.setattr(FolderWriter, "write", full)
    with pytest.raises(OperatorError, match=r"cannot write the repository .*: No space left on device\. Free space"):
        build_repository([toy_bundle], tmp_path / "repo")
    assert sorted(path for path in (tmp_path / "repo").rglob("*")) == before


def test_what_is_no_repository_is_explained(toy_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="is not a folder"):
        read_repository(tmp_path / "nothing")
    with pytest.raises(OperatorError, match=r"no folder in it has a config"):
        read_repository(tmp_path)
    with pytest.raises(OperatorError, match="is a bundle"):
        read_repository(toy_bundle)
    with pytest.raises(OperatorError, match="is a bundle; choose another folder"):
        build_repository([toy_bundle], toy_bundle)
    (model, _) = build_repository([toy_bundle], tmp_path)
    with pytest.raises(OperatorError, match="is a single model"):
        read_repository(model.path)
    (model.path / "config.pbtxt").write_text("max_batch_sise: 3", encoding="utf-8")
    with pytest.raises(OperatorError, match=r"config\.pbtxt.*max_batch_sise"):
        read_repository(tmp_path)
    (model.path / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(OperatorError, match=r"config\.pbtxt.*can't decode"):
        read_repository(tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"instances": 0}, "instances must be a number above 0"),
        ({"max_audio_s": float("inf")}, "max_audio_s must be a number above 0, got inf"),
        ({"stream_idle_timeout_s": float("nan")}, "stream_idle_timeout_s must be a number above 0"),
        ({"gpus": (0,)}, "the device is cpu"),
        ({"device": "tpu"}, "device must be cpu or gpu"),
        ({"device": "gpu", "gpus": (1, 1)}, "gpus must be different"),
        ({"max_batch_size": 8, "preferred_batch_sizes": (16,)}, "preferred_batch_sizes must be 1 to"),
        ({"queue_delay_ms": -1}, "queue_delay_ms must be 0 or more"),
        ({"queue_delay_ms": float("inf")}, "queue_delay_ms must be 0 or more, got inf"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ModelOptions(**options)  # type: ignore[arg-type]


def test_shared_memory_is_counted_for_full_batches_of_the_longest_audio(toy_bundle: Path, tmp_path: Path) -> None:
    options = ModelOptions(instances=2, max_batch_size=4, max_audio_s=10)
    build_repository([toy_bundle], tmp_path, options=options)
    (tmp_path / "not a model").mkdir()
    offline = 2 * 4 * 10 * 16000 * 4
    streaming = 2 * 4 * 1 * 16000 * 4
    assert shared_memory_bytes(tmp_path) == offline + streaming


def test_the_command_writes_what_its_options_say(toy_bundle: Path, tmp_path: Path) -> None:
    words = [
        "--name",
        "demo",
        "--mode",
        "offline",
        "--device",
        "gpu",
        "--gpus",
        "1,3",
        "--preferred-batch-sizes",
        "4,8",
    ]
    result = CliRunner().invoke(
        app, ["build", str(toy_bundle), "--output", str(tmp_path), *words, "--max-audio-s", "9"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"demo\toffline\t{tmp_path / 'demo'}\n"
    (model,) = read_repository(tmp_path)
    config = config_of(model)
    assert list(config.instance_group[0].gpus) == [1, 3]
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.parameters["max_audio_s"].string_value == "9.0"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpus", "0"], "device is cpu"),
        (["--instances", "2@x"], "does not say how many instances are to be where"),
        (["--gpus", "a"], "numbers separated"),
        (["--name", "../up"], "--name"),
    ],
)
def test_wrong_usage_of_the_command_exits_with_2(toy_bundle: Path, tmp_path: Path, words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["build", str(toy_bundle), "--output", str(tmp_path / "repo"), *words])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "repo").exists()


def test_a_damaged_bundle_is_refused_when_the_repository_is_built(toy_bundle: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(toy_bundle, damaged)
    graph = Bundle.open(damaged).artifact("encoder")
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(BundleError, match=f"{graph.name} was altered or damaged"):
        build_repository([damaged], tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_repository_that_cannot_be_made_is_named(toy_bundle: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot make the folder /proc/nowhere"):
        build_repository([toy_bundle], "/proc/nowhere")
