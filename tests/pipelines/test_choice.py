"""Which graph of a bundle is run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
import tritone
from tritone.bundle import Bundle
from tritone.errors import BundleError, OperatorError
from tritone.pipelines import Step, open_offline, open_streaming
from tritone.pipelines.graphs import choice
from tritone.pipelines.graphs.choice import choose
from tritone.pipelines.graphs.placement import Placement

BOTH = ("onnxruntime", "torch")


@pytest.fixture(scope="module")
def both(toy_bundle_of_both: Path) -> Bundle:
    return Bundle.open(toy_bundle_of_both)


def edited(bundle: Bundle, folder: Path, change: Callable[[Any], object]) -> Bundle:
    shutil.copytree(bundle.path, folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    change(manifest["artifacts"])
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return Bundle.open(folder)


def only(able: str) -> Callable[[str, str], str | None]:
    return lambda runtime, device: None if runtime == able else f"no {device} for {runtime} here"


def test_a_bundle_names_its_runtimes_and_its_graphs(both: Bundle, toy_bundle: Path) -> None:
    assert both.runtimes == BOTH
    assert Bundle.open(toy_bundle).runtimes == ("onnxruntime",)
    assert [artifact.files[0] for artifact in both.artifacts("encoder")] == ["encoder.onnx", "encoder.pt2"]
    assert both.artifact("encoder") == both.path / "encoder.onnx"
    assert both.artifact("encoder", "torch") == both.path / "encoder.pt2"
    assert both.artifact("streaming_encoder", "torch", "fp32") == both.path / "streaming_encoder.pt2"
    both.verify()


def test_a_graph_that_the_bundle_does_not_have_names_the_export_that_makes_it(both: Bundle, toy_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"no graph for encoder \(torch\).*--runtimes onnxruntime,torch\."):
        Bundle.open(toy_bundle).artifact("encoder", "torch")
    with pytest.raises(BundleError, match=r"no graph for encoder \(torch, fp16\).*--runtimes torch --precision fp16"):
        both.artifact("encoder", "torch", "fp16")
    with pytest.raises(BundleError, match=r"no graph for encoder \(bf16\); it holds encoder \(onnxruntime, fp32\)"):
        both.artifact("encoder", precision="bf16")


def test_the_first_graph_is_the_default(both: Bundle, tmp_path: Path) -> None:
    assert choose(both, "encoder").runtime == "onnxruntime"
    turned = edited(both, tmp_path / "turned", lambda artifacts: artifacts.reverse())
    assert choose(turned, "encoder").runtime == "torch"
    assert choose(turned, "encoder", Placement(runtime="onnxruntime", precision="fp32")).runtime == "onnxruntime"


def test_what_cannot_run_on_the_device_is_passed_over_unless_it_was_asked_for(
    both: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "obstacle", only("torch"))
    assert choose(both, "encoder", Placement(device="cuda")).runtime == "torch"
    with pytest.raises(OperatorError, match=r"device cuda was asked for, but runtime onnxruntime: no cuda for onnx"):
        choose(both, "encoder", Placement(device="cuda", runtime="onnxruntime"))
    monkeypatch.setattr(choice, "obstacle", only("nothing"))
    with pytest.raises(OperatorError, match=r"runtime onnxruntime: no cpu.*; runtime torch: no cpu for torch here"):
        open_offline(both)


def test_a_precision_alone_chooses_the_runtime_that_has_it(both: Bundle, tmp_path: Path) -> None:
    half = edited(both, tmp_path / "half", lambda artifacts: [a.update(precision="fp16") for a in artifacts[2:]])
    assert choose(half, "encoder", Placement(precision="fp16")).runtime == "torch"


@pytest.mark.parametrize("option", [{"runtime": "tensorflow"}, {"precision": "fp8"}])
def test_unknown_names_are_refused_at_once(both: Bundle, option: dict[str, str]) -> None:
    ((what, name),) = option.items()
    with pytest.raises(ValueError, match=f"{what} must be one of .*, got '{name}'"):
        tritone.load(both.path, **option)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{what} must be one of"):
        Placement(**option)  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", BOTH)
def test_pipelines_say_the_same_on_every_runtime(both: Bundle, runtime: str) -> None:
    texts = ["hello world", "a", "", "x" * 9, "0 1 2 3"]
    waveforms = [toy.toy_waveform(text) for text in texts]
    offline = open_offline(both, placement=Placement(runtime=runtime, threads=2))
    assert (offline.runner.artifact.role, offline.runner.artifact.runtime) == ("encoder", runtime)
    assert [transcript.text for transcript in offline.recognize(waveforms)] == texts
    streaming = open_streaming(both, placement=Placement(runtime=runtime, threads=2))
    streaming.warm_up()
    slots = [streaming.open() for _ in texts]
    for start in range(0, max(map(len, waveforms)), 1500):
        streaming.advance([Step(s, w[start : start + 1500]) for s, w in zip(slots, waveforms, strict=True)])
    found = streaming.advance([Step(slot, np.zeros(0, np.float32), final=True) for slot in slots])
    assert [transcript.text for transcript in found] == texts


def test_best_tokens_give_the_transcripts_that_all_log_probabilities_give(both: Bundle) -> None:
    waveform = toy.toy_waveform("confident", frames_per_token=2)
    transcripts = [
        open_offline(both, placement=Placement(runtime=runtime, threads=1)).recognize([waveform])[0] for runtime in BOTH
    ]
    assert [token.text for token in transcripts[1].tokens] == list("confident")
    for one, other in zip(transcripts[0].tokens, transcripts[1].tokens, strict=True):
        assert (one.text, one.start_s, one.end_s) == (other.text, other.start_s, other.end_s)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-6)


def test_a_program_that_does_not_fit_its_manifest_is_refused(both: Bundle, tmp_path: Path) -> None:
    def swap(artifacts: Any) -> None:
        artifacts[2]["files"], artifacts[3]["files"] = artifacts[3]["files"], artifacts[2]["files"]

    with pytest.raises(
        BundleError, match=r"streaming_encoder\.pt2 does not fit its manifest: .*input offset is unknown"
    ):
        open_offline(edited(both, tmp_path / "swapped", swap), placement=Placement(runtime="torch"))
