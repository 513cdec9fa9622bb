"""WeSpeaker's checkpoints: what is read, what is ignored, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from families.wespeaker_models import random_state, small_content, training_extras, write_model
from tritone.errors import ExportError
from tritone.families.wespeaker.checkpoint import load_network, read_weights
from tritone.families.wespeaker.config import ModelConfig, parse_config

CONTENT = small_content("resnet", feat_dim=8)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return parse_config(CONTENT)


def saved(folder: Path, content: Any) -> Path:
    torch.save(content, folder / "avg_model.pt")
    return folder / "avg_model.pt"


@pytest.mark.parametrize("kind", ["resnet", "ecapa", "campplus"])
def test_an_averaged_checkpoint_becomes_a_network(tmp_path: Path, kind: str) -> None:
    content = small_content(kind, feat_dim=8)
    checkpoint, _ = write_model(tmp_path, content, seed=3)
    network, ignored = load_network(parse_config(content), checkpoint)
    own, expected = network.state_dict(), random_state(content, seed=3)
    assert ignored == ("projection.weight",)
    assert not network.training
    assert all(torch.equal(own[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {name: value.half() for name, value in state.items()},
        lambda state: {name: value for name, value in state.items() if not name.endswith("tracked")},
        lambda state: {name: 7.5 if name.endswith("tracked") else value for name, value in state.items()},
    ],
    ids=["wrapped", "half", "without counters", "counters are numbers"],
)
def test_other_forms_give_the_same_network(
    tmp_path: Path, config: ModelConfig, wrap: Callable[[dict[str, Tensor]], Any]
) -> None:
    state = {name: value.half().float() for name, value in random_state(CONTENT).items()}
    network, _ = load_network(config, saved(tmp_path, wrap({**state, **training_extras(state)})))
    assert {value.dtype for value in network.parameters()} == {torch.float32}
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())


def drop(state: dict[str, Tensor]) -> None:
    del state["layer2.0.conv1.weight"], state["seg_1.bias"]


def grow(state: dict[str, Tensor]) -> None:
    state["seg_2.weight"] = torch.zeros(16, 16)


def bend(state: dict[str, Tensor]) -> None:
    state["seg_1.weight"] = torch.zeros(16, 3)


def spoil(state: dict[str, Tensor]) -> None:
    state["bn1.bias"][1] = float("nan")


def count(state: dict[str, Tensor]) -> None:
    state["bn1.bias"] = state["bn1.bias"].long()


def pack(state: dict[str, Tensor]) -> None:
    state["bn1.bias"] = state["bn1.bias"].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            drop,
            r"ResNet18 of its config:\n  missing layer2.0.conv1.weight \(8, 4, 3, 3\)\n  missing seg_1.bias \(16,\)",
        ),
        (grow, r"unknown seg_2.weight \(16, 16\)"),
        (bend, r"seg_1.weight is \(16, 3\), the network asks for \(16, 64\)"),
        (spoil, "bn1.bias holds NaN or Inf"),
        (count, "bn1.bias holds torch.int64"),
        (pack, "bn1.bias holds torch.float8_e4m3fn"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, config: ModelConfig, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    state = random_state(CONTENT)
    change(state)
    with pytest.raises(ExportError, match=message):
        load_network(config, saved(tmp_path, state))


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        raise_it = RuntimeError
        return raise_it, ("was run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"frontend.upstream.weight": torch.zeros(1)}, "has a learned front end"),
        ({"conv1.weight": 3}, "conv1.weight are something else"),
        ({"conv1.weight": torch.zeros(2, 2).to_sparse()}, "conv1.weight are something else"),
        ({"conv1.weight": torch.zeros(2, 2, device="meta")}, "conv1.weight are something else"),
        ([torch.zeros(1)], "holds a list in place of a dict"),
        ({"state_dict": [1]}, "holds a list"),
        ({"conv1.weight": Harmful()}, "cannot be read safely"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        read_weights(saved(tmp_path, content))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path, random_state(CONTENT)).read_bytes()
    for name, data in [("short", whole[: len(whole) // 2]), ("empty", b""), ("text", b"no weights\n")]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ExportError, match=r"not a readable torch file|cannot be read safely"):
            read_weights(tmp_path / name)
    with pytest.raises(ExportError, match="checkpoint not found"):
        read_weights(tmp_path / "nowhere.pt")
