"""WeNet models of any size with random weights: speed does not depend on what a network has learnt.

    python -m benchmarks.models.wenet --output DIR --width 256 --vocab-size 5000 --runtimes onnxruntime,torch

    ModelSize  ->  final.pt, train.yaml, units.txt  ->  `tritone export wenet`  ->  bundle

The CTC head is balanced on noise, so that the model says many different tokens and its texts can be compared.
Needs the extra `export`.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml

from benchmarks.models.pieces import pieces, speech
from benchmarks.models.random_bundle import export_random, options_parser
from tritone.bundle import Bundle
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.export import export_wenet
from tritone.families.wenet.model import AsrModel

SPECIAL = ("<blank>", "<unk>", "<sos/eos>", "▁")
NEVER = -40.0  # logit of special tokens, where the rate of the others is given
COLOUR_CHANGE = 640  # samples, 40 ms: one encoder frame
BLANK_HEAD_START = 4.0  # natural-log units; about as many blanks as a trained model says
EACH_S = 10  # of an utterance to balance on: what a random network says depends on how much it hears at once
UTTERANCES, AT_ONCE = 48, 8
DIRECTIONS = 8  # in which utterances differ most
RIDGE = 0.1  # of the largest of their variances
SHARPER = 4.0  # logits, where the rate of tokens is given: trained models are sure of most frames, so beams agree
HALVINGS = 20


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """A streamable conformer. The defaults are the shipped demo model's; `vocab_size` counts the special tokens too.

    `decoder_blocks`: of each attention decoder, left to right and right to left (U2++); 0 is none. `token_rate`: how
    many tokens a second of speech has, which are word pieces then; 0 makes characters, balanced on noise.
    """

    width: int = 96
    blocks: int = 12
    heads: int = 4
    linear_units: int = 384
    kernel: int = 15
    vocab_size: int = 32
    decoder_blocks: int = 0
    token_rate: int = 0
    mel_bins: int = 80

    def __post_init__(self) -> None:
        if self.vocab_size <= len(SPECIAL):
            raise ValueError(f"vocab_size must be more than {len(SPECIAL)}, the special tokens; got {self.vocab_size}")
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")

    @property
    def config(self) -> dict[str, Any]:
        """The model as WeNet's train.yaml has it."""
        decoder = {
            "attention_heads": self.heads,
            "linear_units": self.linear_units,
            "num_blocks": self.decoder_blocks,
            "r_num_blocks": self.decoder_blocks,
        }
        return {
            **({"decoder": "bitransformer", "decoder_conf": decoder} if self.decoder_blocks else {}),
            **({"model_conf": {"ctc_weight": 0.3, "reverse_weight": 0.3}} if self.decoder_blocks else {}),
            **({"tokenizer": "bpe"} if self.token_rate else {}),
            "encoder": "conformer",
            "encoder_conf": {
                "output_size": self.width,
                "attention_heads": self.heads,
                "linear_units": self.linear_units,
                "num_blocks": self.blocks,
                "input_layer": "conv2d",
                "cnn_module_kernel": self.kernel,
                "cnn_module_norm": "layer_norm",
                "causal": True,
                "use_dynamic_chunk": True,
            },
            "cmvn": "global_cmvn",
            "cmvn_conf": {"cmvn_file": "global_cmvn", "is_json_cmvn": True},
            "input_dim": self.mel_bins,
            "output_dim": self.vocab_size,
        }

    @property
    def units(self) -> list[str]:
        """Special tokens, letters, then characters from U+4E00 on for larger vocabularies; or word pieces."""
        if self.token_rate:
            return [*SPECIAL, *pieces(self.vocab_size - len(SPECIAL))]
        letters = "abcdefghijklmnopqrstuvwxyz'0123456789"
        plain = [*letters, *(chr(0x4E00 + index) for index in range(max(0, self.vocab_size)))]
        return [*SPECIAL, *plain][: self.vocab_size]


def write_checkpoint(size: ModelSize, folder: Path, seed: int = 7) -> dict[str, Path]:
    """Write final.pt, train.yaml and units.txt of a random model to `folder`; returns their paths by name."""
    torch.manual_seed(seed)
    model = AsrModel(parse_config(size.config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.6)  # else deep random networks say the same to every input
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        assert model.encoder.global_cmvn is not None
        # Log-mel features of 16-bit speech lie around -5 to 15.
        model.encoder.global_cmvn.mean.fill_(5.0)
        model.encoder.global_cmvn.istd.fill_(0.3)
        if size.token_rate:
            _balance(model, speech(UTTERANCES * EACH_S).reshape(UTTERANCES, -1), size.token_rate)
        else:
            _balance(model, babble(160_000, seed=1)[None])
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"checkpoint": folder / "final.pt", "config": folder / "train.yaml", "tokens": folder / "units.txt"}
    torch.save(model.state_dict(), paths["checkpoint"])
    paths["config"].write_text(yaml.safe_dump(size.config), encoding="utf-8")
    lines = "".join(f"{unit} {index}\n" for index, unit in enumerate(size.units))
    paths["tokens"].write_text(lines, encoding="utf-8")
    return paths


