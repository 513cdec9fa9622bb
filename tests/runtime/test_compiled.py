"""Calls of programs that were compiled ahead of time: the cache they are kept in, what is trusted there, and their use.

The compiler itself takes its time, so most tests put something else in its place.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import toy
from tritone import paths
from tritone.bundle.bundle import Bundle
from tritone.errors import OperatorError
from tritone.pipelines.compile import compile_bundle
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.streaming import Step, StreamingPipeline
from tritone.preparing import Preparing
from tritone.runtime import kept, open_graph
from tritone.runtime.cuda import kernels
from tritone.runtime.files.program import read_program
from tritone.runtime.graph import Bucket
from tritone.runtime.torch import compiled, compiler, compiling
from tritone.runtime.torch.compiled import CompiledStore, input_shapes, most_rows, program_digest
from tritone.runtime.torch.graph import TorchGraph

CPU = torch.device("cpu")
OUTPUTS = ("num_frames", "best_tokens")
BUCKET = Bucket(3, 9000)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Loader:
    """In place of torch's: says which file it is of, and how many inputs it was given, in the outputs of a call."""

    def __init__(self, path: str, *_: Any) -> None:
        self.content = int(Path(path).read_text(encoding="utf-8"))

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.tensor([self.content]), torch.tensor([len(inputs)])]


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Loader)


def store_of(path: Path) -> CompiledStore:
    return CompiledStore(read_program(path, CPU), CPU)


def keep(store: CompiledStore, content: str, bucket: Bucket = BUCKET, outputs: Sequence[str] = OUTPUTS) -> Path:
    """Put a call into a store that is a file with a number in it."""
    store.prepare()
    made = store.folder / "made"
    made.write_text(content, encoding="utf-8")
    shapes = input_shapes(store._program.inputs, bucket)
    store.keep(outputs, shapes, made, 1.5)
    return store.place(outputs, shapes)


def feed(rows: int, samples: int) -> dict[str, np.ndarray]:
    return {"waveform": np.zeros((rows, samples), np.float32), "num_samples": np.full(rows, samples)}


@pytest.mark.usefixtures("loader")
def test_calls_of_a_compiled_size_use_it_and_all_others_run_as_they_are(toy_bundle_of_both: Path) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    keep(store_of(path), "77")
    graph = TorchGraph(path, threads=1)
    offered = [Bucket(1, 9000), Bucket(2, 9000), BUCKET]
    assert graph.buckets_for(()) == offered
    given = 2 + len(read_program(path, CPU).constants)  # weights are inputs, shared by all sizes
    assert [array.tolist() for array in graph(feed(3, 9000), ["best_tokens", "num_frames"])] == [[given], [77]]
    assert graph(feed(3, 9000), ["num_frames"])[0].tolist() == [77]  # of those outputs one may do
    assert graph(feed(2, 9000), ["num_frames"])[0].tolist() == [77]  # fewer rows, too
    assert graph(feed(4, 9000), ["num_frames"])[0].shape == (4,)  # but no more
    assert graph(feed(3, 9000), ["num_frames", "log_probs"])[0].shape == (3,)  # which was not compiled
    graph.derive("doubled", ["best_tokens"], lambda found: 2 * found)
    sizes = [graph.buckets_for(each) for each in (["num_frames"], ["doubled"], ["log_probs"], ["doubled", "log_probs"])]
    assert sizes == [offered, offered, [], []]  # calls are padded to those of their outputs alone


def test_compiled_code_is_given_memory_without_gaps(toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Tensor] = []

    class Keeping(Loader):
        def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
            given.extend(inputs)
            return super().run(inputs)

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Keeping)
    path = toy_bundle_of_both / "encoder.pt2"
    keep(store_of(path), "77")
    lines = torch.zeros(1, 9000).expand(3, 9000), torch.full((3, 2), 9000)[:, 0]
    TorchGraph(path, threads=1).function(OUTPUTS)(*lines)
    assert len(given) > 2
    assert all(each.is_contiguous() for each in given)


@pytest.mark.usefixtures("loader")
def test_a_single_row_uses_code_of_its_own(toy_bundle_of_both: Path) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    store = store_of(path)
    keep(store, "3")
    wanted = [compiling.Wanted(OUTPUTS, input_shapes(store._program.inputs, Bucket(rows, 9000))) for rows in (1, 2, 4)]
    assert [each.is_done_by(next(store.calls())[0]) for each in wanted] == [False, True, False]
    keep(store, "1", Bucket(1, 9000))
    graph = TorchGraph(path, threads=1)
    assert [graph(feed(rows, 9000), ["num_frames"])[0].tolist() for rows in (1, 2, 3)] == [[1], [3], [3]]
    assert graph.buckets_for(()) == [Bucket(1, 9000), Bucket(2, 9000), Bucket(3, 9000)]


