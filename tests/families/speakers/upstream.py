"""Embeddings that upstreams' own code makes with small random weights, kept beside this file as `upstream.npz`.

    python tests/families/speakers/upstream.py pyannote resemblyzer
    python tests/families/speakers/upstream.py resemblyzer_released
    python tests/families/speakers/upstream.py speechbrain speechbrain_other speechbrain_full

Run in an environment with torch 2.13, and for `pyannote` with pyannote.audio 4.0.7 (`--no-deps`), einops 0.8
and torchaudio 2.11, for `resemblyzer` with Resemblyzer 0.1.4, librosa 0.11, scipy 1.14 and webrtcvad-wheels 2.0.14,
for `speechbrain` and what begins so with SpeechBrain 1.1.2, HyperPyYAML 1.2.3 and torchaudio 2.11. Weights and signals
are made anew from numbers in each test: the file holds embeddings alone.
"""

import sys
import sysconfig
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SITE = Path(sysconfig.get_paths()["purelib"])
PATH = Path(__file__).with_name("upstream.npz")
LENGTHS = (24000, 9000, 40400, 16160)  # samples at 16 kHz

Array = npt.NDArray[np.float32]


def signals() -> list[Array]:
    """Sounds of several tones, louder and softer, of each of the lengths."""
    found = []
    for seed, length in enumerate(LENGTHS):
        random, time = np.random.default_rng(seed), np.arange(length) / 16000
        pitches = random.uniform(90, 3500, 9)
        tones = sum(np.sin(2 * np.pi * hz * time + 6 * np.sin(5 * time * place)) for place, hz in enumerate(pitches))
        level = 0.03 * (1.2 + np.sin(2 * np.pi * 3 * time))
        found.append((level * (tones + random.normal(0, 0.2, length)) / 3).astype(np.float32))
    return found


def tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 5) -> dict[str, Array]:
    """Weights of these shapes, in the order of their names, with norms that do something."""
    random, found = np.random.default_rng(seed), {}
    for name, shape in sorted(shapes.items()):
        values = random.normal(0, 1, shape)
        if len(shape) > 1:
            values *= (1.5 / values[0].size) ** 0.5
        elif name.endswith(("running_var", ".weight")):
            values = 0.5 + np.abs(values)
        else:
            values *= 0.3
        found[name] = values.astype(np.float32)
    return found


def shapes_of(network: Any) -> dict[str, tuple[int, ...]]:
    """What a network of torch wants to be filled with."""
    state = network.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith("num_batches_tracked")}


def filled(network: Any, seed: int = 5) -> Any:
    """The network with weights of `tensors`, in eval mode."""
    import torch

    network.load_state_dict(
        {name: torch.from_numpy(value) for name, value in tensors(shapes_of(network), seed).items()}, strict=False
    )
    return network.eval()


def without_init(name: str, folder: Path) -> None:
    """A package whose own `__init__.py` does not run: what that imports is not needed, and not installed."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def of_pyannote() -> Array:
    """The ResNet of pyannote.audio, as its `compute_fbank` and `forward` call it, of 2 channels."""
    import torch

    without_init("torchaudio", SITE / "torchaudio")
    for name in ("pyannote.audio", "pyannote.audio.models", "pyannote.audio.models.embedding"):
        without_init(name, SITE.joinpath(*name.split(".")))
    without_init("wespeaker", SITE / "pyannote/audio/models/embedding/wespeaker")
    kaldi = import_module("torchaudio.compliance.kaldi")
    resnet = import_module("wespeaker.resnet")

    network = filled(resnet.ResNet(resnet.BasicBlock, [2, 2, 2, 2], 2, 80, 16, "TSTP", False))
    found = []
    with torch.no_grad():
        for wave in signals():
            features = kaldi.fbank(
                torch.from_numpy(wave)[None] * (1 << 15),
                num_mel_bins=80,
                frame_length=25.0,
                frame_shift=10.0,
                dither=0.0,
                sample_frequency=16000,
                window_type="hamming",
                use_energy=False,
            )
            found.append(network((features - features.mean(dim=0, keepdim=True))[None])[1][0].numpy())
    return np.stack(found)


def of_resemblyzer(weights: Path | None = None) -> Array:
    """Resemblyzer's encoder on loud enough signals, whose silence stays; without weights a small random one."""
    import torch

    audio, module = import_module("resemblyzer.audio"), import_module("resemblyzer.voice_encoder")
    with tempfile.TemporaryDirectory() as folder:
        if weights is None:
            names = ("model_hidden_size", "model_embedding_size", "model_num_layers")
            vars(module).update(zip(names, RESEMBLYZER, strict=True))
            weights = Path(folder, "pretrained.pt")
            torch.save(
                {"model_state": {key: torch.from_numpy(each) for key, each in resemblyzer_state().items()}}, weights
            )
        encoder = module.VoiceEncoder("cpu", verbose=False, weights_fpath=weights)
        return np.stack(
            [encoder.embed_utterance(audio.normalize_volume(wave, -30, increase_only=True)) for wave in signals()]
        )


