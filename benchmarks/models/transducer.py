"""icefall transducers of published sizes with random weights: speed does not depend on what a network has learnt.

    write_checkpoint("zipformer-m", folder, causal=True)  ->  pretrained.pt, tokens.txt

The joiner is balanced on noise: it says many different tokens, in about as many frames as a trained model of word
pieces does. Sizes are defaults of the recipes in icefall, egs/librispeech/ASR, and its published small zipformer.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.models.pieces import pieces, speech
from benchmarks.models.random_bundle import export_random
from benchmarks.models.wenet import babble
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.export import export_icefall
from tritone.families.icefall.graphs import feature_bins, make_fbank
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.stateless import PredictorConfig
from tritone.families.icefall.zipformer import StackConfig, ZipformerConfig

EMITTING = 0.15  # share of frames with a token: word pieces of English read aloud, at 25 frames a second
SPECIAL = ("<blk>", "<sos/eos>", "<unk>")
NEVER = -40.0  # logit of special tokens
SPREAD = 3.0  # standard deviation of a token's logit over frames
BALANCED_ON_S = 10
HALVINGS = 12
FRAMES_A_SECOND = 25


def _stacks(
    layers: Sequence[int],
    widths: Sequence[int],
    feed_forward: Sequence[int],
    downsampling: Sequence[int] = (1, 2, 4, 8, 4, 2),
    heads: Sequence[int] = (4, 4, 4, 8, 4, 4),
    kernels: Sequence[int] = (31, 31, 15, 15, 15, 31),
) -> tuple[StackConfig, ...]:
    columns = zip(layers, downsampling, widths, heads, feed_forward, kernels, strict=True)
    return tuple(
        StackConfig(
            layers=count,
            downsampling=rate,
            width=width,
            heads=number,
            query_size=32,
            value_size=12,
            position_size=4,
            feed_forward=hidden,
            kernel=kernel,
        )
        for count, rate, width, number, hidden, kernel in columns
    )


ENCODERS: dict[str, ZipformerConfig | ConformerConfig] = {
    "zipformer-s": ZipformerConfig(
        stacks=_stacks((2,) * 6, (192, *(256,) * 5), (512, *(768,) * 5)),
        causal=False,
    ),
    "zipformer-m": ZipformerConfig(
        stacks=_stacks((2, 2, 3, 4, 3, 2), (192, 256, 384, 512, 384, 256), (512, 768, 1024, 1536, 1024, 768)),
        causal=False,
    ),
    "zipformer-l": ZipformerConfig(
        stacks=_stacks((2, 2, 4, 5, 4, 2), (192, 256, 512, 768, 512, 256), (512, 768, 1536, 2048, 1536, 768)),
        causal=False,
    ),
    # not a recipe's: as large as the largest that were published, 294 M parameters
    "zipformer-xl": ZipformerConfig(
        stacks=_stacks((2, 3, 5, 6, 5, 3), (192, 384, 768, 1024, 768, 384), (768, 1024, 1536, 2048, 1536, 1024)),
        causal=False,
    ),
    "conformer-m": ConformerConfig(encoder_dim=384, heads=8, feed_forward_dim=1536, layers=24, causal=False),
    "conformer-l": ConformerConfig(encoder_dim=512, heads=8, feed_forward_dim=2048, layers=12, causal=False),
}


def smaller(size: str) -> ZipformerConfig | ConformerConfig:
    """The same architecture with a layer or two that are as narrow as can be, for tests."""
    encoder = ENCODERS[size]
    if isinstance(encoder, ConformerConfig):
        return replace(encoder, encoder_dim=16, heads=2, feed_forward_dim=16, layers=1)
    return replace(encoder, stacks=_stacks((1, 1), (16, 16), (16, 16), (1, 2), (2, 2), (15, 15)))


def write_checkpoint(
    size: str | ZipformerConfig | ConformerConfig,
    folder: Path,
    *,
    causal: bool = False,
    vocab_size: int = 500,
    seed: int = 7,
    token_rate: float = 0.0,
) -> IcefallModel:
    """Write `pretrained.pt` and `tokens.txt` of a random model to `folder`, and return the model.

    Args:
        size: one of `ENCODERS`, or another encoder.
        causal: whether it can be streamed.
        vocab_size: tokens, special ones among them.
        token_rate: tokens a second of speech; 0 balances on noise, see `EMITTING`.
    """
    torch.manual_seed(seed)
    encoder = replace(ENCODERS[size] if isinstance(size, str) else size, causal=causal)
    group = 4 if isinstance(encoder, ZipformerConfig) else 1
    predictor = PredictorConfig(vocab_size=vocab_size, width=512, joiner_dim=512, group_size=group)
    model = IcefallModel.from_config(IcefallConfig(encoder=encoder, predictor=predictor)).eval()
    with torch.no_grad():
        if token_rate:
            _balance(model, speech(BALANCED_ON_S), token_rate / FRAMES_A_SECOND)
        else:
            _balance(model, babble(BALANCED_ON_S * 16000, seed=1), EMITTING)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.upstream_state()}, folder / "pretrained.pt")
    tokens = [*SPECIAL, *pieces(vocab_size - len(SPECIAL))]
    lines = "".join(f"{token} {index}\n" for index, token in enumerate(tokens))
    (folder / "tokens.txt").write_text(lines, encoding="utf-8")
    return model


def random_bundle(
    size: str | ZipformerConfig | ConformerConfig,
    output: Path,
    *,
    seed: int = 7,
    token_rate: float = 0.0,
    vocab_size: int = 500,
    **options: Any,
) -> Bundle:
    """Export a random model, see `write_checkpoint`; further arguments are those of `export_icefall`."""

    def write(folder: Path) -> dict[str, Path]:
        causal = options.get("streaming", False)
        write_checkpoint(size, folder, causal=causal, seed=seed, token_rate=token_rate, vocab_size=vocab_size)
        return {"checkpoint": folder / "pretrained.pt", "tokens": folder / "tokens.txt"}

    return export_random(export_icefall, write, output, **options)


def _balance(model: IcefallModel, waveform: Waveform, emitting: float) -> None:
    """Have every token vary about equally over frames, and the blank win in all but `emitting` of them."""
    frames = _frames(model, waveform)
    logits = _logits(model, frames)
    output = model.joiner.output_linear
    scale = SPREAD / logits.std(dim=0)
    output.weight.mul_(scale.unsqueeze(1))
    output.bias.copy_((output.bias - logits.mean(dim=0)) * scale)
    output.bias[1 : len(SPECIAL)] = NEVER
    # The blank's lead decides how often anything is said, and what was said decides the blank's lead.
    low, high = -20 * SPREAD, 20 * SPREAD
    usual = output.bias[0].item()
    frames = _frames(model, waveform)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        output.bias[0] = usual + middle
        low, high = (middle, high) if _share_emitting(model, frames) > emitting else (low, middle)


def _share_emitting(model: IcefallModel, frames: Tensor) -> float:
    """Of frames in which greedy search says a token."""
    context = [-1] * (model.predictor.context_size - 1) + [0]
    predicted = None
    said = 0
    for frame in frames:
        if predicted is None:
            predicted = model.joiner.project_predictor(model.predictor(torch.tensor([context])))[0]
        token = int(model.joiner(frame, predicted).argmax())
        if token:
            said += 1
            context, predicted = [*context[1:], token], None
    return said / len(frames)


def _logits(model: IcefallModel, frames: Tensor) -> Tensor:
    """Logits (frames, vocab) with the context in which most frames of a real search are: some two tokens."""
    vocab_size = model.predictor.config.vocab_size
    contexts = torch.randint(len(SPECIAL), vocab_size, (len(frames), model.predictor.context_size))
    return model.joiner(frames, model.joiner.project_predictor(model.predictor(contexts)))


def _frames(model: IcefallModel, waveform: Waveform) -> Tensor:
    """Projected encoder frames (frames, dim) of audio."""
    features, count = make_fbank(feature_bins(model))(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
    encoded, num_frames = model.encoder(features, count)
    return model.joiner.project_encoder(encoded[0, : int(num_frames[0])])
