"""Reading icefall's files: what is averaged, folded and ignored, and every way a file can be wrong."""

import builtins
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from torch import Tensor

from tolerance import float_noise
from tritone.errors import ExportError
from tritone.families.icefall.checkpoint import load_model, read_checkpoint
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.stateless import PredictorConfig

State = dict[str, Tensor]

CONFIG = IcefallConfig(
    encoder=ConformerConfig(encoder_dim=16, heads=2, feed_forward_dim=24, layers=2, kernel=5),
    predictor=PredictorConfig(vocab_size=11, width=12, joiner_dim=14, context_size=2),
)


def make_state(seed: int = 0) -> State:
    torch.manual_seed(seed)
    return IcefallModel.from_config(CONFIG).upstream_state()


def save(path: Path, **content: Any) -> Path:
    torch.save(content, path)
    return path


def same(found: IcefallModel, expected: State) -> bool:
    """Whether tensors are equal but for the rounding of a few sums and products of their largest numbers."""
    state = found.upstream_state()
    return state.keys() == expected.keys() and all(
        torch.allclose(value, expected[name], rtol=0, atol=float_noise(float(expected[name].abs().max()), terms=4))
        for name, value in state.items()
    )


def test_a_pretrained_model_comes_back_with_its_sizes_and_weights(tmp_path: Path) -> None:
    state = make_state()
    model = load_model([save(tmp_path / "pretrained.pt", model=state)], causal=False)
    assert same(model, state)
    assert model.config.predictor == CONFIG.predictor
    assert model.config.encoder == ConformerConfig(
        encoder_dim=16, heads=2, feed_forward_dim=24, layers=2, kernel=5, causal=False
    )
    assert not model.training


def test_scales_are_folded_into_what_they_scale(tmp_path: Path) -> None:
    plain, scaled = make_state(), make_state()
    for index, name in enumerate(list(plain)):
        if name.endswith((".eps",)):
            continue
        scale = torch.tensor(0.1 * (index % 7) - 0.3)
        is_embedding = name == "decoder.embedding.weight"
        scaled["decoder.embedding.scale" if is_embedding else f"{name}_scale"] = scale
        plain[name] = plain[name] * torch.exp(scale)
    assert same(load_model([save(tmp_path / "pretrained.pt", model=scaled)]), plain)


def test_what_only_training_needs_is_ignored(tmp_path: Path) -> None:
    state = make_state()
    rest = ("simple_am_proj.weight", "simple_lm_proj_giga.bias", "decoder_giga.conv.weight", "joiner_giga.x.weight")
    extra = {name: torch.zeros(3) for name in (*rest, "attention_decoder.embed.0.weight")}
    assert same(load_model([save(tmp_path / "pretrained.pt", model=state | extra)]), state)


def test_names_of_a_model_that_trained_on_several_gpus_lose_their_prefix(tmp_path: Path) -> None:
    state = make_state()
    path = save(tmp_path / "pretrained.pt", model={f"module.{name}": value for name, value in state.items()})
    assert same(load_model([path]), state)


class Foreign:
    """Stands for the sampler's state in a file of training: a class that the reader does not have."""

    def __init__(self) -> None:
        self.epoch = 3


class Hostile:
    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def test_the_other_objects_in_a_file_of_training_do_not_matter(tmp_path: Path) -> None:
    path = save(
        tmp_path / "epoch-3.pt",
        model=make_state(),
        sampler={"state": Foreign(), "seen": [1, 2]},
        exp_dir=PurePosixPath("exp"),
        batch_idx_train=100,
        average_period=10,
    )
    assert same(load_model([path]), make_state())
    assert read_checkpoint(path).batches == 100


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    harmless = save(tmp_path / "a.pt", model=make_state(), other=Hostile(builtins.open, str(marker), "w"))
    load_model([harmless])
    with pytest.raises(ExportError, match="cannot be read safely"):
        load_model([save(tmp_path / "b.pt", model=make_state(), other=Hostile(os.system, f"touch {marker}"))])
    assert not marker.exists()


def test_several_files_are_averaged_plainly(tmp_path: Path) -> None:
    states = [make_state(seed) for seed in range(3)]
    paths = [save(tmp_path / f"epoch-{seed}.pt", model=state) for seed, state in enumerate(states)]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    assert same(load_model(paths), mean)
    assert same(load_model(paths, average="mean"), mean)


def epoch(path: Path, history: list[State], batches: int, period: int) -> Path:
    """A file as training writes it after `batches` steps, where history[i] are the weights of period i."""
    updates = batches // period
    mean = {name: torch.stack([state[name].double() for state in history[:updates]]).mean(0) for name in history[0]}
    return save(path, model=history[updates], model_avg=mean, batch_idx_train=batches, average_period=period)