@pytest.mark.usefixtures("loader")
def test_of_two_compiled_calls_the_one_with_fewer_outputs_is_used(toy_bundle_of_both: Path) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    store = store_of(path)
    keep(store, "1", outputs=["num_frames", "log_probs", "best_tokens"])
    keep(store, "2")
    keep(store, "3", outputs=["num_frames", "best_tokens", "encoder_out"])
    assert TorchGraph(path, threads=1)(feed(3, 9000), ["num_frames"])[0].tolist() == [2]


def test_programs_that_compute_the_same_with_other_weights_share_what_is_compiled(
    toy_bundle_of_both: Path, tmp_path: Path
) -> None:
    encoder, other = (read_program(toy_bundle_of_both / "encoder.pt2", CPU) for _ in range(2))
    (name,) = other.constants
    other.constants[name].mul_(2)  # type: ignore[attr-defined]
    streaming = read_program(toy_bundle_of_both / "streaming_encoder.pt2", CPU)
    assert program_digest(encoder) == program_digest(other)
    assert program_digest(encoder) != program_digest(streaming)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda store, file: file.write_text("78", encoding="utf-8"), "is damaged"),
        (lambda store, file: file.chmod(0o660), "others can write to"),
        (lambda store, file: file.with_suffix(".json").chmod(0o606), "others can write to"),
        (lambda store, file: store.folder.chmod(0o777), "others can write to"),
        (lambda store, file: store.folder.parent.chmod(0o720), "others can write to"),
        (lambda store, file: store.root.chmod(0o702), "others can write to"),
        (lambda store, file: (file.rename(file.parent / "x"), file.symlink_to("x")), "is a link"),
        (lambda store, file: file.unlink(), "cannot be read"),
        (lambda store, file: file.with_suffix(".json").write_text("{}", encoding="utf-8"), "cannot be read"),
        (
            lambda store, file: file.with_suffix(".json").write_text('{"form": 99}', encoding="utf-8"),
            "it is of form 99",
        ),
    ],
)
def test_what_others_could_have_written_or_is_damaged_is_not_run(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, harm: Any, told: str
) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    store = store_of(path)
    harm(store, keep(store, "77"))
    graph = TorchGraph(path, threads=1)
    assert graph.buckets_for(()) == []
    assert told in caplog.text
    assert "it runs as it is" in caplog.text
    assert graph(feed(3, 9000), ["num_frames"])[0].shape == (3,)


