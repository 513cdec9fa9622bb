"""icefall's zipformer2 against arrays made by upstream's own code, and against what must hold of any size of it.

Tolerances of golden cases are those of their README: float noise of upstream itself, times about ten. Those of small
random networks follow from the sizes of their numbers and sums.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from effort import examples
from parity.golden_cases import Case, largest
from tolerance import assert_close
from tritone.errors import ExportError
from tritone.families.icefall.zipformer import Zipformer
from tritone.families.icefall.zipformer_config import StackConfig, ZipformerConfig
from tritone.families.icefall.zipformer_streaming import StreamingZipformer
from tritone.families.onnx.writer import export_graph

ATOL = 5e-5
TINY_TERMS = 2432  # of the longest sum in `tiny`: 128 channels of 19 bins in the last layer of the subsampling
TINY_SUMS = 40  # behind each other: 5 of the subsampling and a dozen in each of three layers
PADDING = float(np.log(1e-10))  # of features

_models: dict[str, Zipformer] = {}


def load_case(case: Case) -> Zipformer:
    if case.name not in _models:
        state = torch.load(case.path / "pretrained.pt", weights_only=True)["model"]
        sizes = hparams(case)
        heads = numbers(sizes["num_heads"])
        model = Zipformer(ZipformerConfig.from_state(state, num_heads=None if published(sizes) else heads))
        own = {name: value for name, value in state.items() if name.startswith(("encoder.", "encoder_embed."))}
        model.load_state_dict(own)
        _models[case.name] = model.eval()
    return _models[case.name]


def hparams(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((case.path / "hparams.json").read_text(encoding="utf-8"))
    return content


def numbers(text: str) -> list[int]:
    return [int(number) for number in str(text).split(",")]


def published(sizes: dict[str, Any]) -> bool:
    return set(numbers(sizes["pos_head_dim"])) == {4}


def golden_input(case: Case) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(case.inputs["features"]), torch.from_numpy(case.inputs["lengths"])


def chunk_arguments(case: Case) -> dict[str, int]:
    sizes = hparams(case)
    if not sizes["streaming"]:
        return {}
    return {"chunk_size": numbers(sizes["chunk_size"])[0], "left_context": numbers(sizes["left_context_frames"])[0]}


def compare_rows(found: Tensor, expected: Sequence[np.ndarray] | np.ndarray, lengths: Sequence[int]) -> None:
    for row, length in enumerate(lengths):
        difference = largest(found[row, :length], expected[row][:length])
        assert difference <= ATOL, f"utterance {row}: largest difference {difference:.2e}, allowed {ATOL:.0e}"


def assert_close_in_tiny(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected, terms=TINY_TERMS, sums=TINY_SUMS)


def first_states(step: StreamingZipformer, batch: int) -> list[Tensor]:
    return [
        torch.zeros(batch, *shape, dtype=torch.int64 if name == "processed" else torch.float32)
        for name, shape in step.state_shapes.items()
    ]


def stream(step: StreamingZipformer, feats: Tensor) -> tuple[Tensor, list[Tensor]]:
    """All steps of streams (batch, frames, bins) of one length: encoder frames, and the last states."""
    length, outputs, states, start = feats.shape[1], [], first_states(step, len(feats)), 0
    padded = F.pad(feats, (0, 0, 0, step.window_frames + step.pad_frames), value=PADDING)
    while start < length + step.pad_frames:
        num_valid = torch.full((len(feats),), max(0, min(length - start, step.window_frames)))
        encoded, _, *states = step(padded[:, start : start + step.window_frames], num_valid, *states)
        outputs.append(encoded)
        start += step.shift_frames
    return torch.cat(outputs, dim=1), states


def upstream_states(step: StreamingZipformer, arrays: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    """States under upstream's names, in the order and layout of ours: batch first, heads apart."""
    names = {"key": "cached_key", "mixed": "cached_nonlin_attn", "value1": "cached_val1", "value2": "cached_val2"}
    names |= {"conv1": "cached_conv1", "conv2": "cached_conv2"}
    found = []
    for name, shape in step.state_shapes.items():
        if name in ("embed", "processed"):
            found.append(arrays[prefix + {"embed": "embed_states", "processed": "processed_lens"}[name]])
            continue
        kind, layer = name.split("_")
        array = arrays[f"{prefix}{names[kind]}_{layer}"]
        if kind == "mixed":
            array = array[0]
        elif kind in ("key", "value1", "value2"):
            heads, past, size = shape
            array = array.transpose(1, 0, 2).reshape(-1, past, heads, size).transpose(0, 2, 1, 3)
        found.append(array)
    return found


