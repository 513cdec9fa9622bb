"""What must hold of icefall's conformer and predictor whatever the weights; upstream's numbers are in tests/parity."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tritone.errors import ExportError
from tritone.families.export.precision import in_precision
from tritone.families.icefall.conformer import Conformer, ConformerConfig
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.stateless import PredictorConfig, StatelessPredictor

SMALL: dict[str, Any] = {"feature_dim": 12, "encoder_dim": 8, "heads": 2, "feed_forward_dim": 12, "layers": 2}


def make(causal: bool | None, kernel: int = 5) -> Conformer:
    torch.manual_seed(0)
    return Conformer(ConformerConfig(**SMALL, kernel=kernel, causal=causal)).eval()


OFFLINE, CAUSAL = make(causal=False), make(causal=True)


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=4), extra=st.integers(0, 9), causal=st.booleans())
@torch.no_grad()
def test_neither_other_rows_nor_what_lies_beyond_the_lengths_matters(
    lengths: list[int], extra: int, causal: bool
) -> None:
    encoder = CAUSAL if causal else OFFLINE
    feats = torch.randn(len(lengths), max(*lengths, 7) + extra, 12)
    for row, length in zip(feats, lengths, strict=True):
        row[length:] = torch.nan if extra % 2 else 1e4
    encoded, num_frames = encoder(feats, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        count = max(0, ((length - 1) // 2 - 1) // 2)
        assert num_frames[row] == count
        if count:
            alone, _ = encoder(feats[row : row + 1, :length], torch.tensor([length]))
            torch.testing.assert_close(encoded[row, :count], alone[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_chunk_sees_itself_and_the_chunks_before_it_and_nothing_else() -> None:
    feats, lengths = torch.randn(1, 83, 12), torch.tensor([83])  # 20 encoder frames, 5 chunks
    base, _ = CAUSAL(feats, lengths, chunk_size=4, left_context=4)
    feats[:, 4 * 12 + 8 :] += 1.0  # the convolutions of the subsampling look 7 feature frames ahead
    later, _ = CAUSAL(feats, lengths, chunk_size=4, left_context=4)
    assert torch.equal(base[:, :12], later[:, :12])
    assert not torch.allclose(base[:, 12:], later[:, 12:], atol=1e-3)


@torch.no_grad()
def test_a_step_with_all_of_the_past_and_no_future_is_the_chunked_pass_over_the_whole() -> None:
    """Of frames that see no border: a step drops the first and the last frame of its subsampling."""
    step = CAUSAL.streaming(4, 64, 0)
    feats = torch.randn(1, 16 * 6 + step.pad_frames, 12)
    states = [torch.zeros(1, *shape) for shape in step.state_shapes.values()]
    states[0] = states[0].long()
    found = []
    for start in range(0, 16 * 6, step.shift_frames):
        window = feats[:, start : start + step.window_frames]
        encoded, num_frames, *states = step(window, torch.tensor([step.window_frames]), *states)
        assert num_frames.tolist() == [4]
        found.append(encoded)
    # frame 0 of the steps is frame 1 of the subsampling
    x = CAUSAL.encoder_embed(feats)[:, 1:-1]
    steps = torch.arange(x.shape[1])
    mask = (steps.unsqueeze(0) // 4 <= steps.unsqueeze(1) // 4).unsqueeze(0)
    for layer in CAUSAL.encoder.layers:
        x, _, _ = layer(x, CAUSAL.places(0, x.shape[1], x.device), mask, None, None, None)
    torch.testing.assert_close(torch.cat(found, dim=1), x[:, :24], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("causal", "said"), [(None, "does not show whether"), (False, "cannot be streamed")])
def test_only_a_model_that_is_known_to_be_causal_is_streamed(causal: bool | None, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        make(causal).streaming(16, 64, 4)


@pytest.mark.parametrize("sizes", [(0, 64, 4), (16, 0, 4), (16, 64, -1)])
def test_sizes_out_of_range_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ExportError, match=f"chunk size {sizes[0]}, left context {sizes[1]}, right context {sizes[2]}"):
        CAUSAL.streaming(*sizes)


@torch.no_grad()
def test_the_predictor_is_relu_of_a_sum_over_groups_and_ids_below_zero_have_no_vector() -> None:
    predictor = StatelessPredictor(PredictorConfig(vocab_size=5, width=4, joiner_dim=3, context_size=2, group_size=2))
    table, kernel = predictor.embedding.weight, predictor.conv.weight  # (4, 2 inputs of a group, 2 tokens)
    found = predictor(torch.tensor([[-1, 3], [-7, -1], [4, 0]]))
    for row, context in zip(found, ([None, 3], [None, None], [4, 0]), strict=True):
        for channel in range(4):
            first = channel // 2 * 2  # of its group
            total = sum(
                float(kernel[channel, i, place] * table[token, first + i])  # type: ignore[misc]
                for place, token in enumerate(context)
                if token is not None
                for i in range(2)
            )
            assert float(row[channel]) == pytest.approx(max(total, 0.0), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("bare_relu", [True, False])
def test_a_context_of_one_token_is_its_embedding_and_the_recipes_differ_in_the_relu(bare_relu: bool) -> None:
    predictor = StatelessPredictor(
        PredictorConfig(vocab_size=5, width=4, joiner_dim=3, context_size=1, bare_relu=bare_relu)
    )
    vector = predictor.embedding.weight[2]
    assert torch.equal(predictor(torch.tensor([[2]]))[0], vector.clamp(min=0) if bare_relu else vector)
    assert torch.equal(predictor(torch.tensor([[-1]]))[0], torch.zeros(4))


@torch.no_grad()
def test_a_narrow_model_keeps_norms_and_the_first_convolution_and_stays_close() -> None:
    torch.manual_seed(0)
    predictor = PredictorConfig(vocab_size=5, width=4, joiner_dim=3)
    model = IcefallModel.from_config(IcefallConfig(encoder=ConformerConfig(**SMALL), predictor=predictor)).eval()
    narrow = in_precision(model, "fp16", explicit=True)
    wide = {name for name, value in narrow.encoder.state_dict().items() if value.dtype == torch.float32}
    assert wide == {
        "encoder_embed.conv.0.weight",
        "encoder_embed.conv.0.bias",
        "encoder_embed.out_norm.eps",
        *(f"encoder.layers.{layer}.norm_final.eps" for layer in range(2)),
    }
    feats, lengths = torch.randn(1, 40, 12), torch.tensor([40])
    expected, (found, _) = model.encoder(feats, lengths)[0], narrow.encoder(feats, lengths)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0)
    logits = narrow.joiner(narrow.joiner.project_encoder(found[0]), narrow.joiner.project_predictor(found[0, :, :4]))
    assert logits.dtype == torch.float32
    assert model.encoder.dtype == torch.float32, "the wide model is left as it was"