@pytest.mark.usefixtures("loader")
def test_what_belongs_to_another_user_is_not_run(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    keep(store_of(path), "77")
    owner = os.geteuid()
    monkeypatch.setattr(compiled.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(kept, "TRUSTED", ())  # root's would be run
    assert TorchGraph(path, threads=1).buckets_for(()) == []
    assert f"belongs to user {owner}, not to {owner + 1}" in caplog.text


@pytest.mark.usefixtures("loader")
def test_what_was_compiled_by_another_torch_is_not_used_and_the_log_says_what_differs(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "stamp_of", lambda device: {"torch": "1.0", "gpu": "Old"})
        keep(store_of(path), "77")
    assert TorchGraph(path, threads=1).buckets_for(()) == []
    assert f"torch 1.0 there, {torch.__version__} here" in caplog.text


def test_without_a_cache_nothing_is_said(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    assert TorchGraph(toy_bundle_of_both / "encoder.pt2", threads=1).buckets_for(()) == []
    assert caplog.text == ""
    assert not cache.exists()


def test_the_cache_is_for_its_user_alone(toy_bundle_of_both: Path, cache: Path) -> None:
    store = store_of(toy_bundle_of_both / "encoder.pt2")
    file = keep(store, "77")
    assert store.root == cache / "compiled"
    assert {path.stat().st_mode & 0o777 for path in (store.root, store.folder.parent, store.folder)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {0o600}
    assert json.loads((file.parent / "stamp.json").read_text(encoding="utf-8")) == kernels.stamp_of(CPU)


def test_a_graph_that_cannot_be_compiled_says_what_can(toy_bundle_of_both: Path) -> None:
    bundle = Bundle.open(toy_bundle_of_both)
    with pytest.raises(OperatorError, match="graphs of runtime onnxruntime are not compiled"):
        compile_bundle(bundle, placement=Placement(runtime="onnxruntime"), sizes="1x1")


def test_a_pipeline_whose_network_cannot_be_compiled_as_asked_runs_as_it_is(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperatorError("no compiler here")

    monkeypatch.setattr(compiling, "compile_calls", fail)
    bundle = Bundle.open(toy_bundle_of_both)
    pipeline = OfflinePipeline(bundle, placement=Placement(threads=1, runtime="torch", compile="1x1"))
    assert "encoder.pt2 runs as it is, not compiled as was asked for: no compiler here" in caplog.text
    assert pipeline.recognize([toy.toy_waveform("hello")])[0].text == "hello"


def test_what_the_cache_has_is_not_compiled_again(toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_bundle_of_both / "encoder.pt2"
    store = store_of(path)
    keep(store, "77")
    monkeypatch.setattr(compiling, "_Crew", None)  # would fail
    wanted = [
        compiling.Wanted(OUTPUTS, input_shapes(store._program.inputs, Bucket(rows, BUCKET.samples))) for rows in (2, 3)
    ]
    compiling.compile_calls(path, CPU, store, wanted)


def test_what_outputs_are_derived_from_is_compiled(toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[compiling.Wanted] = []
    monkeypatch.setattr(compiling, "compile_calls", lambda *args, **_: asked.extend(args[3]))
    graph = TorchGraph(toy_bundle_of_both / "encoder.pt2", threads=1)
    graph.derive("count", ("best_tokens", "num_frames"), lambda tokens, frames: frames)
    graph.compile([BUCKET], ["num_frames", "count", "held:encoder_out"])
    assert asked == [
        compiling.Wanted(("num_frames", "encoder_out", "best_tokens"), {"waveform": (3, 9000), "num_samples": (3,)})
    ]


def test_a_failure_of_the_compiler_is_told_with_what_it_needs(
    toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = read_program(toy_bundle_of_both / "encoder.pt2", CPU)
    store = CompiledStore(program, CPU)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("g++: not found")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    shapes = input_shapes(program.inputs, BUCKET)
    with pytest.raises(OperatorError, match=r"cannot compile 9000-.* for cpu: RuntimeError: g\+\+: not found.*C\+\+"):
        compiler.compile_call(program, CPU, store, OUTPUTS, shapes)
    assert list(store.calls()) == []


@pytest.mark.slow
def test_code_with_a_cpp_library_of_its_own_runs_beside_torch(tmp_path: Path) -> None:
    """Some compilers link a copy into what they make; its first regular expression would end the process."""
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("there is no g++")
    source, library = tmp_path / "code.cpp", tmp_path / "code.so"
    source.write_text(
        '#include <regex>\nextern "C" int f() { return std::regex_match("cuda", std::regex("[a-z]+")); }\n',
        encoding="utf-8",
    )
    made = [compiler, "-O0", "-shared", "-fPIC", "-static-libstdc++", "-o", str(library), str(source)]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("this g++ has no C++ library to link")
    code = "from tritone.runtime.torch.compiled import share_cpp_library as share; share(); import ctypes, sys; "
    code += "sys.exit(ctypes.CDLL(sys.argv[1]).f() - 1)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(library)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_compiled_bundle_says_what_it_says_as_it_is(
    toy_bundle_of_both: Path, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    bundle = Bundle.open(toy_bundle_of_both)
    placement = Placement(device=device, threads=1, runtime="torch")
    texts = ["hello", "a", "again and again"]
    waveforms = [toy.toy_waveform(text) for text in texts]
    longest = max(map(len, waveforms)) / bundle.manifest.sample_rate
    found = compile_bundle(bundle, placement=placement, sizes=f"4x{longest:.2f}", rows=2)
    assert [(each.mode, each.bucket.rows) for each in found] == [("offline", 4), ("streaming", 1), ("streaming", 2)]
    assert all(each.compile_s is not None for each in found)
    caplog.set_level(logging.WARNING)
    offline = OfflinePipeline(bundle, placement=placement)
    assert [each.rows for each in offline.runner.graph.buckets_for(())] == [1, 2, 4]
    assert [each.text for each in offline.recognize(waveforms)] == texts
    work = offline.work.take()
    assert work.calls == 1
    assert work.audio_s + work.padding_s == pytest.approx(
        4 * offline.runner.graph.buckets_for(())[0].samples / bundle.manifest.sample_rate
    )
    streaming = StreamingPipeline(bundle, placement=placement)
    assert [each.rows for each in streaming.runner.graph.buckets_for(())] == [1, 2]
    slots = [streaming.open() for _ in range(2)]
    said = streaming.advance([Step(slot, waveforms[0], True) for slot in slots])
    assert [each.text for each in said] == ["hello"] * 2
    again = compile_bundle(bundle, placement=placement, sizes=f"4x{longest:.2f}", rows=2)
    assert [each.compile_s for each in again] == [None] * 3
    assert caplog.text == ""
    assert open_graph(toy_bundle_of_both / "encoder.pt2", device).buckets_for(())


@pytest.mark.usefixtures("loader")
def test_a_network_is_compiled_beside_requests_and_taken_between_two_calls(
    toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, told = threading.Event(), threading.Event(), list[str]()

    def compile_calls(path: Path, device: Any, store: CompiledStore, wanted: Any, done: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        for each in wanted:
            store.prepare()
            made = store.folder / "made"
            made.write_text(str(75 + most_rows(each.shapes)), encoding="utf-8")
            done(store.keep(each.outputs, each.shapes, made, 1.5))

    monkeypatch.setattr(compiling, "compile_calls", compile_calls)
    preparing = Preparing(told.append)
    placement = Placement(threads=1, runtime="torch", compile="2x1,1x1", preparing=preparing)
    pipeline = OfflinePipeline(Bundle.open(toy_bundle_of_both), placement=placement)
    graph = pipeline.runner.graph
    assert begun.wait(60)
    assert preparing.text == "compiling 0 of 2"
    assert pipeline.recognize([toy.toy_waveform("hello")])[0].text == "hello"
    assert graph.buckets_for(()) == []
    go_on.set()
    preparing.wait(60)
    assert preparing.text == "ready"
    sizes = graph.buckets_for(())
    assert [each.rows for each in sizes] == [1, 2]
    assert graph(feed(2, sizes[0].samples), ["num_frames"])[0].tolist() == [77]
    assert [line.partition(":")[0] for line in told[:2]] == ["compiling 1 of 2", "compiling 2 of 2"]


def test_a_network_that_cannot_be_compiled_beside_requests_goes_on_as_it_is(
    toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OperatorError("no compiler here")

    monkeypatch.setattr(compiling, "compile_calls", fail)
    preparing = Preparing()
    placement = Placement(threads=1, runtime="torch", compile="1x1", preparing=preparing)
    pipeline = OfflinePipeline(Bundle.open(toy_bundle_of_both), placement=placement)
    preparing.wait(60)
    assert preparing.text == "compiling failed: no compiler here"
    assert pipeline.recognize([toy.toy_waveform("hello")])[0].text == "hello"


def test_a_process_that_compiles_ends_with_the_one_that_asked() -> None:
    code = "import queue, threading; from tritone.runtime.torch.compiling import _read; at_work = threading.Event(); "
    code += "at_work.set(); _read(queue.SimpleQueue(), at_work)"
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 1


def test_kernels_are_kept_in_the_cache_unless_others_could_write_to_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kernels.KERNELS, "elsewhere")
    kernels.keep_kernels(CPU)
    assert os.environ[kernels.KERNELS] == "elsewhere"
    monkeypatch.delenv(kernels.KERNELS)
    (cache / "compiled").mkdir(parents=True, mode=0o777)
    (cache / "compiled").chmod(0o777)
    kernels.keep_kernels(CPU)
    assert kernels.KERNELS not in os.environ
    assert "kernels that were compiled are not used" in caplog.text
    (cache / "compiled").chmod(0o700)
    monkeypatch.setattr(compiled.os, "environ", own := dict(os.environ))
    kernels.keep_kernels(CPU)
    assert own[kernels.KERNELS] == str(kept.kernels_of(cache / "compiled", kernels.stamp_of(CPU)))
    assert Path(own[kernels.KERNELS]).stat().st_mode & 0o777 == 0o700


@pytest.mark.gpu
def test_on_a_gpu_what_was_recorded_gives_way_to_what_is_compiled(toy_bundle_of_both: Path) -> None:
    preparing = Preparing()
    placement = Placement(device="cuda", runtime="torch", compile="2x1", preparing=preparing)
    bundle, waveform = Bundle.open(toy_bundle_of_both), toy.toy_waveform("hello")
    offline = OfflinePipeline(bundle, placement=placement)
    streaming = StreamingPipeline(bundle, placement=placement, max_batch=2)

    def texts() -> list[str]:
        found = [each.text for each in offline.recognize([waveform] * 2)]
        slots = [streaming.open() for _ in range(2)]
        return found + [each.text for each in streaming.advance([Step(slot, waveform, True) for slot in slots])]

    for _ in range(5):  # recorded, and asked for while it is compiled
        assert texts() == ["hello"] * 4
    preparing.wait(600)
    assert preparing.text == "ready"
    assert offline.runner.graph.buckets_for(())
    assert streaming.runner.graph.buckets_for(())
    assert [texts() for _ in range(5)] == [["hello"] * 4] * 5
