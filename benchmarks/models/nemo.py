"""NeMo's FastConformers of published sizes with random weights: speed does not depend on what a network has learnt.

    python -m benchmarks.models.nemo --output DIR --size parakeet-tdt-0.6b-v2

    "parakeet-tdt-0.6b-v2"  ->  model.nemo in upstream's form  ->  `tritone export nemo`  ->  bundle

The last layer is balanced on speech: every token varies about equally over frames, and the blank's bias is set by
halving until greedy search says as many word pieces a second as people do. Durations of TDT vary equally, too, so that
all of them occur. Weights are stored in float16, half of what upstream's archives take. Sizes are those of the
published models' configs. Needs the extra `export`.
"""

import io
import struct
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from benchmarks.models.pieces import pieces, speech
from benchmarks.models.random_bundle import export_random, options_parser
from tritone.bundle import Bundle
from tritone.families.export.archive import CONFIG, WEIGHTS
from tritone.families.export.joiner import JoinerGraph
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.graphs import PredictorGraph
from tritone.families.nemo.model import NemoModel
from tritone.search.transducer.stateful import StatefulState, advance_stateful

TOKENIZER = "tokenizer.model"
NORMAL, UNKNOWN, BPE = 1, 2, 2  # of sentencepiece_model.proto
TDT = (0, 1, 2, 3, 4)
SPREAD = 3.0  # standard deviation of a token's logit over frames
BALANCED_ON_S, HALVINGS = 10, 14
TOKEN_RATE = 5.0  # word pieces a second of speech


@dataclass(frozen=True, kw_only=True)
class Size:
    """An encoder and its head: "ctc", "rnnt" or "tdt". `tokens`: word pieces, without the blank.

    `streaming`: cache-aware, for the contexts (past, future) in encoder frames of 80 ms that it was trained with.
    """

    head: str
    layers: int = 24
    width: int = 1024
    heads: int = 8
    features: int = 128
    channels: int = 256
    tokens: int = 1024
    hidden: int = 640  # of the prediction network, and of the joint
    biases: bool = False
    streaming: tuple[tuple[int, int], ...] = ()


LARGE: dict[str, Any] = {"layers": 42, "features": 80, "biases": True}
SIZES = {
    "parakeet-tdt-0.6b-v2": Size(head="tdt"),
    "parakeet-tdt-0.6b-v3": Size(head="tdt", tokens=8192),
    "parakeet-ctc-1.1b": Size(head="ctc", **LARGE),
    "parakeet-rnnt-1.1b": Size(head="rnnt", **LARGE),
    "nemotron-streaming-0.6b": Size(head="rnnt", streaming=((70, 13), (70, 6), (70, 1), (70, 0))),
}
TINY: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "features": 20, "channels": 8, "tokens": 60, "hidden": 32}


def smaller(size: str) -> Size:
    """The same architecture, as narrow as can be, for tests."""
    return replace(SIZES[size], **TINY)


def config_of(size: Size) -> dict[str, Any]:
    """The content of upstream's model_config.yaml."""
    scaled = size.biases  # the published models have both or neither
    target = "EncDecCTCModelBPE" if size.head == "ctc" else "EncDecRNNTBPEModel"
    vocabulary = pieces(size.tokens)
    encoder: dict[str, Any] = {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": size.features,
        "feat_out": -1,
        "n_layers": size.layers,
        "d_model": size.width,
        "use_bias": size.biases,
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": size.channels,
        "causal_downsampling": False,
        "ff_expansion_factor": 4,
        "self_attention_model": "rel_pos",
        "n_heads": size.heads,
        "att_context_size": [-1, -1],
        "xscaling": scaled,
        "untie_biases": True,
        "conv_kernel_size": 9,
        "conv_norm_type": "batch_norm",
    }
    if size.streaming:
        encoder |= {
            "causal_downsampling": True,
            "att_context_size": [list(each) for each in size.streaming],
            "att_context_style": "chunked_limited",
            "conv_norm_type": "layer_norm",
            "conv_context_size": "causal",
        }
    content: dict[str, Any] = {
        "target": f"nemo.collections.asr.models.{target}",
        "sample_rate": 16000,
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000,
            "normalize": "NA" if size.streaming else "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": size.features,
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1e-05,
            "pad_to": 0,
        },
        "encoder": encoder,
        "tokenizer": {"type": "bpe", "model_path": f"nemo:{TOKENIZER}"},
    }
    if size.head == "ctc":
        content["decoder"] = {
            "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
            "feat_in": size.width,
            "vocabulary": vocabulary,
        }
        return content
    durations = list(TDT) if size.head == "tdt" else []
    content["decoder"] = {
        "_target_": "nemo.collections.asr.modules.RNNTDecoder",
        "normalization_mode": None,
        "blank_as_pad": True,
        "prednet": {"pred_hidden": size.hidden, "pred_rnn_layers": 2},
        "vocab_size": size.tokens,
    }
    content["joint"] = {
        "_target_": "nemo.collections.asr.modules.RNNTJoint",
        "jointnet": {"joint_hidden": size.hidden, "activation": "relu", "dropout": 0.2},
        "num_extra_outputs": len(durations),
        "vocabulary": vocabulary,
        "num_classes": size.tokens,
    }
    content["decoding"] = {"strategy": "greedy_batch", "greedy": {"max_symbols": 10}}
    if durations:
        content["decoding"] |= {"model_type": "tdt", "durations": durations}
    return content


