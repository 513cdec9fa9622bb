"""FastConformer transducers as NeMo's own export writes them: what published models of sherpa-onnx and onnx-asr run.

    python -m benchmarks.models.nemo_upstream FILE.nemo FOLDER

    write_layouts(FILE.nemo, folder)  ->  folder/sherpa-onnx: encoder, decoder and joiner.int8.onnx, tokens.txt
                                          folder/onnx-asr: encoder and decoder_joint-model.int8.onnx, vocab.txt, config

The networks compute the same; NeMo's pointwise convolutions are convolutions, its prediction network is an operator,
its attention masks scores twice, and its joint network projects every frame anew at each step. Graphs are quantised as
sherpa-onnx's scripts do it: weights of the encoder unsigned, convolutions among them. Sources: NeMo, the classes that
`tritone.families.nemo` names; sherpa-onnx, scripts/nemo/parakeet-tdt-0.6b-v2/export_onnx.py; onnx-asr,
src/onnx_asr/models/nemo.py.
"""

import argparse
import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import onnx
import torch
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.layers.attention import shifted
from tritone.families.nemo.encoder import Convolution, RelativeAttention
from tritone.families.nemo.model import NemoModel, read_archive
from tritone.families.onnx.large import WeightFile, write
from tritone.families.onnx.writer import export_graph

MASKED = -10000.0
SHERPA, ONNX_ASR = "sherpa-onnx", "onnx-asr"
MOST_DIFFERENCE = 1e-3  # of encoder frames, both ways of computing them


def write_layouts(archive: Path, folder: Path) -> None:
    """Write a transducer of an archive for both.

    Raises:
        RuntimeError: the networks with NeMo's operators do not compute what ours do.
    """
    model, tokens = read_archive(archive)
    config = model.config.transducer
    assert config is not None
    for name in (SHERPA, ONNX_ASR):
        (folder / name).mkdir(parents=True, exist_ok=True)
    features = model.config.features.n_filt
    with upstream_operators():
        encoder = _Encoder(model)
        example = {"audio_signal": torch.randn(2, features, 211), "length": torch.tensor([211, 160])}
        _require_same(model, encoder, example)
        axes = {"audio_signal": {0: "B", 2: "T"}, "length": {0: "B"}}
        path = folder / "encoder.onnx"
        with WeightFile(folder / ".weights") as weights:
            made = export_graph(encoder, example, ("outputs", "encoded_lengths"), axes, {}, opset=17, weights=weights)
            written = write(made, path)
            weights.path.unlink()
    sherpa = folder / SHERPA / "encoder.int8.onnx"
    quantize_dynamic(path, sherpa, weight_type=QuantType.QUInt8)
    for name in written:
        (folder / name).unlink()
    shutil.copy(sherpa, folder / ONNX_ASR / "encoder-model.int8.onnx")
    described = {
        "vocab_size": len(tokens) - 1,
        "normalize_type": "per_feature",
        "pred_rnn_layers": config.layers,
        "pred_hidden": config.hidden,
        "subsampling_factor": model.config.encoder.factor,
        "model_type": "EncDecRNNTBPEModel",
        # sherpa-onnx takes a model for TDT by its address.
        "url": f"https://huggingface.co/nvidia/parakeet-{'tdt' if config.durations else 'rnnt'}-random",
        "version": "2",
        "feat_dim": features,
    }
    _describe(sherpa, {name: str(value) for name, value in described.items()})
    predictor, joint = _Predictor(model), _Joint(model)
    asked = _predictor_example(config.layers, config.hidden)
    heard = {"encoder_outputs": torch.zeros(2, model.encoder.output_dim, 3)}
    said = {"decoder_outputs": torch.zeros(2, config.hidden, 5)}
    states = ("prednet_lengths", "output_states_1", "output_states_2")
    whole = folder / ONNX_ASR / "decoder_joint-model.onnx"
    for module, inputs, outputs, target in (
        (predictor, asked, ("outputs", *states), folder / SHERPA / "decoder.onnx"),
        (joint, heard | said, ("outputs",), folder / SHERPA / "joiner.onnx"),
        (_PredictorJoint(predictor, joint), heard | asked, ("outputs", *states), whole),
    ):
        write(export_graph(module, inputs, outputs, _axes(inputs), {}, opset=17), target)
        quantize_dynamic(target, target.with_suffix(".int8.onnx"), weight_type=QuantType.QInt8)
        target.unlink()
    names = [*tokens[:-1], "<blk>"]
    table = "".join(f"{token} {index}\n" for index, token in enumerate(names))
    (folder / SHERPA / "tokens.txt").write_text(table, encoding="utf-8")
    (folder / ONNX_ASR / "vocab.txt").write_text(table, encoding="utf-8")
    kind = "nemo-conformer-tdt" if config.durations else "nemo-conformer-rnnt"
    settings = {"model_type": kind, "features_size": features, "subsampling_factor": model.config.encoder.factor}
    (folder / ONNX_ASR / "config.json").write_text(json.dumps(settings), encoding="utf-8")


@contextlib.contextmanager
def upstream_operators() -> Iterator[None]:
    """Have encoders compute as NeMo's do while they are traced."""
    with (
        mock.patch.object(Convolution, "forward", _convolution),
        mock.patch.object(RelativeAttention, "forward", _attention),
    ):
        yield


