"""Sizes of engines: read from text, and turned into shapes of every input."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toy import CHUNK, MIN_SAMPLES, SAMPLE_RATE, WINDOW, write_toy_bundle
from toy_transducer import write_toy_transducer
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, State, Streaming
from tritone.errors import BundleError, ExportError, OperatorError
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.blocks import Blocks
from tritone.runtime.graph import TensorSpec
from tritone.tensorrt.onnx_graph import input_axes, with_wide_weights
from tritone.tensorrt.profile import DEFAULT, Profile, Range, Size, check_together
from tritone.tensorrt.trtexec import TrtexecBuilder

EXAMPLE = Profile.parse("1x2s", "16x7s", "64x16.7s")


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(write_toy_bundle(tmp_path_factory.mktemp("ctc") / "b", decoder=True))


@pytest.fixture(scope="module")
def transducer(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.open(write_toy_transducer(tmp_path_factory.mktemp("transducer") / "b"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1x2s", Size(1, 2.0)),
        ("64x16.7s", Size(64, 16.7)),
        ("16 x 500ms", Size(16, 0.5)),
        ("4X1S", Size(4, 1.0)),
        ("32", Size(32)),
    ],
)
def test_sizes_are_rows_times_seconds(text: str, size: Size) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(size)) == size


@pytest.mark.parametrize(
    "text", ["", "x2s", "2s", "1x2", "1x2m", "0x1s", "1x0s", "-1x2s", "9999x1s", "1x9999s", "1x2s3"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size"):
        Size.parse(text)


def test_the_least_size_is_a_lone_request() -> None:
    with pytest.raises(ValueError, match=r"least size is 4x2s.*a lone request is a batch of one.*Say 1x2s\."):
        Profile.parse("4x2s", "16x7s", "64x16.7s")


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (("1x2s", "16x1s", "64x16s"), "must not fall"),
        (("1x2s", "16x7s", "8x16s"), "must not fall"),
        (("1", "16x7s", "64x16s"), "either all sizes of a profile have seconds or none"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(sizes: tuple[str, str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Profile.parse(*sizes)


def test_profiles_of_one_engine_leave_no_gap() -> None:
    short, long, longer = (
        Profile.parse(*each.split()) for each in ("1x1s 8x2s 8x4s", "1x4s 2x9s 2x9s", "1x8s 1x8s 1x9s")
    )
    check_together([long, short])
    with pytest.raises(ValueError, match=r"audio between 4 s and 8 s would fit no profile .*Let one begin with 1x4s"):
        check_together([longer, short])


def axes(bundle: Bundle, role: Any) -> dict[str, tuple[int | None, ...]]:
    return input_axes(bundle.artifact(role))


def test_an_encoder_takes_seconds_as_samples(ctc: Bundle) -> None:
    found = EXAMPLE.ranges(ctc.manifest, "encoder", axes(ctc, "encoder"))
    assert found == {
        "waveform": Range((1, 2 * SAMPLE_RATE), (16, 7 * SAMPLE_RATE), (64, round(16.7 * SAMPLE_RATE))),
        "num_samples": Range((1,), (16,), (64,)),
    }


def changed(manifest: Manifest, **encoder: Any) -> Manifest:
    return manifest.model_copy(update={"audio_encoder": manifest.encoder.model_copy(update=encoder)})


def test_the_tail_of_every_utterance_has_room_and_nothing_is_below_what_the_graph_takes(ctc: Bundle) -> None:
    manifest = changed(ctc.manifest, tail_samples=1600)
    found = Profile.parse("1x1ms", "1x1s", "1x2s").ranges(manifest, "encoder", axes(ctc, "encoder"))
    assert found["waveform"] == Range((1, MIN_SAMPLES), (1, SAMPLE_RATE + 1600), (1, 2 * SAMPLE_RATE + 1600))


def test_where_padding_would_be_heard_the_least_is_that_of_the_graph(ctc: Bundle) -> None:
    manifest = changed(ctc.manifest, equal_lengths=True)
    assert EXAMPLE.ranges(manifest, "encoder", axes(ctc, "encoder"))["waveform"].least == (1, MIN_SAMPLES)


def test_whole_utterances_need_seconds_and_streams_do_not(ctc: Bundle) -> None:
    rows = Profile.parse("1", "8", "32")
    with pytest.raises(ValueError, match=r"the encoder takes whole utterances, so sizes need seconds.*got 1 8 32"):
        rows.ranges(ctc.manifest, "encoder", axes(ctc, "encoder"))
    found = rows.ranges(ctc.manifest, "streaming_encoder", axes(ctc, "streaming_encoder"))
    assert found["waveform"] == Range((1, WINDOW), (8, WINDOW), (32, WINDOW))
    assert found["level"] == Range((1, 1), (8, 1), (32, 1))


@pytest.mark.parametrize(("left_chunks", "lengths"), [(3, (12, 12, 12)), (0, (0, 0, 0)), (-1, (4, 375, 1500))])
def test_histories_of_flexible_streams_are_as_long_as_the_manifest_says(
    ctc: Bundle, left_chunks: int, lengths: tuple[int, int, int]
) -> None:
    window, shift = ctc.manifest.step_samples(CHUNK)
    streaming = Streaming(
        chunk_size=CHUNK,
        left_chunks=left_chunks,
        window_samples=window,
        shift_samples=shift,
        states=(State(name="cache", shape=(2, "left_frames", 8), dtype="float32"),),
        flexible=True,
    )
    manifest = ctc.manifest.model_copy(update={"streaming": streaming})
    inputs = {"waveform": (None, None), "num_samples": (None,), "cache": (None, 2, None, 8)}
    found = EXAMPLE.ranges(manifest, "streaming_encoder", inputs)
    assert found["cache"] == Range(*((rows, 2, each, 8) for rows, each in zip((1, 16, 64), lengths, strict=True)))
    assert {found["waveform"].least[1], found["waveform"].most[1]} == {window}


def test_a_decoder_takes_all_frames_and_as_many_tokens_and_no_more_memory_than_is_sensible(ctc: Bundle) -> None:
    found = EXAMPLE.ranges(ctc.manifest, "decoder", axes(ctc, "decoder"))
    frames = -(-round(16.7 * SAMPLE_RATE) // 640) + 1
    assert found["encoder_out"].most[1:] == (frames, 1)
    assert found["hypotheses"].most[2] == frames
    assert found["hypotheses"].least == (1, 1, 1)
    large = ctc.manifest.model_copy(update={"vocabulary": ctc.manifest.vocabulary.model_copy(update={"size": 20000})})
    rows, hypotheses, tokens = EXAMPLE.ranges(large, "decoder", axes(ctc, "decoder"))["hypotheses"].most
    assert rows * hypotheses * tokens * 20000 * 4 < 2**30, "a GiB of logits"


def test_predictor_and_joiner_take_any_number_of_contexts_up_to_a_limit(transducer: Bundle) -> None:
    for role, name in (("predictor", "context"), ("joiner", "predictor_out")):
        found = EXAMPLE.ranges(transducer.manifest, role, axes(transducer, role))[name]  # type: ignore[arg-type]
        assert (found.least[0], found.usual[0], found.most[0]) == (1, 160, 4096)
        assert found.least[1] == found.most[1]


def test_features_have_room_for_any_way_of_counting_frames(ctc: Bundle) -> None:
    inputs = {"features": (None, None, 80), "num_samples": (None,)}
    found = EXAMPLE.ranges(ctc.manifest, "acoustic", inputs)["features"]
    most = round(16.7 * SAMPLE_RATE)
    assert found.least[1] <= 1 + (2 * SAMPLE_RATE - 400) // 160
    assert found.most[1] >= -(-(most // 160 + 1) // 16) * 16
    assert found.most[1] <= most // 160 + 65


def test_an_axis_of_unknown_meaning_is_refused(ctc: Bundle) -> None:
    with pytest.raises(ValueError, match=r"axis 1 of input mood of the encoder varies"):
        EXAMPLE.ranges(ctc.manifest, "encoder", {"mood": (None, None)})


sizes = st.tuples(st.integers(1, 64), st.integers(1, 300))


@given(usual=sizes, more=sizes, least=st.integers(1, 300))
def test_every_size_lies_between_the_least_and_the_most(
    ctc: Bundle, transducer: Bundle, usual: tuple[int, int], more: tuple[int, int], least: int
) -> None:
    tenths = min(least, usual[1]) / 10, usual[1] / 10, (usual[1] + more[1]) / 10
    rows = 1, usual[0], usual[0] + more[0]
    profile = Profile(*(Size(*each) for each in zip(rows, tenths, strict=True)))
    assert Profile.parse(*str(profile).split()) == profile
    for bundle in (ctc, transducer):
        for artifact in bundle.manifest.artifacts:
            for name, found in profile.ranges(bundle.manifest, artifact.role, axes(bundle, artifact.role)).items():
                for low, middle, high in zip(found.least, found.usual, found.most, strict=True):
                    assert 1 <= low <= middle <= high, (artifact.role, name)


@given(
    lengths=st.lists(st.integers(400, 16 * SAMPLE_RATE), min_size=1, max_size=20),
    most=st.tuples(st.integers(1, 8), st.floats(1, 16)),
)
def test_batches_keep_within_an_engine(ctc: Bundle, lengths: list[int], most: tuple[int, float]) -> None:
    limit = int(most[1] * SAMPLE_RATE)
    spec = TensorSpec(np.dtype(np.float32), (None, None), (1, SAMPLE_RATE // 2), (most[0], limit))
    blocks = Blocks(ctc.manifest, spec)
    lengths = [min(length, limit) for length in lengths]
    limits = blocks.within(BatchLimits())
    batches = blocks.plan(lengths, limits)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch.indices) <= most[0]
        assert SAMPLE_RATE // 2 <= batch.num_samples <= limit
        assert batch.num_samples >= max(lengths[index] for index in batch.indices)
    padded = blocks.lengths_to_warm_up(limit, limits.steps_per_octave)
    assert all(SAMPLE_RATE // 2 <= each <= limit for each in padded)


def test_weights_stored_as_int8_are_widened_to_the_numbers_that_onnxruntime_computes_with(tmp_path: Path) -> None:
    from tritone.runtime import open_graph

    bundle = Bundle.open("demo-transducer")
    [artifact] = bundle.artifacts("joiner", "onnxruntime")
    assert artifact.weight_storage == "int8"
    path = bundle.file(artifact.files[0])
    wide = with_wide_weights(path, tmp_path)
    assert wide.parent == tmp_path
    graph = onnx.load(wide).graph
    assert {node.op_type for node in graph.node} & {"Cast"} == set()
    assert not any(tensor.data_type == onnx.TensorProto.INT8 for tensor in graph.initializer)
    rng = np.random.default_rng(0)
    dim = bundle.manifest.encoder.output_dim
    inputs = {name: rng.normal(size=(3, dim)).astype(np.float32) for name in ("encoder_out", "predictor_out")}
    expected, found = (open_graph(each)(inputs, ["logits"])[0] for each in (path, wide))
    np.testing.assert_array_equal(found, expected)


def test_a_graph_whose_weights_are_stored_as_they_are_is_left_alone(ctc: Bundle, tmp_path: Path) -> None:
    assert with_wide_weights(ctc.artifact("encoder"), tmp_path) == ctc.artifact("encoder")


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(b"\x01this is not a graph")
    with pytest.raises(BundleError, match=r"encoder\.onnx"):
        input_axes(tmp_path / "encoder.onnx")


def fake_trtexec(folder: Path, body: str) -> Path:
    """A program that behaves as NVIDIA's, as far as it is used; the real one cannot be installed here."""
    program = folder / "trtexec"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{body}\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_trtexec_is_told_every_size_of_every_profile(tmp_path: Path) -> None:
    body = """
options = dict(each.lstrip("-").split("=", 1) for each in sys.argv[1:] if "=" in each)
Path(options["saveEngine"]).write_text("\\n".join(sys.argv[1:]))
"""
    builder = TrtexecBuilder(fake_trtexec(tmp_path, body), workspace_mib=512, timing_cache=tmp_path / "c" / "t.cache")
    two = [{"waveform": Range((1, 8), (2, 16), (4, 32)), "num_samples": Range((1,), (2,), (4,))}] * 2
    told = builder.build(tmp_path / "encoder.onnx", two).decode().splitlines()
    assert told[0] == f"--onnx={tmp_path / 'encoder.onnx'}"
    assert {"--stronglyTyped", "--noTF32", "--skipInference", "--memPoolSize=workspace:512M"} <= set(told)
    shapes = [
        "--minShapes=waveform:1x8,num_samples:1",
        "--optShapes=waveform:2x16,num_samples:2",
        "--maxShapes=waveform:4x32,num_samples:4",
    ]
    assert told[-8:] == ["--profile=0", *shapes, "--profile=1", *shapes]
    assert f"--timingCacheFile={tmp_path / 'c' / 't.cache'}" in told
    builder.timing_cache = builder.program / "c" / "t.cache"
    assert "timingCacheFile" not in builder.build(tmp_path / "encoder.onnx", two).decode()


def test_trtexec_that_fails_tells_what_it_said(tmp_path: Path) -> None:
    body = "print('[I] reading'); print('[E] no such operator'); sys.exit(1)"
    with pytest.raises(ExportError, match=r"trtexec builds no engine of .*encoder.onnx: \[E\] no such operator$"):
        TrtexecBuilder(fake_trtexec(tmp_path, body)).build(tmp_path / "encoder.onnx", [])


@pytest.mark.parametrize(
    ("banner", "version"),
    [("[TensorRT v8601]", "8.6.1"), ("[TensorRT v101303]", "10.13.3"), ("[TensorRT v100700]", "10.7.0")],
)
def test_the_banner_of_trtexec_tells_the_version(tmp_path: Path, banner: str, version: str) -> None:
    assert (
        TrtexecBuilder(fake_trtexec(tmp_path, f"print('&&&& RUNNING TensorRT.trtexec {banner}')")).version() == version
    )


def test_another_program_called_trtexec_is_no_trtexec(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="does not print its version"):
        TrtexecBuilder(fake_trtexec(tmp_path, "print('hello')")).version()


def test_the_sizes_of_those_who_say_nothing_are_sensible() -> None:
    assert str(DEFAULT) == "1x0.5s 8x7s 32x30s"