def test_the_running_average_of_two_files_is_the_mean_of_all_weights_between_them(tmp_path: Path) -> None:
    history = [make_state(seed) for seed in range(7)]
    start = epoch(tmp_path / "epoch-1.pt", history, 26, 10)  # two periods are in its mean
    end = epoch(tmp_path / "epoch-2.pt", history, 63, 10)
    between = {name: torch.stack([state[name] for state in history[2:6]]).mean(0) for name in history[0]}
    assert same(load_model([start, end], average="running"), between)
    assert same(load_model([end, start], average="running"), between), (
        "which file is older does not depend on the order"
    )


def test_files_that_cannot_be_averaged_are_refused(tmp_path: Path) -> None:
    history = [make_state(seed) for seed in range(4)]
    one, other = (epoch(tmp_path / f"{n}.pt", history, 20 + n, 10) for n in range(2))
    with pytest.raises(ExportError, match="no whole averaging period of 10"):
        load_model([one, other], average="running")
    with pytest.raises(ExportError, match=r"between two files, 1 were given.*epoch-\(E-N\)\.pt and epoch-E\.pt"):
        load_model([one], average="running")
    plain = save(tmp_path / "plain.pt", model=make_state())
    with pytest.raises(ExportError, match=r"plain\.pt has no running mean"):
        load_model([one, plain], average="running")
    torch.manual_seed(0)
    different = save(tmp_path / "different.pt", model=make_state() | {"joiner.output_linear.bias": torch.zeros(12)})
    with pytest.raises(ExportError, match=r"different models: joiner\.output_linear\.bias"):
        load_model([plain, different])


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: without(s, "encoder.encoder.layers.1.self_attn.in_proj.bias"), r"missing .*in_proj\.bias \(48,\)"),
        (lambda s: s | {"joiner.decoder_proj.weight": torch.zeros(14, 13)}, r"is \(14, 13\), .* asks for \(14, 12\)"),
        (
            lambda s: s | {"encoder.encoder.layers.0.extra": torch.zeros(2)},
            r"unknown encoder\.encoder\.layers\.0\.extra",
        ),
        (lambda s: s | {"decoder.conv.weight": torch.full((12, 1, 2), torch.nan)}, r"decoder\.conv\.weight holds NaN"),
        (lambda s: without(s, "joiner.encoder_proj.weight"), r"joiner\.encoder_proj\.weight is missing"),
        (lambda s: without(s, "encoder.encoder_embed.out.weight"), r"out\.weight, which shows sizes, is missing"),
        (lambda s: s | {"encoder.encoder.layers.9.norm_final.eps": torch.zeros(())}, r"missing .*layers\.2\."),
        (
            lambda s: s | {"joiner.output_linear.bias": torch.zeros(1).expand(11)},
            "joiner.output_linear.bias are something else",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Callable[[State], State], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        load_model([save(tmp_path / "pretrained.pt", model=change(make_state()))])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("encoder.encoder_embed.conv.0.weight", "encoder.encoders.0.layers.0.x"), "zipformer of the first generation"),
        (("encoder.encoder_embed.conv.0.weight", "encoder.encoder.layers.0.lstm.weight_ih_l0"), "an LSTM encoder"),
        (("encoder.encoder_embed.conv.0.weight", "encoder.encoder.emformer_layers.0.x"), "an emformer"),
        (("encoder.encoder_embed.conv.0.weight", "encoder.encoder.layers.0.norm_ff.weight"), "a conformer of before"),
        (("encoder_embed.conv.0.weight",), "Its first tensors are encoder_embed"),
        (("something.else",), "Its first tensors are something.else"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ExportError, match=rf"not supported\..*{said}.*pruned_transducer_stateless 2 to 5"):
        load_model([save(tmp_path / "pretrained.pt", model={name: torch.zeros(1) for name in names})])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: torch.save([torch.zeros(1)], path), "holds a list"),
        (lambda path: torch.save({"model": 3}, path), "should hold a dict of tensors as `model`, found int"),
        (lambda path: torch.save({"model": {"a": "b"}}, path), "; a are something else"),
        (lambda path: path.write_bytes(b"not a checkpoint"), "cannot be read safely|not a readable torch file"),
        (lambda path: path.write_bytes(b""), "not a readable torch file"),
        (lambda path: None, "checkpoint not found"),
    ],
)
def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path, write: Callable[[Path], Any], said: str) -> None:
    path = tmp_path / "pretrained.pt"
    write(path)
    with pytest.raises(ExportError, match=said):
        load_model([path])


def test_sizes_that_a_conformer_tells_itself_cannot_be_given(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="num_heads cannot be given"):
        load_model([save(tmp_path / "pretrained.pt", model=make_state())], overrides={"num_heads": [4]})