def write_archive(size: str | Size, path: Path, *, seed: int = 7, token_rate: float = TOKEN_RATE) -> Path:
    """Write a .nemo archive of a random model of one of `SIZES`, or of another size.

    Args:
        token_rate: word pieces a second of speech.
    """
    chosen = SIZES[size] if isinstance(size, str) else size
    content = config_of(chosen)
    state = random_state(content, chosen.tokens, seed, token_rate)
    return store_archive(path, content, {TOKENIZER: tokenizer(chosen.tokens)}, state)


def store_archive(
    path: Path, content: Mapping[str, Any], files: Mapping[str, bytes], state: Mapping[str, Tensor]
) -> Path:
    """Write a .nemo archive of a config, further files and tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive, tempfile.TemporaryFile(dir=path.parent) as weights:
        for name, data in {CONFIG: yaml.safe_dump(dict(content), sort_keys=False).encode(), **files}.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        torch.save({name: value.half() for name, value in state.items()}, weights)
        member = tarfile.TarInfo(f"./{WEIGHTS}")
        member.size = weights.tell()
        weights.seek(0)
        archive.addfile(member, weights)
    return path


def tokenizer(count: int) -> bytes:
    """A sentencepiece model of the pieces, with the unknown one first, as upstream trains them."""
    return sentencepiece_model(pieces(count - 1))


def sentencepiece_model(listed: Sequence[str]) -> bytes:
    """A sentencepiece model of <unk> and these pieces.

    Written as the bytes of its protobuf message: sentencepiece's own module for that asks for a newer protobuf than
    Triton's client takes.
    """
    pieces_of = [("<unk>", UNKNOWN), *((piece, NORMAL) for piece in listed)]
    messages = (
        _field(1, piece.encode()) + struct.pack("<Bf", 2 << 3 | 5, -float(index)) + bytes((3 << 3, kind))
        for index, (piece, kind) in enumerate(pieces_of)
    )
    return b"".join(_field(1, each) for each in messages) + _field(2, bytes((3 << 3, BPE)))


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes, shorter than 128, of a protobuf message."""
    return bytes((number << 3 | 2, len(data))) + data


@torch.no_grad()
def random_state(content: dict[str, Any], num_tokens: int, seed: int, token_rate: float) -> dict[str, Tensor]:
    """Tensors by upstream's names, balanced."""
    config = parse_config(content)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NemoModel(config, num_tokens).eval()
        for layer in model.encoder.pre_encode.conv:
            if isinstance(layer, nn.Conv2d):  # so that frames differ as much after it as before
                nn.init.kaiming_normal_(layer.weight)
        if model.predictor is not None:
            model.predictor.embed.weight[num_tokens:] = 0.0
            for value in model.predictor.prediction["dec_rnn"].parameters():  # which are zeros here, see `Lstm`
                nn.init.uniform_(value, -(config.transducer.hidden**-0.5), config.transducer.hidden**-0.5)  # type: ignore[union-attr]
        waveform = torch.from_numpy(speech(BALANCED_ON_S, config.features.sample_rate))[None]
        encoded = model.encoder(*LogMel(config.features)(waveform, torch.tensor([waveform.shape[1]])))[0]
        _balance(model, encoded[0], token_rate)
    return model.upstream_state()


