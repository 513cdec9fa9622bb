"""The runtime `torch` behind a real Triton: whole utterances and streams, and models that cannot start."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import toy
from serving import Ask, RawClient, batches_of, quiet_options
from tritone import preparing
from tritone.backend.settings import Settings
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.client import Client
from tritone.errors import BundleError, ServerSetupError
from tritone.paths import CACHE
from tritone.repository import ModelOptions, build_repository, runtimes_of
from tritone.repository.config import from_text
from tritone.server import TritonServer, checks
from tritone.server.checks import check_gpu, check_runtime, run_checks
from waiting import until

WORDS = ["one", "two two", "three", "a", "zero 0", "nine nine nine", "x"]


@pytest.fixture(scope="module")
def both(toy_bundle_of_both: Path) -> Path:
    return toy_bundle_of_both


@pytest.fixture(scope="module")
def raw(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    build_repository([both], repository, options=ModelOptions(runtime="torch", threads=1, queue_delay_ms=50))
    with TritonServer(repository, quiet_options()) as running:
        yield RawClient(running.grpc_address)


def test_requests_share_batches_and_get_their_texts(raw: RawClient) -> None:
    answers, batches = batches_of(raw, [Ask(model="toy", wav=toy.toy_waveform(word)) for word in WORDS])
    assert answers == WORDS
    assert batches.total() < len(WORDS)


def test_streams_side_by_side_keep_their_states(raw: RawClient) -> None:
    waveforms, texts = [toy.toy_waveform(word) for word in WORDS], {}
    for start in range(0, max(map(len, waveforms)), 2000):
        asks = {
            index: Ask(
                model="toy-streaming",
                wav=np.ascontiguousarray(waveform[start : start + 2000]),
                stream=100 + index,
                start=start == 0,
                end=start + 2000 >= len(waveform),
            )
            for index, waveform in enumerate(waveforms)
            if start < len(waveform)
        }
        texts |= dict(zip(asks, raw.together(list(asks.values())), strict=True))
    assert [texts[index] for index in range(len(WORDS))] == WORDS


def settings_of(model: Path) -> Settings:
    config = from_text((model / "config.pbtxt").read_text(encoding="utf-8"))
    return Settings.from_parameters({key: value.string_value for key, value in config.parameters.items()})


def test_the_choice_travels_through_the_configuration(both: Path, tmp_path: Path) -> None:
    arguments = ["build", str(both), "--output", str(tmp_path / "repo"), "--runtime", "torch", "--precision", "fp32"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    for name in ("toy", "toy-streaming"):
        settings = settings_of(tmp_path / "repo" / name)
        assert (settings.runtime, settings.precision) == ("torch", "fp32")
    assert runtimes_of(tmp_path / "repo") == {("torch", "cpu")}
    (plain,) = build_repository([both], tmp_path / "plain", modes="offline")
    assert (settings_of(plain.path).runtime, settings_of(plain.path).precision) == ("", "")
    assert runtimes_of(tmp_path / "plain") == {("", "cpu")}


def test_what_the_bundle_does_not_have_is_told_when_it_is_built(both: Path, toy_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no graph for encoder \(torch\).*--runtimes onnxruntime,torch"):
        build_repository([toy_bundle], tmp_path / "repo", options=ModelOptions(runtime="torch"))
    with pytest.raises(BundleError, match=r"no graph for encoder \(fp16\)"):
        build_repository([both], tmp_path / "repo", options=ModelOptions(precision="fp16"))
    assert not (tmp_path / "repo").exists()
    wrong = CliRunner().invoke(app, ["build", str(both), "--output", str(tmp_path / "repo"), "--runtime", "abacus"])
    assert wrong.exit_code == 2
    assert "runtime must be one of onnxruntime, torch" in wrong.output.replace("\n", " ").replace("│", " ")


def test_a_gpu_that_only_torch_can_use_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidiactl").touch()
    reasons = {"onnxruntime": "onnxruntime is without CUDA", "torch": None, "torchscript": "torch is too old"}
    reasons["tensorrt"] = "TensorRT is not installed"
    monkeypatch.setattr(checks, "obstacle", lambda runtime, device: reasons[runtime] if device == "cuda" else None)
    assert check_gpu(tmp_path / "absent").seen == "no NVIDIA GPU: models run on the CPU"
    assert (check_gpu(tmp_path / "nvidiactl").status, check_gpu(tmp_path / "nvidiactl").seen) == (
        "ok",
        "NVIDIA GPU, with runtime torch",
    )
    assert check_runtime("", "gpu").status == "ok"
    assert check_runtime("onnxruntime", "cpu").status == "ok"
    told = check_runtime("onnxruntime", "gpu")
    assert (told.status, told.fix) == ("broken", "onnxruntime: onnxruntime is without CUDA.")
    assert check_runtime("abacus", "cpu").status == "broken"


def test_a_repository_for_gpus_does_not_start_where_nothing_can_use_one(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "obstacle", lambda runtime, device: f"no {device} here" if device == "cuda" else None)
    build_repository([both], tmp_path / "repo", options=ModelOptions(device="gpu", runtime="torch"))
    assert "broken" in {check.status for check in run_checks(runtimes=runtimes_of(tmp_path / "repo"))}
    with pytest.raises(ServerSetupError, match=r"runtime torch: cannot run on the GPU. torch: no cuda here"):
        TritonServer(tmp_path / "repo", quiet_options()).__enter__()


def test_the_bundle_of_a_served_model_is_whole(both: Path, tmp_path: Path) -> None:
    (model,) = build_repository([both], tmp_path / "repo", modes="offline", options=ModelOptions(runtime="torch"))
    Bundle.open(model.path / "1" / "bundle").verify()


@pytest.mark.slow
def test_a_served_model_answers_while_it_is_compiled_and_is_ready_at_once_the_next_time(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    seconds = len(toy.toy_waveform("three")) / toy.SAMPLE_RATE
    options = ModelOptions(runtime="torch", threads=1, compile=f"2x{seconds:.2f}")
    build_repository([both], tmp_path / "repository", modes="offline", options=options)
    asks = [Ask(model="toy", wav=toy.toy_waveform("three"))]

    def started() -> list[str]:
        """What the model still prepares when it answers first, and at last."""
        with TritonServer(tmp_path / "repository", quiet_options()) as running:
            assert running.preparing is not None
            links = preparing.publish(running.preparing, [running.options.grpc_port])
            raw, seen = RawClient(running.grpc_address), []
            while "ready" not in seen:
                assert raw.together(asks) == ["three"]
                control = Client(running.grpc_address, key=running.options.key).control
                seen += [each.preparing for each in control.states("toy") if each.preparing not in seen]
                time.sleep(0.1)  # leaves the cores to the compilers
            assert raw.together(asks) == ["three"]
            for link in links:
                link.unlink()
            return seen

    assert started()[0] == "compiling 0 of 1"
    assert len([*(tmp_path / "cache" / "compiled").rglob("*.pt2")]) == 1
    assert started()[-1] == "ready"


@pytest.mark.slow
def test_a_model_that_is_stopped_while_it_is_compiled_ends_with_its_compilers(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    build_repository(
        [both], tmp_path / "repository", modes="offline", options=ModelOptions(runtime="torch", compile="2x1,1x2,2x3")
    )
    with TritonServer(tmp_path / "repository", quiet_options()) as running:

        def compiling() -> list[psutil.Process]:
            below = psutil.Process(running.pid).children(recursive=True)
            return [each for each in below if "tritone.runtime.torch.compiling" in each.cmdline()]

        compilers = until(compiling, 120)
        start = time.monotonic()
    assert time.monotonic() - start < 30
    assert psutil.wait_procs(compilers, timeout=60)[1] == []
