"""What all families' checkpoints may look like, and that nothing of them is lost without a word."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.checkpoint import require_fit, state_of, tensors_of, without

PLAIN = {"encoder.weight": torch.ones(2, 3), "encoder.bias": torch.zeros(2)}
MEAN = {name: value + 1 for name, value in PLAIN.items()}


def named(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(
    ("content", "averaged"),
    [
        (PLAIN, False),
        (named(PLAIN, "module."), False),
        (named(PLAIN, "_orig_mod.module."), False),
        (named(PLAIN, "base_model.model."), False),
        ({"state_dict": named(PLAIN, "model.module.base_model.model.model.")}, False),
        ({"encoder._orig_mod.weight": PLAIN["encoder.weight"], "encoder.bias": PLAIN["encoder.bias"]}, False),
        (named(PLAIN, "_fsdp_wrapped_module._checkpoint_wrapped_module."), False),
        (named({**named(PLAIN, "online_model."), **named(MEAN, "ema_model.")}, "module."), True),
        ({"state_dict": named(PLAIN, "model."), "pytorch-lightning_version": "2.0", "epoch": 3}, False),
        ({"model_state_dict": PLAIN, "optimizer": {"lr": 1.0}}, False),
        ({"state_dict": PLAIN, "ema_state_dict": None}, False),
        ({"state_dict": PLAIN, "ema_state_dict": MEAN}, True),
        ({"model": PLAIN, "model_avg": MEAN}, True),
        ({**named(PLAIN, "online_model."), **named(MEAN, "ema_model."), "step": torch.tensor(3)}, True),
        ({**named(PLAIN, "module."), "n_averaged": torch.tensor(4)}, False),
        ({**PLAIN, "norm.num_batches_tracked": 0.5}, False),
    ],
)
def test_weights_are_found_wherever_a_trainer_put_them(content: Any, averaged: bool) -> None:
    found = state_of(content, Path("x.pt"))
    assert found.averaged == averaged
    expected = MEAN if averaged else PLAIN
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in expected.items())
    if averaged:
        plain = state_of(content, Path("x.pt"), averaged=False)
        assert torch.equal(plain.tensors["encoder.weight"], PLAIN["encoder.weight"])


@pytest.mark.parametrize(
    "name",
    [
        *("encoder.lora_A.weight", "encoder.lora_B.default.weight", "encoder.base_layer.weight", "encoder.lora_A"),
        *("base_model.model.encoder.lora_magnitude_vector.default.weight", "encoder.lora_embedding_A.default"),
        *("encoder.ia3_l.default", "encoder.hada_w1_a.default", "encoder.modules_to_save.default.weight"),
    ],
)
def test_weights_of_an_adapter_are_refused_and_not_taken_for_those_of_a_network(name: str) -> None:
    for read in (state_of, lambda content, path: tensors_of(content, path, "tensors")):
        with pytest.raises(ExportError, match=rf"adapter that is not merged, such as {re.escape(name)}\. Merge it"):
            read({**PLAIN, name: torch.ones(2)}, Path("x.pt"))


def test_a_tensor_is_used_or_listed_or_named_in_an_error() -> None:
    state = {
        **PLAIN,
        "loss.weight": torch.ones(1),
        "adapter.weight": torch.ones(1),
        "n.num_batches_tracked": torch.ones(1),
    }
    kept = without(state, ("loss.*",))
    assert kept.keys() == {*PLAIN, "adapter.weight"}
    with pytest.raises(ExportError, match=r"unknown adapter\.weight"):
        require_fit({name: tuple(value.shape) for name, value in PLAIN.items()}, kept, "x.pt", "its config")
    with pytest.raises(ExportError, match=r"has ema_model\.… and beside it decoder\.weight"):
        state_of({**named(PLAIN, "ema_model."), "decoder.weight": torch.ones(1)}, Path("x.pt"))


def _nemo(folder: Path, state: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    from families.nemo_models import make_model, small_config, write_archive
    from tritone.families.nemo.model import read_archive

    model = make_model(small_config())
    changed = state({name: value for name, value in model.state_dict().items()})
    model.state_dict = lambda: changed  # type: ignore[method-assign,assignment]
    read_archive(write_archive(folder / "x.nemo", model))


def test_an_archives_unknown_tensors_are_named_and_its_prefix_is_taken_off(tmp_path: Path) -> None:
    _nemo(tmp_path, lambda state: named(state, "module."))
    with pytest.raises(ExportError, match=r"unknown adapter\.weight"):
        _nemo(tmp_path, lambda state: state | {"adapter.weight": torch.ones(3)})
