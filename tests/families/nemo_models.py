"""Small random NeMo models for tests."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import yaml

from families.conftest import babble
from nemo_reference import ConvASRDecoder, Reference
from tritone.families.nemo.export import export_nemo


def write_nemo(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


LABELS = [*" abcdefgh'"]


def small_config(kind: str = "ctc", **encoder: Any) -> dict[str, Any]:
    """NeMo's config of a small Conformer of characters.

    Args:
        kind: ctc, rnnt, tdt, hybrid (RNNT and CTC).
        encoder: settings in place of those of a FastConformer.
    """
    content: dict[str, Any] = {
        "target": "nemo.collections.asr.models.EncDecCTCModel",
        "sample_rate": 16000,
        "labels": LABELS,
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": 20,
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1e-05,
            "pad_to": 0,
            "pad_value": 0.0,
        },
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder",
            "feat_in": 20,
            "feat_out": -1,
            "n_layers": 2,
            "d_model": 16,
            "subsampling": "dw_striding",
            "subsampling_factor": 8,
            "subsampling_conv_channels": 6,
            "causal_downsampling": False,
            "reduction": None,
            "reduction_position": None,
            "reduction_factor": 1,
            "ff_expansion_factor": 2,
            "self_attention_model": "rel_pos",
            "n_heads": 2,
            "att_context_size": [-1, -1],
            "xscaling": False,
            "untie_biases": True,
            "pos_emb_max_len": 5000,
            "conv_kernel_size": 5,
            "conv_norm_type": "batch_norm",
            "dropout": 0.1,
            "dropout_emb": 0.0,
            **encoder,
        },
        "decoder": {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": None, "vocabulary": LABELS},
    }
    if kind == "ctc":
        return content
    durations = [0, 1, 2, 4] if kind == "tdt" else []
    content["decoder"] = {
        "_target_": "nemo.collections.asr.modules.RNNTDecoder",
        "normalization_mode": None,
        "random_state_sampling": False,
        "blank_as_pad": True,
        "prednet": {"pred_hidden": 12, "pred_rnn_layers": 2, "t_max": None, "dropout": 0.2},
        "vocab_size": len(LABELS),
    }
    content["joint"] = {
        "_target_": "nemo.collections.asr.modules.RNNTJoint",
        "log_softmax": None,
        "jointnet": {"joint_hidden": 14, "activation": "relu", "dropout": 0.2},
        "num_extra_outputs": len(durations),
        "vocabulary": LABELS,
        "num_classes": len(LABELS),
    }
    content["decoding"] = {"strategy": "greedy_batch", "greedy": {"max_symbols": 3}}
    if durations:
        content["decoding"] |= {"model_type": "tdt", "durations": durations}
    if kind == "hybrid":
        content["aux_ctc"] = {"ctc_loss_weight": 0.3, "decoder": {"vocabulary": LABELS}}
    return content


def make_model(content: dict[str, Any], num_tokens: int = len(LABELS), seed: int = 0) -> Reference:
    """A random model whose tokens depend on what it hears: no token wins everywhere."""
    model = Reference(content, num_tokens, seed)
    encoded = model.encode(torch.from_numpy(babble(48000, seed=seed)))
    model.float()
    if "joint" in content:
        predicted, _ = model.decoder(num_tokens if model.decoder.blank_as_pad else None, None)
        balance(
            model.joint.joint_net[-1], torch.stack([model.joint(f, predicted) for f in encoded.float()]), num_tokens
        )
    for head in (model.decoder, getattr(model, "ctc_decoder", None)):
        if isinstance(head, ConvASRDecoder):
            layer = head.decoder_layers[0]
            balance(layer, layer(encoded.float().T[None])[0].T, num_tokens)
    return model


def balance(layer: Any, logits: torch.Tensor, blank: int) -> None:
    """Change the layer that made these logits (frames, classes) so that each class wins somewhere, the blank often."""
    scale = 2.0 / logits.std(dim=0)
    layer.bias.copy_((layer.bias - logits.mean(dim=0)) * scale)
    layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.dim() - 1)))
    layer.bias[blank] += 2.0


def write_archive(path: Path, model: Reference, files: Mapping[str, bytes] | None = None) -> Path:
    """A .nemo archive of a model; `files` are added to it."""
    weights = io.BytesIO()
    torch.save(model.state_dict(), weights)
    config = yaml.safe_dump(model.content).encode()
    return write_nemo(
        path, {"./model_config.yaml": config, "./model_weights.ckpt": weights.getvalue(), **(files or {})}, "w"
    )


def pieces_model(vocab_size: int = 24) -> bytes:
    """A sentencepiece model as NeMo trains it: <unk> first, no other control pieces."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "hello there", "low word", "a wide world"] * 20),
        model_writer=trained,
        vocab_size=vocab_size,
        model_type="bpe",
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    return trained.getvalue()


@dataclass(frozen=True)
class Exported:
    """A bundle, and the model that it was made of."""

    bundle: Path
    archive: Path
    model: Reference
    notes: tuple[str, ...]


def hybrid_tdt() -> Reference:
    """A TDT model of pieces that has a CTC head too, large enough for products of int8."""
    content = small_config("tdt", d_model=32)
    content["joint"]["jointnet"]["joint_hidden"] = 64
    content["joint"]["vocabulary"] = [f"piece {index}" for index in range(24)]
    content["aux_ctc"] = {"decoder": {"vocabulary": []}}
    content["tokenizer"] = {"type": "bpe", "model_path": "nemo:t.model", "vocab_path": "nemo:v.txt"}
    return make_model(content, 24, seed=1)


def export_tdt(folder: Path, **options: Any) -> Exported:
    model = hybrid_tdt()
    archive = write_archive(folder / "m.nemo", model, {"./t.model": pieces_model()})
    report = export_nemo(archive=archive, output=folder / "b", **options)
    return Exported(report.bundle.path, archive, model, report.notes)