def test_sizes_of_a_golden_model_are_read_off_its_tensors(zipformer_case: Case) -> None:
    config, sizes = load_case(zipformer_case).config, hparams(zipformer_case)
    assert config.causal is sizes["causal"]
    assert config.position_width == int(sizes["pos_dim"])
    for name, key in [
        ("layers", "num_encoder_layers"),
        ("downsampling", "downsampling_factor"),
        ("width", "encoder_dim"),
        ("heads", "num_heads"),
        ("query_size", "query_head_dim"),
        ("value_size", "value_head_dim"),
        ("position_size", "pos_head_dim"),
        ("feed_forward", "feedforward_dim"),
        ("kernel", "cnn_module_kernel"),
    ]:
        expected = numbers(sizes[key])
        found = [getattr(stack, name) for stack in config.stacks]
        assert found == (expected * len(found) if len(expected) == 1 else expected), key


@torch.no_grad()
def test_batch_equals_upstream_with_its_padding(zipformer_case: Case) -> None:
    model, (feats, lengths) = load_case(zipformer_case), golden_input(zipformer_case)
    expected = zipformer_case.expected
    runs = {"simulated_" if hparams(zipformer_case)["streaming"] else "": chunk_arguments(zipformer_case)}
    if "full_context_encoder_out" in expected:
        runs["full_context_"] = {}
    model.upstream_padding = True
    try:
        for prefix, arguments in runs.items():
            encoded, num_frames = model(feats, lengths, **arguments)
            assert num_frames.tolist() == expected[f"{prefix}encoder_out_lens"].tolist()
            compare_rows(encoded, expected[f"{prefix}encoder_out"], num_frames.tolist())
    finally:
        model.upstream_padding = False


@torch.no_grad()
def test_batch_equals_each_utterance_alone_whatever_pads_it(zipformer_case: Case) -> None:
    model, (feats, lengths) = load_case(zipformer_case), golden_input(zipformer_case)
    prefix = "simulated_" if hparams(zipformer_case)["streaming"] else ""
    alone = [zipformer_case.expected[f"{prefix}single{row}_encoder_out"] for row in range(len(feats))]
    beyond = torch.arange(feats.shape[1]) >= lengths.unsqueeze(1)
    feats = feats.masked_fill(beyond.unsqueeze(2), float("nan"))
    encoded, num_frames = model(feats, lengths, **chunk_arguments(zipformer_case))
    assert num_frames.tolist() == [len(array) for array in alone]
    compare_rows(encoded, alone, num_frames.tolist())


@torch.no_grad()
def test_a_stream_alone_equals_upstream(zipformer_streaming_case: Case) -> None:
    case = zipformer_streaming_case
    step, (feats, lengths) = StreamingZipformer(load_case(case), **chunk_arguments(case)), golden_input(case)
    for row, length in enumerate(lengths.tolist()):
        encoded, states = stream(step, feats[row : row + 1, :length])
        expected = case.expected[f"stream{row}_encoder_out"]
        assert encoded.shape[1] == len(expected)
        compare_rows(encoded, expected[None], [len(expected)])
        if f"stream{row}_final_state_processed_lens" in case.expected:
            for state, array in zip(
                states, upstream_states(step, case.expected, f"stream{row}_final_state_"), strict=True
            ):
                assert largest(state, array) <= ATOL


@torch.no_grad()
def test_full_windows_and_states_of_many_streams_equal_upstream(zipformer_streaming_case: Case) -> None:
    case, expected = zipformer_streaming_case, zipformer_streaming_case.expected
    step = StreamingZipformer(load_case(case), **chunk_arguments(case))
    states = first_states(step, len(case.inputs["lengths"]))
    compared = 0
    # Upstream masks the end of a window that is shorter than others in its batch; alone, and here, it counts as audio.
    whole = set(range(len(case.inputs["lengths"])))
    for chunk in range(int(expected["num_chunks"])):
        streams = expected[f"chunk{chunk}_stream_ids"].tolist()
        x, x_lens = expected[f"chunk{chunk}_x"], expected[f"chunk{chunk}_x_lens"]
        whole &= {stream for stream, length in zip(streams, x_lens, strict=True) if length == step.window_frames}
        rows = [row for row, stream in enumerate(streams) if stream in whole]
        kept = [streams[row] for row in rows]
        if not kept:
            break
        encoded, num_frames, *after = step(
            torch.from_numpy(x[rows]), torch.from_numpy(x_lens[rows]), *(state[kept] for state in states)
        )
        assert num_frames.tolist() == [step.chunk_frames] * len(kept)
        compare_rows(encoded, expected[f"chunk{chunk}_encoder_out"][rows], num_frames.tolist())
        if f"chunk{chunk}_state_processed_lens" in expected:
            arrays = upstream_states(step, expected, f"chunk{chunk}_state_")
            for state, array in zip(after, arrays, strict=True):
                assert largest(state, array[rows]) <= ATOL
        for state, new in zip(states, after, strict=True):
            state[kept] = new
        compared += len(kept)
    assert compared > 0