def random_bundle(size: ModelSize, output: Path, *, seed: int = 7, streaming: bool = True, **options: Any) -> Bundle:
    """Export a random model; further arguments are those of `export_wenet`."""
    return export_random(
        export_wenet, lambda folder: write_checkpoint(size, folder, seed), output, streaming=streaming, **options
    )


def babble(samples: int, seed: int) -> npt.NDArray[np.float32]:
    """Noise (samples,) in [-1, 1] whose loudness and colour change every 40 ms, so that the tokens change too."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 1, samples)
    segments = samples // COLOUR_CHANGE + 1
    loudness = np.repeat(10 ** rng.uniform(-3, -0.5, segments), COLOUR_CHANGE)[:samples]
    colour = np.repeat(rng.uniform(-0.95, 0.95, segments), COLOUR_CHANGE)[:samples]
    mixed = loudness * (noise + colour * np.roll(noise, 1)) / 2
    return np.clip(mixed, -1, 1).astype(np.float32)


def _balance(model: AsrModel, heard: npt.NDArray[np.float32], token_rate: float | None = None) -> None:
    """Have every token vary about equally over frames, and the blank win as often as in speech, or at that rate.

    `heard`: (utterances, samples).
    """
    fbank = Fbank(num_mel_bins=model.config.num_mel_bins)
    model.eval()

    def encode(waveform: torch.Tensor) -> torch.Tensor:
        features, count = fbank(waveform, torch.full((len(waveform),), waveform.shape[1]))
        found: torch.Tensor = model.encoder(features, count)[0]
        return found

    encoded = torch.cat([encode(some) for some in torch.from_numpy(heard).split(AT_ONCE)])
    head, blank = model.ctc.ctc_lo, model.config.blank_id
    logits = (encoded @ head.weight.T).flatten(0, 1)
    scale = 3.0 / logits.std(dim=0)
    head.weight.mul_(scale.unsqueeze(1))
    head.bias.copy_(-logits.mean(dim=0) * scale)
    head.bias[blank] += BLANK_HEAD_START
    if token_rate is None:
        return
    head.bias[1 : len(SPECIAL)] = NEVER
    if model.config.eos_id is None:
        head.bias[-1] = NEVER  # which then starts and ends sentences
    scores = encoded @ head.weight.T + head.bias
    others, tokens = scores.index_fill(2, torch.tensor([blank]), NEVER).max(dim=2)
    wanted = token_rate * heard.shape[1] / 16000
    # Trained models hear as many tokens whoever speaks. What this one wants of the blank for each utterance is guessed
    # from the means of its frames.
    leads = others - scores[:, :, blank]  # over the blank, frame by frame
    thresholds = torch.tensor([_threshold(*each, wanted) for each in zip(leads, tokens, strict=True)])
    means = encoded.mean(dim=1)
    apart, middle = means - means.mean(dim=0), means.mean(dim=0)
    directions = torch.linalg.svd(apart, full_matrices=False)[2][:DIRECTIONS]
    places = apart @ directions.T
    variances = places.T @ places
    ridge = RIDGE * variances[0, 0] / len(heard) * torch.eye(len(directions))
    row = torch.linalg.solve(variances + ridge, places.T @ (thresholds - thresholds.mean())) @ directions
    head.weight[blank] += row
    head.bias[blank] -= middle @ row
    leads -= (encoded - middle) @ row
    head.bias[blank] += _threshold(leads, tokens, wanted * len(heard))
    for each in (head.weight, head.bias):
        each.mul_(SHARPER)


def _threshold(leads: torch.Tensor, tokens: torch.Tensor, wanted: float) -> float:
    """The lead over the blank, in (..., frames), that tokens need if so many are to be said."""
    low, high = -60.0, 60.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        best = torch.where(leads > middle, tokens, -1)
        said = int(((best[..., 1:] != best[..., :-1]) & (best[..., 1:] >= 0)).sum())
        low, high = (middle, high) if said > wanted else (low, middle)
    return (low + high) / 2


def main() -> None:
    parser = options_parser("Write a bundle with random weights.")
    sizes = [field.name for field in fields(ModelSize) if field.name != "mel_bins"]
    for name in sizes:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(ModelSize, name))
    parser.add_argument("--chunk-size", type=int, default=16, help="encoder frames of a streaming step")
    parser.add_argument("--left-chunks", type=int, default=5, help="past chunks that a streaming step sees")
    given = vars(parser.parse_args())
    print(random_bundle(ModelSize(**{name: given.pop(name) for name in sizes}), **given).path)


if __name__ == "__main__":
    main()