def of_resemblyzer_released() -> Array:
    """The same with the weights of the package."""
    return of_resemblyzer(SITE / "resemblyzer" / "pretrained.pt")


RESEMBLYZER = (12, 10, 2)  # hidden, embedding, layers


def resemblyzer_state() -> dict[str, Array]:
    """The tensors of a small encoder, which hears the small numbers that mel power has."""
    hidden, embedding, layers = RESEMBLYZER
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (embedding, hidden), "linear.bias": (embedding,)}
    for layer in range(layers):
        for name, size in (("ih", hidden if layer else 40), ("hh", hidden)):
            shapes |= {f"lstm.weight_{name}_l{layer}": (4 * hidden, size), f"lstm.bias_{name}_l{layer}": (4 * hidden,)}
    state = tensors(shapes)
    return {**state, "lstm.weight_ih_l0": 100 * state["lstm.weight_ih_l0"]}


SPEECHBRAIN = """
n_mels: {n_mels}
pretrained_path: speechbrain/spkrec-ecapa-voxceleb
out_n_neurons: 7205
compute_features: !new:speechbrain.lobes.features.Fbank
    n_mels: !ref <n_mels>
mean_var_norm: !new:speechbrain.processing.features.InputNormalization
    norm_type: sentence
    std_norm: False
embedding_model: !new:speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN
    input_size: !ref <n_mels>
    channels: {channels}
    kernel_sizes: {kernel_sizes}
    dilations: {dilations}
    attention_channels: {attention}
    lin_neurons: {dim}
    {more}
classifier: !new:speechbrain.lobes.models.ECAPA_TDNN.Classifier
    input_size: {dim}
    out_neurons: !ref <out_n_neurons>
mean_var_norm_emb: !new:speechbrain.processing.features.InputNormalization
    norm_type: global
    std_norm: False
modules:
    compute_features: !ref <compute_features>
    mean_var_norm: !ref <mean_var_norm>
    embedding_model: !ref <embedding_model>
    mean_var_norm_emb: !ref <mean_var_norm_emb>
    classifier: !ref <classifier>
label_encoder: !new:speechbrain.dataio.encoder.CategoricalEncoder
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables:
        embedding_model: !ref <embedding_model>
    paths:
        embedding_model: !ref <pretrained_path>/embedding_model.ckpt
"""
"""What `hyperparams.yaml` of the published model says, with sizes to be filled in."""

SPEECHBRAIN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "speechbrain": {"channels": [16, 16, 16, 16, 24], "attention": 6, "dim": 10, "more": ("res2net_scale: 4",)},
    "speechbrain_other": {
        **{"n_mels": 24, "channels": [8, 16, 16, 20], "kernel_sizes": [3, 5, 3, 1], "dilations": [2, 1, 3, 1]},
        **{"attention": 5, "dim": 7, "more": ("res2net_scale: 4", "se_channels: 3", "global_context: False")},
    },
    "speechbrain_full": {"channels": [1024, 1024, 1024, 1024, 3072], "attention": 128, "dim": 192},
}


def speechbrain_yaml(name: str) -> str:
    """The `hyperparams.yaml` of a model of these sizes; `more`: lines of its network."""
    usual = {"n_mels": 80, "kernel_sizes": [5, 3, 3, 3, 1], "dilations": [1, 2, 3, 4, 1], "more": ()}
    sizes = {**usual, **SPEECHBRAIN_SIZES[name]}
    return SPEECHBRAIN.format(**{**sizes, "more": "\n    ".join(sizes["more"])})


def of_speechbrain(name: str) -> Array:
    """An ECAPA-TDNN as `EncoderClassifier.encode_batch` calls it for an utterance alone."""
    import torch

    without_init("torchaudio", SITE / "torchaudio")
    parts = import_module("hyperpyyaml").load_hyperpyyaml(speechbrain_yaml(name))
    network, whole, found = filled(parts["embedding_model"]), torch.ones(1), []
    with torch.no_grad():
        for wave in signals():
            features = parts["mean_var_norm"](parts["compute_features"](torch.from_numpy(wave)[None]), whole)
            found.append(network(features, whole)[0, 0].numpy())
    return np.stack(found)


UPSTREAMS: Mapping[str, Callable[[], Array]] = {
    **{name: partial(of_speechbrain, name) for name in SPEECHBRAIN_SIZES},
    "pyannote": of_pyannote,
    "resemblyzer": of_resemblyzer,
    "resemblyzer_released": of_resemblyzer_released,
}

if __name__ == "__main__":
    kept = dict(np.load(PATH)) if PATH.exists() else {}
    np.savez(PATH, **{**kept, **{name: UPSTREAMS[name]() for name in sys.argv[1:]}})
