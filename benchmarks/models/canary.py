"""Canaries of published sizes with random weights, as NeMo's archives.

    python -m benchmarks.models.canary canary-180m-flash.nemo --size canary-180m-flash

    "canary-180m-flash"  ->  FILE.nemo in upstream's form, in float16

Sizes are those of the published models' cards and configs. Tokens that are no text are never written, so that a text is
as long as a request allows. Needs the extra `export`.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.models.nemo import Size as EncoderSize
from benchmarks.models.nemo import config_of, sentencepiece_model, store_archive
from benchmarks.models.pieces import pieces
from tritone.families.export.settings import Section
from tritone.families.nemo.canary import LANGUAGES, PROMPT, PUNCTUATION, WORD_TIMES, Network, canary_sizes, positions
from tritone.families.nemo.canary_archive import RENAMED, SPECIAL, TARGET
from tritone.families.nemo.config import ENCODER_KEYS, FEATURE_KEYS, encoder_config, feature_config

END = "<|endoftext|>"
NEVER = -1e4  # the bias of tokens that are not written
TIMES = 900  # tokens of times, 80 ms apart


@dataclass(frozen=True, kw_only=True)
class Size:
    """`encoder`: layers and width; `decoder`: layers; `languages`: each with a tokenizer of so many `pieces`."""

    encoder: tuple[int, int]
    decoder: int
    languages: tuple[str, ...] = ("en", "de", "es", "fr")
    pieces: int = 1024
    special: int = 1152
    width: int = 1024
    hidden: int = 4096
    heads: int = 8
    context: int = 1024


SIZES = {
    "canary-180m-flash": Size(encoder=(17, 512), decoder=4),
    "canary-1b-flash": Size(encoder=(32, 1024), decoder=4),
    "canary-1b-v2": Size(encoder=(32, 1024), decoder=8, languages=LANGUAGES, pieces=600, special=1384),
}


def special_tokens(size: Size) -> list[str]:
    """The pieces of the prompt's tokenizer behind <unk>."""
    named = [*(each for each in PROMPT if each.startswith("<|")), *PUNCTUATION, *WORD_TIMES, END, "<|itn|>"]
    named += [f"<|{code}|>" for code in size.languages] + [f"<|{number}|>" for number in range(TIMES)]
    return named + [f"<|spltoken{number}|>" for number in range(size.special - 1 - len(named))]


@torch.no_grad()
def write_archive(size: Size, path: Path, seed: int = 7) -> Path:
    """Write the archive of a random model."""
    layers, width = size.encoder
    content = config_of(EncoderSize(head="ctc", layers=layers, width=width, biases=False))
    vocab = size.special + size.pieces * len(size.languages)
    decoder = {
        "num_layers": size.decoder,
        "hidden_size": size.width,
        "inner_size": size.hidden,
        "num_attention_heads": size.heads,
        "max_sequence_length": size.context,
        "pre_ln": True,
        "hidden_act": "relu",
        "vocab_size": vocab,
    }
    tokenizers = {SPECIAL: special_tokens(size), **dict.fromkeys(size.languages, pieces(size.pieces - 1))}
    del content["decoder"]
    content |= {
        "target": f"nemo.collections.asr.models.aed_multitask_models.{TARGET}",
        "prompt_format": "canary2",
        "transf_encoder": {"num_layers": 0},
        "transf_decoder": {"pre_ln_final_layer_norm": True, "config_dict": decoder},
        "tokenizer": {"type": "agg", "langs": {name: {"model_path": f"nemo:{name}.model"} for name in tokenizers}},
    }
    files = {f"{name}.model": sentencepiece_model(each) for name, each in tokenizers.items()}
    return store_archive(path, content, files, random_state(content, size, vocab, seed))


def random_state(content: dict[str, Any], size: Size, vocab: int, seed: int) -> dict[str, Tensor]:
    """Tensors by upstream's names."""
    whole = Section("config", content)
    features = feature_config(whole.section("preprocessor", FEATURE_KEYS))
    encoder = encoder_config(whole.section("encoder", ENCODER_KEYS), features)
    sizes = canary_sizes(
        vocab=vocab,
        context=size.context,
        width=size.width,
        heads=size.heads,
        layers=size.decoder,
        hidden=size.hidden,
        tied=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(encoder, sizes)
    network.decoder.positional_embedding.copy_(positions(size.context, size.width))
    network.decoder.head.bias[: size.special] = NEVER
    return {upstream_name(name): value for name, value in network.state_dict().items()}


def upstream_name(name: str) -> str:
    """What a tensor of our network is called in NeMo's archives."""
    if name.startswith("encoder.conformer."):
        return f"encoder.{name.removeprefix('encoder.conformer.')}"
    for theirs, ours in reversed(RENAMED):  # later names are parts of earlier ones
        name = name.replace(ours, theirs)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the archive of a Canary with random weights.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("--size", default="canary-180m-flash", choices=list(SIZES))
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    print(write_archive(SIZES[given.size], given.archive, given.seed))


if __name__ == "__main__":
    main()