def tiny(causal: bool, rates: Sequence[int] = (1, 2, 4), kernel: int = 7, seed: int = 0) -> Zipformer:
    """A small network whose every part matters: upstream starts with scales that hide most of them."""
    torch.manual_seed(seed)
    stacks = tuple(
        StackConfig(
            layers=1,
            downsampling=rate,
            width=(16, 24, 20)[index % 3],
            heads=2,
            query_size=4,
            value_size=4,
            position_size=4,
            feed_forward=16,
            kernel=kernel,
        )
        for index, rate in enumerate(rates)
    )
    model = Zipformer(ZipformerConfig(stacks=stacks, causal=causal, position_width=8)).eval()
    for name, parameter in model.named_parameters():
        if not name.endswith("log_scale"):
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


@settings(max_examples=examples(12), deadline=None)
@given(
    causal=st.booleans(),
    rates=st.sampled_from([(1,), (2, 1), (1, 2, 4), (1, 8, 2), (4, 2)]),
    lengths=st.lists(st.integers(9, 70), min_size=1, max_size=4),
    chunk=st.sampled_from([-1, 8, 16]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_a_row_never_depends_on_its_neighbours(
    causal: bool, rates: tuple[int, ...], lengths: list[int], chunk: int, seed: int
) -> None:
    model = tiny(causal, rates, seed=seed)
    arguments = {"chunk_size": chunk, "left_context": 16} if causal else {}
    feats = torch.randn(len(lengths), max(lengths) + 5, 80)
    encoded, num_frames = model(feats, torch.tensor(lengths), **arguments)
    assert num_frames.tolist() == [((length - 7) // 2 + 1) // 2 for length in lengths]
    for row, length in enumerate(lengths):
        alone, _ = model(feats[row : row + 1, :length], torch.tensor([length]), **arguments)
        count = int(num_frames[row])
        assert_close_in_tiny(encoded[row, :count], alone[0, :count])


@settings(max_examples=8, deadline=None)
@given(
    rates=st.sampled_from([(1,), (1, 2, 4), (1, 4, 8), (2, 1)]),
    chunk=st.sampled_from([8, 16]),
    left_chunks=st.integers(1, 4),
    kernel=st.sampled_from([3, 7, 15]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_streaming_equals_the_chunk_mask_until_the_last_window(
    rates: tuple[int, ...], chunk: int, left_chunks: int, kernel: int, seed: int
) -> None:
    model = tiny(True, rates, kernel, seed)
    left = -(-max(left_chunks * chunk, kernel // 2 * max(rates)) // chunk) * chunk
    step = StreamingZipformer(model, chunk, left)
    chunks = 5
    feats = torch.randn(2, chunks * step.shift_frames + 13, 80)
    streamed, _ = stream(step, feats)
    masked, _ = model(feats, torch.full((2,), feats.shape[1]), chunk_size=chunk, left_context=left)
    frames = chunks * step.chunk_frames
    assert_close_in_tiny(streamed[:, :frames], masked[:, :frames])


@torch.no_grad()
def test_a_non_finite_past_stays_with_its_own_stream() -> None:
    step = StreamingZipformer(tiny(True), 8, 16)
    feats = torch.randn(2, step.window_frames, 80)
    states = first_states(step, 2)
    alone = step(feats[:1], torch.tensor([9]), *(state[:1] for state in states))
    for state in states[:-1]:
        state[1] = float("nan")
    together = step(feats, torch.tensor([9, 9]), *states)
    for found, expected in zip(together, alone, strict=True):
        assert_close_in_tiny(found[:1], expected)


@pytest.fixture(scope="module")
def graphs() -> dict[str, bytes]:
    """ONNX of two tiny networks, traced at sizes that no test uses."""
    offline = tiny(False, (4,))
    step = StreamingZipformer(tiny(True, (2,)), 4, 8)
    states = {
        name: torch.zeros(3, *shape, dtype=torch.int64 if name == "processed" else torch.float32)
        for name, shape in step.state_shapes.items()
    }
    feats, lengths = torch.randn(3, 43, 80), torch.tensor([43, 20, 9])
    steps = {"feats": torch.randn(3, step.window_frames, 80), "num_valid": torch.tensor([9, 9, 9]), **states}
    exported = {
        "offline": export_graph(
            offline,
            {"feats": feats, "lengths": lengths},
            ["encoded", "num_frames"],
            {"feats": {0: "batch", 1: "frames"}, "lengths": {0: "batch"}},
            {},
        ),
        "streaming": export_graph(
            step,
            steps,
            ["encoded", "num_frames", *(f"next_{name}" for name in states)],
            {name: {0: "batch"} for name in steps},
            {},
        ),
    }
    return {name: model.SerializeToString() for name, model in exported.items()}


def run_graph(graph: bytes, inputs: Sequence[Tensor]) -> list[Tensor]:
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    feeds = {spec.name: value.numpy() for spec, value in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(array) for array in session.run(None, feeds)]


@pytest.mark.parametrize(("batch", "frames"), [(1, 9), (2, 71), (5, 22)])
@torch.no_grad()
def test_the_exported_graph_equals_torch_at_other_sizes(graphs: dict[str, bytes], batch: int, frames: int) -> None:
    feats, lengths = torch.randn(batch, frames, 80), torch.linspace(9, frames, batch).round().to(torch.int64)
    expected, num_frames = tiny(False, (4,))(feats, lengths)
    encoded, found_frames = run_graph(graphs["offline"], [feats, lengths])
    assert found_frames.tolist() == num_frames.tolist()
    for row, count in enumerate(num_frames.tolist()):
        assert_close_in_tiny(encoded[row, :count], expected[row, :count])


@torch.no_grad()
def test_the_exported_step_equals_torch_at_another_batch_size(graphs: dict[str, bytes]) -> None:
    step = StreamingZipformer(tiny(True, (2,)), 4, 8)
    states = first_states(step, 2)
    for _ in range(3):
        feats, num_valid = torch.randn(2, step.window_frames, 80), torch.tensor([9, 4])
        expected = step(feats, num_valid, *states)
        found = run_graph(graphs["streaming"], [feats, num_valid, *states])
        for ours, theirs in zip(found, expected, strict=True):
            assert_close_in_tiny(ours, theirs)
        states = list(expected[2:])


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@torch.no_grad()
def test_a_traced_module_equals_torch_at_another_size() -> None:
    model = tiny(False, (1, 4))
    traced = torch.jit.trace(model, (torch.randn(2, 30, 80), torch.tensor([30, 12])), check_trace=False)
    feats, lengths = torch.randn(3, 57, 80), torch.tensor([57, 9, 40])
    expected, num_frames = model(feats, lengths)
    found, _ = traced(feats, lengths)
    for row, count in enumerate(num_frames.tolist()):
        assert_close_in_tiny(found[row, :count], expected[row, :count])


@torch.no_grad()
def test_half_precision_stays_near_float32() -> None:
    model = tiny(False, (1, 4))
    feats, lengths = 4.0 * torch.randn(2, 61, 80) - 8.0, torch.tensor([61, 33])
    expected, num_frames = model(feats, lengths)
    for module in model.modules():
        if not getattr(module, "in_float32", False):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.half()
    encoded, _ = model(feats, lengths)
    assert encoded.dtype == torch.float16
    for row, length in enumerate(num_frames.tolist()):
        # Products are added in float32, so that only what comes out of each sum is rounded to half precision.
        assert_close(encoded[row, :length].float(), expected[row, :length], terms=1, sums=TINY_SUMS, epsilon=2**-10)


def test_every_part_is_trained_by_a_chunk_masked_pass() -> None:
    model = tiny(True).train()
    encoded, _ = model(torch.randn(2, 60, 80), torch.tensor([60, 44]), chunk_size=8, left_context=16)
    encoded[0].square().sum().backward()
    idle = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.isfinite().all())
    }
    assert not idle


def test_heads_that_do_not_divide_are_refused_by_name() -> None:
    state = tiny(False).state_dict()
    with pytest.raises(ExportError, match=r"linear_pos.weight has 8 rows.*3 heads.*--num-heads"):
        ZipformerConfig.from_state(state, num_heads=[3])
    with pytest.raises(ExportError, match="0 heads: every stack has at least one"):
        ZipformerConfig.from_state(state, num_heads=[0])
    assert ZipformerConfig.from_state(state, num_heads=[1]).stacks[0].position_size == 8


def test_a_missing_tensor_is_named() -> None:
    state = tiny(False).state_dict()
    del state["encoder.encoders.0.layers.0.self_attn_weights.in_proj.weight"]
    with pytest.raises(ExportError, match=r"encoders.0.layers.0.self_attn_weights.in_proj.weight is missing"):
        ZipformerConfig.from_state(state)


def test_a_model_without_causal_convolution_cannot_be_streamed() -> None:
    with pytest.raises(ExportError, match="cannot be streamed"):
        StreamingZipformer(tiny(False), 16, 64)


@pytest.mark.parametrize(("chunk", "left"), [(6, 16), (8, 0), (8, 10)])
def test_sizes_that_do_not_fit_the_downsampling_are_refused(chunk: int, left: int) -> None:
    with pytest.raises(ExportError, match="multiple of 4"):
        StreamingZipformer(tiny(True), chunk, left)
