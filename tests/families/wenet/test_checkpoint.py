"""Reading WeNet's files: both config generations, statistics in both forms, and every way they can be wrong."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from families.conftest import CONFIG, UNITS, with_cmvn, write_model
from tritone.errors import ExportError
from tritone.families.wenet.checkpoint import load_model, read_cmvn, read_config, read_state_dict, read_units
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.encoder import chunk_mask


def damage(folder: Path, change: Any) -> Path:
    state = torch.load(folder / "final.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "final.pt")
    return folder


def load(folder: Path, **options: Any) -> Any:
    return load_model(read_config(folder / "train.yaml"), folder / "final.pt", **options)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = damage(write_model(tmp_path), lambda state: state.pop("encoder.encoders.1.self_attn.linear_q.weight"))
    with pytest.raises(ExportError, match=r"missing encoder\.encoders\.1\.self_attn\.linear_q\.weight \(16, 16\)"):
        load(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = damage(write_model(tmp_path), lambda state: state.update({"ctc.ctc_lo.bias": torch.zeros(3)}))
    with pytest.raises(ExportError, match=r"ctc\.ctc_lo\.bias is \(3,\), the network asks for \(30,\)"):
        load(folder)


def test_an_unknown_encoder_tensor_is_named(tmp_path: Path) -> None:
    folder = damage(write_model(tmp_path), lambda state: state.update({"encoder.encoders.2.extra": torch.zeros(3)}))
    with pytest.raises(ExportError, match=r"unknown encoder\.encoders\.2\.extra"):
        load(folder)


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    folder = damage(write_model(tmp_path), lambda state: state["ctc.ctc_lo.bias"].fill_(math.nan))
    with pytest.raises(ExportError, match=r"ctc\.ctc_lo\.bias holds NaN"):
        load(folder)


def test_position_tables_and_unused_layers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    def add(state: dict[str, Tensor]) -> None:
        state["encoder.embed.pos_enc.pe"] = torch.zeros(1, 5000, 16)
        state["encoder.encoders.0.concat_linear.weight"] = torch.zeros(16, 32)

    assert load(damage(write_model(tmp_path), add)).config.vocab_size == len(UNITS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weights": {"a": torch.zeros(1)}}, "weights are something else"),
        ([torch.zeros(1)], "holds a list"),
        (torch.nn.Linear(2, 2), "cannot be read safely"),
    ],
)
def test_a_checkpoint_that_is_no_flat_state_dict_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    torch.save(content, tmp_path / "final.pt")
    with pytest.raises(ExportError, match=said):
        read_state_dict(tmp_path / "final.pt")


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, size: int) -> None:
    path = write_model(tmp_path) / "final.pt"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ExportError, match=r"final\.pt"):
        read_state_dict(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"checkpoint not found: .*final\.pt"):
        read_state_dict(tmp_path / "final.pt")
    with pytest.raises(ExportError, match=r"config not found: .*train\.yaml"):
        read_config(tmp_path / "train.yaml")


def statistics(tmp_path: Path) -> tuple[Path, Path, list[float], list[float]]:
    """Means 0 … 3 and variances 1 … 4 over 10 frames, as JSON and as Kaldi text."""
    means, variances, count = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], 10
    sums = [m * count for m in means]
    squares = [(v + m * m) * count for m, v in zip(means, variances, strict=True)]
    as_json, as_text = tmp_path / "cmvn.json", tmp_path / "cmvn.txt"
    as_json.write_text(json.dumps({"mean_stat": sums, "var_stat": squares, "frame_num": count}), encoding="utf-8")
    as_text.write_text(
        f" [ {' '.join(map(str, [*sums, count]))}\n  {' '.join(map(str, [*squares, 0]))} ]\n", encoding="utf-8"
    )
    return as_json, as_text, means, variances


def test_statistics_are_sums_in_json_and_in_kaldi_text(tmp_path: Path) -> None:
    as_json, as_text, means, variances = statistics(tmp_path)
    for path, is_json in ((as_json, True), (as_text, False)):
        mean, istd = read_cmvn(path, is_json)
        assert mean.tolist() == pytest.approx(means)
        assert istd.tolist() == pytest.approx([v**-0.5 for v in variances])


def test_statistics_of_the_wrong_form_are_refused(tmp_path: Path) -> None:
    as_json, as_text, _, _ = statistics(tmp_path)
    with pytest.raises(ExportError, match="not Kaldi text"):
        read_cmvn(as_json, False)
    with pytest.raises(ExportError, match="not JSON"):
        read_cmvn(as_text, True)


def drop_cmvn_buffers(state: dict[str, Tensor]) -> None:
    for name in ("mean", "istd"):
        del state[f"encoder.global_cmvn.{name}"]


@pytest.mark.parametrize("old", [True, False])
def test_statistics_are_found_beside_the_checkpoint_in_both_config_generations(tmp_path: Path, old: bool) -> None:
    def change(config: dict[str, Any]) -> None:
        if old:
            config |= {"cmvn_file": "/training/machine/stats", "is_json_cmvn": True}
        else:
            config |= {"cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "exp/stats", "is_json_cmvn": True}}

    folder = damage(write_model(tmp_path, change), drop_cmvn_buffers)
    with pytest.raises(ExportError, match=r"stats does not exist; give the file with --cmvn"):
        load(folder)
    given = tmp_path / "elsewhere.json"
    given.write_text(json.dumps({"mean_stat": [20.0] * 80, "var_stat": [80.0] * 80, "frame_num": 10}), encoding="utf-8")
    assert load(folder, cmvn=given).encoder.global_cmvn.mean.tolist() == [2.0] * 80
    given.rename(tmp_path / "stats")
    assert load(folder).encoder.global_cmvn.istd.tolist() == pytest.approx([0.5] * 80)


def test_buffers_inside_the_checkpoint_win_over_the_statistics_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path, with_cmvn)
    (folder / "global_cmvn").write_text(
        json.dumps({"mean_stat": [1.0] * 80, "var_stat": [9.0] * 80, "frame_num": 1}), encoding="utf-8"
    )
    assert load(folder).encoder.global_cmvn.mean.tolist() == [5.0] * 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<blank> 0\na\n", "line 2: expected 'token id'"),
        ("<blank> 0\na 0\n", "id 0 is given twice"),
        ("<blank> 0\na 2\n", r"missing ids start with \[1\]"),
        ("<blank> 0\na 1\nb 2\nc 3\n", "has 4 tokens"),
        ("<blank> 0\na one\n", "line 2"),
    ],
)
def test_bad_units_are_explained(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "units.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ExportError, match=said):
        read_units(tmp_path / "units.txt", 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoder": "squeezeformer"}, "encoder is 'squeezeformer'"),
        ({"output_dim": None}, "output_dim"),
        ({"encoder_conf": {"input_layer": "linear"}}, "input_layer is 'linear'; upstream knows conv2d, conv2d6"),
        ({"encoder_conf": {"pos_enc_layer_type": "no_pos"}}, "pos_enc_layer_type"),
        ({"encoder_conf": {"num_blocks": "many"}}, "num_blocks is 'many', expected int"),
        ({"encoder_conf": {"output_size": 30, "attention_heads": 4}}, "not a multiple"),
        ({"encoder_conf": {"cnn_module_kernel": 8}}, "needs an odd kernel"),
        ({"encoder_conf": {"concat_after": True}}, "concat_after"),
        ({"encoder_conf": "big"}, "encoder_conf should hold settings"),
        ({"dataset_conf": {"mfcc_conf": {}}}, "other than fbank"),
        ({"tokenizer": "whisper"}, "tokenizer is 'whisper'"),
    ],
)
def test_settings_that_cannot_be_read_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(CONFIG | change)


def test_yaml_that_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    for text in ("- a\n- b\n", "a: [1\n", "!!python/object/apply:os.system ['true']"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ExportError, match=r"train\.yaml"):
            read_config(path)


def test_sentence_ends_come_from_special_tokens_where_there_are_any() -> None:
    new = parse_config(CONFIG | {"tokenizer_conf": {"special_tokens": {"<blank>": 0, "<sos>": 2, "<eos>": 3}}})
    assert (new.sos_id, new.eos_id) == (2, 3)
    assert parse_config(CONFIG).sos_id is None


def test_bpe_models_are_recognised_in_both_config_generations() -> None:
    assert parse_config(CONFIG | {"bpe_model": "data/lang/bpe.model"}).units == "bpe"
    assert parse_config(CONFIG | {"tokenizer": "bpe", "tokenizer_conf": {"bpe_path": "x.model"}}).units == "bpe"
    assert parse_config(yaml.safe_load(yaml.safe_dump(CONFIG))).units == "char"


def test_chunk_mask_shows_own_chunk_and_the_chosen_left_ones() -> None:
    mask = chunk_mask(torch.arange(5), 2, 1).int().tolist()
    assert mask == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("content", [b"encoder: conformer\n", b"", b"\x80\x02.", bytes(range(256))])
def test_any_file_that_is_no_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.pt"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=r"other\.pt"):
        read_state_dict(path)


def test_a_config_of_plain_text_is_named_by_its_own_path(tmp_path: Path) -> None:
    path = tmp_path / "units.txt"
    path.write_text("<blank> 0\na 1\n", encoding="utf-8")
    with pytest.raises(ExportError, match=r"units\.txt should hold settings"):
        read_config(path)