def _balance(model: NemoModel, encoded: Tensor, token_rate: float) -> None:
    """Have tokens, and durations, vary about equally over frames, and the blank win as often as the rate asks for.

    Args:
        encoded: (frames, width) of `BALANCED_ON_S` seconds.
    """
    said: Callable[[], int]
    if model.ctc is not None:
        last = model.ctc.decoder_layers[0]
        logits = model.ctc(encoded[None])[0]

        def said() -> int:
            best = model.ctc(encoded[None])[0].argmax(dim=1)  # type: ignore[misc]
            return int(((best != model.num_tokens) & (best != best.roll(1))).sum())

    else:
        assert model.predictor is not None
        assert model.joint is not None
        last, network = model.joint.joint_net[-1], _Network(model)
        frames = model.joint.enc(encoded)
        states = [torch.zeros(len(frames), *shape) for shape in [network.shape] * 2]
        tokens = torch.randint(model.num_tokens, (len(frames), 1))
        predicted = model.predictor(tokens, *states)[0]
        # What was said counts as much as what is heard: otherwise a frame says one token as often as it may.
        apart = [(each - each.mean(dim=0)).std() for each in (frames, model.joint.pred(predicted))]
        model.joint.pred.weight.mul_(apart[0] / apart[1])
        logits = model.joint(frames, model.joint.pred(predicted))

        def said() -> int:
            search = StatefulState(network, max_symbols=model.config.transducer.max_symbols)  # type: ignore[union-attr]
            return len(advance_stateful([search], frames[None].numpy(), np.array([len(frames)]))[0])

    assert isinstance(last, nn.Linear | nn.Conv1d)
    assert last.bias is not None
    scale = SPREAD / logits.std(dim=0)
    last.weight.mul_(scale.reshape(-1, *[1] * (last.weight.dim() - 1)))
    last.bias.copy_((last.bias - logits.mean(dim=0)) * scale)
    # The blank's lead decides how often anything is said, and what was said decides the blank's lead.
    usual, low, high = last.bias[model.num_tokens].item(), -20 * SPREAD, 20 * SPREAD
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        last.bias[model.num_tokens] = usual + middle
        low, high = (middle, high) if said() > token_rate * BALANCED_ON_S else (low, middle)


class _Network:
    """Predictor and joiner as the search asks them."""

    def __init__(self, model: NemoModel) -> None:
        assert model.predictor is not None
        assert model.joint is not None
        settings = model.predictor.config
        self.shape = settings.layers, settings.hidden
        self.durations, self.vocab_size, self.blank_id = settings.durations, model.num_tokens + 1, model.num_tokens
        self._predictor, self._joiner = PredictorGraph(model.predictor, model.joint), JoinerGraph(model.joint)

    @property
    def first(self) -> Any:
        return self.step(np.array([[self.blank_id]]), [np.zeros((1, *self.shape), np.float32)] * 2)

    def step(self, tokens: Any, states: Any) -> Any:
        vectors, *after = self._predictor(torch.from_numpy(tokens), *map(torch.from_numpy, states))
        return vectors.numpy(), [each.numpy() for each in after]

    def join(self, frames: Any, vectors: Any) -> Any:
        logits, *_ = self._joiner(torch.from_numpy(frames), torch.from_numpy(vectors))
        return logits.numpy()


def random_bundle(
    size: str | Size, output: Path, *, seed: int = 7, token_rate: float = TOKEN_RATE, **options: Any
) -> Bundle:
    """Export a random model, see `write_archive`; further arguments are those of `export_nemo`."""

    def write(folder: Path) -> dict[str, Path]:
        return {"archive": write_archive(size, folder / "model.nemo", seed=seed, token_rate=token_rate)}

    return export_random(export_nemo, write, output, **options)


def main() -> None:
    parser = options_parser("Write a bundle of a Parakeet with random weights.")
    parser.add_argument("--size", default="parakeet-tdt-0.6b-v2", choices=list(SIZES))
    parser.add_argument("--archive", action="store_true", help="write the archive alone, to the output")
    given = vars(parser.parse_args())
    size, archive = given.pop("size"), given.pop("archive")
    print(write_archive(size, given["output"], seed=given["seed"]) if archive else random_bundle(size, **given).path)


if __name__ == "__main__":
    main()