def _convolution(self: Convolution, x: Tensor, valid: Tensor) -> Tensor:
    x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
    x = x.masked_fill(valid.transpose(1, 2) == 0, 0.0)
    x = self.batch_norm(self.depthwise_conv(F.pad(x, self.padding)))
    return self.pointwise_conv2(F.silu(x)).transpose(1, 2)


def _attention(self: RelativeAttention, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    def split(values: Tensor) -> Tensor:
        return values.unflatten(-1, (self.heads, self.size))

    query, key, value = (split(layer(x)) for layer in (self.linear_q, self.linear_k, self.linear_v))
    place = split(self.linear_pos(places)).transpose(1, 2)
    content = (query + self.pos_bias_u).transpose(1, 2) @ key.permute(0, 2, 3, 1)
    distance = (query + self.pos_bias_v).transpose(1, 2) @ place.transpose(-2, -1)
    hidden = ~mask.unsqueeze(1)
    scores = (content + shifted(distance, x.shape[1])) / self.size**0.5
    weights = torch.softmax(scores.masked_fill(hidden, MASKED), dim=-1).masked_fill(hidden, 0.0)
    return self.linear_out((weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2))


class _Encoder(nn.Module):
    """Features (B, bins, T) -> encoder frames (B, width, T'), and how many each row has."""

    def __init__(self, model: NemoModel) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        frames, count = self.encoder(audio_signal.transpose(1, 2), length)
        return frames.transpose(1, 2), count


class _Predictor(nn.Module):
    """Tokens (B, U), states (layers, B, hidden) -> outputs (B, hidden, U), lengths, states."""

    def __init__(self, model: NemoModel) -> None:
        super().__init__()
        assert model.predictor is not None
        config = model.predictor.config
        self.embed = model.predictor.embed
        self.lstm = nn.LSTM(config.hidden, config.hidden, config.layers)
        recurrent = model.predictor.prediction["dec_rnn"].state_dict()
        self.lstm.load_state_dict({name.removeprefix("lstm."): value for name, value in recurrent.items()})

    def forward(self, targets: Tensor, target_length: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        found, (hidden, cell) = self.lstm(self.embed(targets).transpose(0, 1), states)
        return found.permute(1, 2, 0), target_length + 0, hidden, cell


class _Joint(nn.Module):
    """Encoder frames (B, width, T), predictions (B, hidden, U) -> logits (B, T, U, tokens and durations)."""

    def __init__(self, model: NemoModel) -> None:
        super().__init__()
        assert model.joint is not None
        self.joint = model.joint

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        heard = self.joint.enc(encoder_outputs.transpose(1, 2)).unsqueeze(2)
        logits: Tensor = self.joint.joint_net(heard + self.joint.pred(decoder_outputs.transpose(1, 2)).unsqueeze(1))
        return logits


class _PredictorJoint(nn.Module):
    def __init__(self, predictor: _Predictor, joint: _Joint) -> None:
        super().__init__()
        self.predictor, self.joint = predictor, joint

    def forward(self, encoder_outputs: Tensor, *asked: Tensor) -> tuple[Tensor, ...]:
        said, *states = self.predictor(*asked)
        return self.joint(encoder_outputs, said), *states


def _predictor_example(layers: int, hidden: int) -> dict[str, Tensor]:
    return {
        "targets": torch.zeros(2, 5, dtype=torch.int32),
        "target_length": torch.tensor([5, 5], dtype=torch.int32),
        "input_states_1": torch.zeros(layers, 2, hidden),
        "input_states_2": torch.zeros(layers, 2, hidden),
    }


def _axes(inputs: Sequence[str] | Mapping[str, Tensor]) -> dict[str, dict[int, str]]:
    known = {
        "targets": {0: "B", 1: "U"},
        "target_length": {0: "B"},
        "input_states_1": {1: "B"},
        "input_states_2": {1: "B"},
        "encoder_outputs": {0: "B", 2: "T"},
        "decoder_outputs": {0: "B", 2: "U"},
    }
    return {name: known[name] for name in inputs}


@torch.no_grad()
def _require_same(model: NemoModel, theirs: _Encoder, example: Mapping[str, Tensor]) -> None:
    found, count = theirs(*example.values())
    with contextlib.ExitStack() as stack:
        for owner, forward in ((Convolution, OURS[0]), (RelativeAttention, OURS[1])):
            stack.enter_context(mock.patch.object(owner, "forward", forward))
        expected, _ = model.encoder(example["audio_signal"].transpose(1, 2), example["length"])
    worst = max(
        float((one[:, :end].T - other[:end]).abs().max())
        for one, other, end in zip(found, expected, count, strict=True)
    )
    if not worst <= MOST_DIFFERENCE:
        raise RuntimeError(f"encoder frames with NeMo's operators differ by {worst:.2g}, at most {MOST_DIFFERENCE:g}")


OURS = Convolution.forward, RelativeAttention.forward


def _describe(path: Path, metadata: Mapping[str, str]) -> None:
    model = onnx.load(str(path))
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an archive's transducer for sherpa-onnx and onnx-asr.")
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    write_layouts(given.archive, given.folder)


if __name__ == "__main__":
    main()
