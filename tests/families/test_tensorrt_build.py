"""Every exported graph of every family, through the real parser and builder of TensorRT for RTX, on the CPU."""

import _thread
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sherpa_toys
from families import conftest as wenet
from families import funasr_models as funasr
from families import hf_models as hf
from families import icefall_models as icefall
from families import jasper_models as jasper
from families import wespeaker_models as wespeaker
from families import whisper_models as whisper
from tensorrt_builder import ONE_SIZE, builder, needs_tensorrt, plans_of, ranges_of
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.export import graph_files, networks
from tritone.families.export.noise import Distance
from tritone.families.export.report import ExportReport
from tritone.families.funasr.export import export_funasr
from tritone.families.hf.export import export_hf
from tritone.families.jasper.export import export_jasper
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.families.wespeaker.export import export_wespeaker
from tritone.families.whisper.export import export_whisper
from tritone.tensorrt import build
from tritone.tensorrt.build import EngineBuilder
from tritone.tensorrt.onnx_graph import with_wide_weights

pytestmark = needs_tensorrt


@pytest.fixture(scope="module", autouse=True)
def _unchecked() -> Iterator[None]:
    """What graphs compute is tested elsewhere, and takes longer than building engines of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks.Networks, "distance", lambda self, *graph: Distance({}, 0.0))
        patch.setattr(graph_files.GraphFiles, "_measure", lambda self, *graph, **options: None)
        yield


def names(*roles: str, infix: str = "") -> set[str]:
    return {f"{role}{infix}.onnx" for role in roles}


@pytest.mark.slow
def test_of_wenet_in_float32(causal_bundle: Path, complete_report: ExportReport, tmp_path: Path) -> None:
    assert set(plans_of(Bundle.open(causal_bundle), tmp_path, ONE_SIZE)) == names("encoder", "streaming_encoder")
    decoder = plans_of(complete_report.bundle, tmp_path, roles=("decoder",))
    assert set(decoder) == names("decoder") | names("decoder", infix=".fp16")


@pytest.mark.slow
def test_of_wenet_in_float16_with_stages(causal_files: Path, tmp_path: Path) -> None:
    path = wenet.export_causal(causal_files, tmp_path / "b", stages=True, precisions=("fp16",))
    roles = ("streaming_encoder", "features", "acoustic")  # the last two are the encoder
    assert set(plans_of(Bundle.open(path), tmp_path, roles=roles)) == names(*roles, infix=".fp16")


@pytest.mark.slow
@pytest.mark.parametrize("left_chunks", [-1, 0])
def test_of_flexible_streams_that_see_all_of_the_past_or_none(left_chunks: int, tmp_path: Path) -> None:
    def small(config: dict[str, Any]) -> None:
        wenet.with_cmvn(config)
        config["encoder_conf"] |= {"num_blocks": 1}

    files = wenet.write_model(tmp_path / "files", small)
    path = wenet.export(files, tmp_path / "b", streaming=True, chunk_size=4, left_chunks=left_chunks)
    bundle = Bundle.open(path)
    [artifact] = bundle.artifacts("streaming_encoder")
    [ranges] = ranges_of(bundle, artifact)
    length = [sizes[3] for sizes in (ranges["att_cache"].least, ranges["att_cache"].usual, ranges["att_cache"].most)]
    assert length == ([0, 0, 0] if left_chunks == 0 else [4, 375, 1500])
    assert builder().build(bundle.file(artifact.files[0]), [ranges])


@pytest.mark.slow
def test_of_whole_utterances_with_centred_convolutions(centred_bundle: Path, tmp_path: Path) -> None:
    assert set(plans_of(Bundle.open(centred_bundle), tmp_path)) == names("encoder")


CONFORMER_OPTIONS: dict[str, Any] = icefall.STREAMED
ZIPFORMER_OPTIONS: dict[str, Any] = {"head": "ctc", "streaming": True, "chunk_size": 4, "left_context": 8}
CONFORMER = icefall.IcefallConfig(encoder=icefall.CONFORMER, predictor=icefall.PREDICTOR)
ZIPFORMER = icefall.IcefallConfig(  # a stack of lower frame rate is enough
    encoder=replace(icefall.ZIPFORMER, stacks=icefall.ZIPFORMER.stacks[1:]),
    predictor=icefall.PREDICTOR,
    ctc_vocab_size=len(icefall.TOKENS),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "config", "options", "roles"),
    [
        ("onnx", CONFORMER, CONFORMER_OPTIONS, ("encoder", "streaming_encoder", "predictor", "joiner")),
        ("ctc", ZIPFORMER, ZIPFORMER_OPTIONS, ("encoder", "streaming_encoder")),
    ],
    ids=["conformer", "zipformer"],
)
def test_of_icefall(
    report: str,
    config: icefall.IcefallConfig,
    options: Mapping[str, Any],
    roles: Sequence[str],
    icefall_reports: Mapping[str, ExportReport],
    tmp_path: Path,
) -> None:
    exact = icefall_reports[report].bundle
    assert set(plans_of(exact, tmp_path, ONE_SIZE)) == names(*roles)
    files = icefall.write_files(tmp_path / "files", config)
    half = icefall.export_files(files, tmp_path / "b", precisions=("fp16",), **options).bundle
    assert set(plans_of(half, tmp_path)) == names(*roles, infix=".fp16")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "masked"), [("jasper", True), ("quartznet", False)])
def test_of_jasper_with_stages(kind: str, masked: bool, tmp_path: Path) -> None:
    checkpoint, config = jasper.write_model(tmp_path, jasper.small_config(kind))
    options: dict[str, Any] = {"masked": masked, "stages": True, "precisions": ("fp32", "fp16")}
    bundle = export_jasper(checkpoint=checkpoint, config=config, output=tmp_path / "b", **options).bundle
    roles = ("encoder", "features", "acoustic")
    assert set(plans_of(bundle, tmp_path)) == names(*roles) | names(*roles, infix=".fp16")


@pytest.mark.slow
@pytest.mark.parametrize("content", [funasr.seaco_content, funasr.contextual_content], ids=["seaco", "contextual"])
def test_of_a_paraformer_with_hotwords(content: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    folder = funasr.write_seaco(tmp_path / "m", content())
    bundle = export_funasr(folder=folder, output=tmp_path / "b", precisions=("fp16",)).bundle
    roles = ("encoder", "decoder", "hotword_encoder", "hotword_decoder")
    assert set(plans_of(bundle, tmp_path)) == names(*roles, infix=".fp16")
    [artifact] = bundle.artifacts("decoder")
    [ranges] = ranges_of(bundle, artifact)
    assert ranges["places"].least == (1,)
    assert ranges["places"].most == (ranges["token_sums"].most[1],) == (ranges["encoder_out"].most[1],)


@pytest.mark.slow
def test_of_a_wavlm(tmp_path: Path) -> None:
    """With the most that a model of transformers can have: a norm over utterances, and relative positions."""
    folder = hf.write(tmp_path / "m", model_type="wavlm", do_stable_layer_norm=True)
    bundle = export_hf(folder=folder, output=tmp_path / "b", precisions=("fp32", "fp16")).bundle
    assert set(plans_of(bundle, tmp_path)) == names("encoder") | names("encoder", infix=".fp16")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet", "ecapa"])
def test_of_speaker_models(kind: str, tmp_path: Path) -> None:
    """An engine of a ResNet; the others, which take long to build, are parsed alone."""
    files = wespeaker.write_model(tmp_path / "m", wespeaker.small_content(kind))
    bundle = export_wespeaker(checkpoint=files[0], config=files[1], output=tmp_path / "b").bundle
    if kind == "resnet":
        assert set(plans_of(bundle, tmp_path)) == names("encoder")
    else:
        network, parser = builder().parse(with_wide_weights(bundle.file("encoder.onnx"), tmp_path))
        assert {network.get_input(place).name for place in range(network.num_inputs)} == {"waveform", "num_samples"}
        del parser


def transducer_folder(path: Path) -> Path:
    return sherpa_toys.transducer(path)


def stream_folder(path: Path) -> Path:
    return sherpa_toys.stream_transducer(path)


def ctc_folder(path: Path) -> Path:
    path.mkdir()
    sherpa_toys.ctc(path / "model.onnx")
    sherpa_toys.tokens(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("folder", [transducer_folder, stream_folder, ctc_folder])
def test_of_imported_models(folder: Callable[[Path], Path], tmp_path: Path) -> None:
    bundle = export_sherpa_onnx(folder=folder(tmp_path / "m"), output=tmp_path / "b").bundle
    assert len(plans_of(bundle, tmp_path)) == len(bundle.manifest.artifacts)


SMALL = {("demo-asr", "decoder"), ("demo-transducer", "predictor"), ("demo-transducer", "joiner")}


@pytest.mark.parametrize("name", ["demo-asr", pytest.param("demo-transducer", marks=pytest.mark.slow)])
def test_of_the_shipped_models(name: str, tmp_path: Path) -> None:
    """Their weights are stored as int8. Their encoders, which take long to build, are parsed alone."""
    bundle = Bundle.open(name)
    for artifact in bundle.manifest.artifacts:
        if artifact.runtime != "onnxruntime":
            continue
        graph = with_wide_weights(bundle.file(artifact.files[0]), tmp_path)
        if (name, artifact.role) in SMALL:
            assert builder().build(graph, ranges_of(bundle, artifact))
        else:
            network, parser = builder().parse(graph)
            assert {network.get_input(place).name for place in range(network.num_inputs)} >= {"waveform", "num_samples"}
            del parser


def test_graphs_that_quantise_as_they_go_are_refused_before_tensorrt_sees_them(tmp_path: Path) -> None:
    def small(config: dict[str, Any]) -> None:
        wenet.with_cmvn(config)
        config["encoder_conf"] |= {"num_blocks": 1}

    path = wenet.export(wenet.write_model(tmp_path / "files", small), tmp_path / "b", precisions=("int8",))
    [artifact] = Bundle.open(path).artifacts("encoder", precision="int8")
    with pytest.raises(ValueError, match=r"encoder.int8.onnx computes in int8 .*uint8.* fp32 or fp16"):
        with_wide_weights(path / artifact.files[0], tmp_path)


def test_what_tensorrt_does_not_know_is_told_with_its_node(tmp_path: Path) -> None:
    sherpa_toys.write(
        tmp_path / "odd.onnx",
        [("Det", ["x"], ["y"])],
        {"x": (sherpa_toys.FLOAT, [3, 3])},
        {"y": (sherpa_toys.FLOAT, [])},
        {},
        {},
    )
    with pytest.raises(ExportError, match=r"TensorRT for RTX .*cannot read .*odd.onnx.*\(Det\).*another runtime"):
        builder().build(tmp_path / "odd.onnx", [])


def test_sizes_that_a_graph_cannot_have_are_told(tmp_path: Path) -> None:
    bundle = export_sherpa_onnx(folder=transducer_folder(tmp_path / "m"), output=tmp_path / "b").bundle
    [artifact] = bundle.artifacts("joiner")
    [ranges] = copy.deepcopy(ranges_of(bundle, artifact))
    ranges["predictor_out"] = ranges.pop("encoder_out")
    with pytest.raises(ExportError, match=r"builds no engine of .*joiner.onnx"):
        builder().build(bundle.file(artifact.files[0]), [ranges])


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_what_was_measured_is_kept_for_the_next_build(tmp_path: Path) -> None:
    """TensorRT for RTX measures nothing, but it still has the calls of TensorRT, whose name it is given here."""
    bundle = Bundle.open("demo-transducer")
    [artifact] = bundle.artifacts("joiner")
    graph = with_wide_weights(bundle.file(artifact.files[0]), tmp_path)
    kept = tmp_path / "cache" / "timings"
    measuring = EngineBuilder(replace(builder().library, name="tensorrt"), timing_cache=kept, workspace_mib=64, level=0)
    for _ in range(2):
        assert measuring.build(graph, ranges_of(bundle, artifact))
        assert kept.stat().st_size > 0
    kept.write_bytes(b"of another version")
    assert measuring.build(graph, ranges_of(bundle, artifact))
    assert kept.read_bytes() != b"of another version"
    assert [path.name for path in kept.parent.iterdir()] == ["timings"]
    told: list[str] = []
    nowhere = replace(measuring, timing_cache=kept / "no folder" / "timings", progress=told.append)
    assert nowhere.build(graph, ranges_of(bundle, artifact))
    assert told[-1].startswith("what was measured cannot be kept")


def test_ctrl_c_stops_tensorrt_in_the_midst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "REPORT_EVERY_S", 0.0)
    bundle = Bundle.open("demo-asr")
    [artifact] = bundle.artifacts("encoder")
    told: list[str] = []

    def interrupt(step: str) -> None:
        if not told:
            _thread.interrupt_main()
        told.append(step)

    impatient = EngineBuilder(builder().library, level=0, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        impatient.build(with_wide_weights(bundle.file(artifact.files[0]), tmp_path), ranges_of(bundle, artifact))
    assert told[0].startswith("TensorRT: building engine")
    assert not any(thread.name == "tensorrt-build" for thread in threading.enumerate())


@pytest.mark.slow
def test_of_whisper_with_prompts_that_have_no_past(tmp_path: Path) -> None:
    folder = whisper.write_folder(tmp_path / "folder", whisper.random_model())
    report = export_whisper(checkpoint=folder, output=tmp_path / "b")
    assert set(plans_of(report.bundle, tmp_path, ONE_SIZE)) == names("features", "encoder", "decoder")
