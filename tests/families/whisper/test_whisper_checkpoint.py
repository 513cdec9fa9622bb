"""Reading Whisper models of strangers: what is missing, damaged or does not fit is named before anything is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import tritone
from families.whisper_models import IDS, PIECES, SUPPRESS, TOKENS, random_model, speech, write_folder, write_openai
from tritone.bundle.byte_level import ByteLevelBpe
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError
from tritone.families.whisper.checkpoint import read_checkpoint
from tritone.families.whisper.export import export_whisper
from tritone.families.whisper.tokens import first_suppressed, suppressed_tokens
from tritone.kinds.whisper.part import WhisperPart
from tritone.repository import ModelOptions, build_repository


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    write_openai(path / "openai", random_model())
    return write_folder(path / "folder", random_model())


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "folder"))


def test_a_folder_and_a_checkpoint_of_openai_hold_the_same_tensors(saved: Path) -> None:
    theirs = read_checkpoint(saved)
    openai = read_checkpoint(saved.parent / "openai/small.pt", saved.parent / "openai/small.tiktoken")
    assert theirs.dims == openai.dims
    assert all(np.array_equal(value, openai.state[name]) for name, value in theirs.state.items())
    assert theirs.tokens == openai.tokens == TOKENS
    assert theirs.special.suppress == tuple(SUPPRESS)
    assert (theirs.special.max_initial_timestamp, openai.special.max_initial_timestamp) == (25, 50)
    assert theirs.special.alignment_heads == ((0, 1), (1, 0), (1, 3))
    assert openai.special.alignment_heads == tuple((1, head) for head in range(4))


def test_shards_are_put_together(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for name, part in halves.items():
        save_file({each: whole[each] for each in part}, folder / name)
    index = {"weight_map": {each: name for name, part in halves.items() for each in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    expected = read_checkpoint(folder).state
    (folder / "model.safetensors").unlink()
    assert all(np.array_equal(value, expected[name]) for name, value in read_checkpoint(folder).state.items())
    index["weight_map"][names[0]] = "../a.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ExportError, match=r"names '\.\./a\.safetensors', which is not a file of"):
        read_checkpoint(folder)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "module._orig_mod.base_model.model."])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "small.pt"])
def test_what_a_wrapper_writes_before_all_names_comes_off(saved: Path, folder: Path, prefix: str, file: str) -> None:
    expected = read_checkpoint(saved).state
    if file == "small.pt":
        content = torch.load(saved.parent / "openai" / file, weights_only=True)
        state = {prefix + name: value for name, value in content["model_state_dict"].items()}
        torch.save({**content, "model_state_dict": state}, folder / file)
        found = read_checkpoint(folder / file, saved.parent / "openai/small.tiktoken").state
    else:
        tensors = {prefix + name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}
        (folder / "model.safetensors").unlink()
        (save_file if file.endswith("safetensors") else torch.save)(tensors, folder / file)
        found = read_checkpoint(folder).state
    assert found.keys() == expected.keys()
    assert all(np.array_equal(value, expected[name]) for name, value in found.items())


@pytest.mark.parametrize(
    ("before", "lost", "told"),
    [
        ("", "model.encoder.layers.0.fc1.weight", r"missing model\.encoder\.layers\.0\.fc1\.weight"),
        ("module.", "model.decoder.layer_norm.bias", r"missing module\.model\.decoder\.layer_norm\.bias"),
        (
            "_orig_mod.module.",
            "model.decoder.layers.1.encoder_attn.q_proj.bias",
            r"missing _orig_mod\.module\.model\.decoder\.layers\.1\.encoder_attn\.q_proj\.bias",
        ),
    ],
)
def test_a_tensor_that_is_missing_has_the_name_that_the_file_would_have(
    folder: Path, before: str, lost: str, told: str
) -> None:
    tensors = {before + name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}
    del tensors[before + lost]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ExportError, match=told):
        read_checkpoint(folder)


def test_an_adapter_that_is_not_merged_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("q_proj.weight")]:
        root = name.removesuffix("weight")
        tensors |= {f"{root}base_layer.weight": tensors.pop(name), f"{root}lora_A.default.weight": torch.ones(4, 32)}
    save_file({f"base_model.model.{name}": each for name, each in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ExportError, match=r"tensors of an adapter that is not merged, such as base_model.*merge_and_"):
        read_checkpoint(folder)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "openai/whisper-tiny"}', encoding="utf-8")
    with pytest.raises(ExportError, match="a PEFT adapter for 'openai/whisper-tiny', without the model"):
        read_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ExportError, match="a PEFT adapter for 'openai/whisper-tiny', without the model"):
        read_checkpoint(folder)


def test_minus_one_among_suppressed_tokens_stands_for_the_usual_ones(folder: Path) -> None:
    usual = suppressed_tokens(TOKENS)
    other = next(id for id in range(len(TOKENS)) if id not in usual)
    for given, expected in (
        ([-1], usual),
        ([-1, -1], usual),
        ([other, -1], (other, *usual)),
        ([usual[0], -1], usual),
        ([other, other], (other,)),
        ([], ()),
        (None, ()),
    ):
        changed("generation_config.json", lambda c, given=given: c.update(suppress_tokens=given))(folder)  # type: ignore[misc]
        assert read_checkpoint(folder).special.suppress == expected
    changed("generation_config.json", lambda c: c.update(begin_suppress_tokens=[-1]))(folder)
    assert read_checkpoint(folder).special.suppress_first == first_suppressed(TOKENS)
    changed("generation_config.json", lambda c: c.update(begin_suppress_tokens=None))(folder)
    assert read_checkpoint(folder).special.suppress_first == ()
    for odd in (5, "-1", [True], [1.5], ["7"], [-2], [None], {"a": 1}):
        changed("generation_config.json", lambda c, odd=odd: c.update(suppress_tokens=odd))(folder)  # type: ignore[misc]
        with pytest.raises(ExportError, match="suppress_tokens must be a list of token ids below"):
            read_checkpoint(folder)


def changed(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        change(content)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")

    return apply


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"config\.json not found"),
        (lambda folder: (folder / "config.json").write_text("{", encoding="utf-8"), r"config\.json is not a JSON file"),
        (changed("config.json", lambda c: c.update(model_type="bert")), r"model_type is 'bert', expected 'whisper'"),
        (changed("config.json", lambda c: c.update(d_model=2**40)), r"d_model is 1099511627776; expected sizes"),
        (changed("config.json", lambda c: c.update(d_model=36)), r"does not fit its sizes"),
        (changed("config.json", lambda c: c.update(decoder_attention_heads=5)), r"5 heads cannot share a width of 32"),
        (changed("config.json", lambda c: c.update(activation_function="relu")), r"activation_function 'relu'"),
        (changed("generation_config.json", lambda c: c.update(suppress_tokens=[9999])), r"suppress_tokens must be"),
        (changed("generation_config.json", lambda c: c.update(alignment_heads=[7])), r"alignment_heads must be pairs"),
        (changed("added_tokens.json", lambda c: c.pop("<|notimestamps|>")), r"has no token <\|notimestamps\|>"),
        (changed("vocab.json", lambda c: c.update(new=9999)), r"token 'new' has id 9999; ids of this model are 0 to"),
        (lambda folder: (folder / "vocab.json").unlink(), r"has neither tokenizer\.json nor vocab\.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), r"is not a readable safetensors file"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no weights"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(folder: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(folder)
    with pytest.raises(ExportError, match=told):
        read_checkpoint(folder)


def test_a_checkpoint_of_openai_runs_no_code_and_needs_the_right_tokens(saved: Path, tmp_path: Path) -> None:
    checkpoint, tokens = saved.parent / "openai/small.pt", saved.parent / "openai/small.tiktoken"
    with pytest.raises(ExportError, match=r"has no tokens: give multilingual\.tiktoken"):
        read_checkpoint(checkpoint)
    (tmp_path / "few.tiktoken").write_text(
        "\n".join(tokens.read_text(encoding="utf-8").splitlines()[:100]), encoding="utf-8"
    )
    with pytest.raises(ExportError, match=r"has 100 pieces, which is the table of another model"):
        read_checkpoint(checkpoint, tmp_path / "few.tiktoken")
    (tmp_path / "odd.tiktoken").write_text("!!! 0\n", encoding="utf-8")
    with pytest.raises(ExportError, match=r"line 1: expected a piece in base64 and its rank"):
        read_checkpoint(checkpoint, tmp_path / "odd.tiktoken")
    torch.save({"dims": {}, "code": print}, tmp_path / "evil.pt")
    with pytest.raises(ExportError, match=r"cannot be read safely"):
        read_checkpoint(tmp_path / "evil.pt", tokens)
    torch.save({"state": {}}, tmp_path / "other.pt")
    with pytest.raises(ExportError, match=r"expected a dict with dims and model_state_dict"):
        read_checkpoint(tmp_path / "other.pt", tokens)


def test_symbols_that_nobody_says_are_never_written() -> None:
    bpe = ByteLevelBpe(TOKENS)
    found = suppressed_tokens(TOKENS)
    assert {PIECES.index("("), PIECES.index("["), IDS["<|transcribe|>"], IDS["<|nospeech|>"]} <= set(found)
    assert bpe.encode("♪")[0] in found
    assert not {PIECES.index("a"), PIECES.index("."), PIECES.index("-"), IDS["<|endoftext|>"]} & set(found)


def test_a_manifest_must_have_ids_in_order_and_heads_that_exist() -> None:
    fields = {"window_frames": 100, "text_context": 64, "layers": 2, "heads": 4, "head_dim": 8, "sot": 5, "eot": 4}
    good = WhisperPart(**fields, no_timestamps=6, timestamp_begin=7)
    assert good.self_names == ("self_key_0", "self_value_0", "self_key_1", "self_value_1")
    with pytest.raises(ValueError, match="times must have the largest ids"):
        WhisperPart(**fields, no_timestamps=8, timestamp_begin=7)
    with pytest.raises(ValueError, match="alignment_heads must be of 2 layers with 4 heads"):
        WhisperPart(**fields, no_timestamps=6, timestamp_begin=7, alignment_heads=((2, 0),))


@pytest.mark.slow
def test_the_command_exports_what_transcribe_then_reads(saved: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    exported = run(app, ["export", "whisper", "--checkpoint", str(saved), "--output", str(tmp_path / "small")])
    assert exported.exit_code == 0, exported.output
    soundfile.write(tmp_path / "a.wav", speech(1.2), 16000)
    asked = ["transcribe", "--model", str(tmp_path / "small"), str(tmp_path / "a.wav")]
    told = run(app, [*asked, "--json", "--timestamps", "--language", "de", "--temperatures", "0"])
    assert told.exit_code == 0, told.output
    fields = json.loads(told.stdout)
    assert fields["language"] == "de"
    assert fields["segments"][0]["tokens"]
    for wrong, message in (
        (["--decoding", '{"langage": "de"}'], "unknown request parameter 'langage'"),
        (["--search", "rescoring"], "is not for Whisper models"),
        (["--language", "xx"], "this model knows en, zh, de"),
    ):
        failed = run(app, [*asked, *wrong])
        assert failed.exit_code != 0
        assert message in " ".join(failed.output.split()).replace("│", "").replace("  ", " ")
    stages = run(app, ["export", "whisper", "--checkpoint", str(saved), "--output", str(tmp_path / "b"), "--stages"])
    assert stages.exit_code == 2


@pytest.mark.slow
def test_graphs_in_other_precisions_write_text_and_their_drift_is_told(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    soundfile.write(tmp_path / "audio" / "a.wav", speech(1.0), 16000)
    report = export_whisper(
        checkpoint=saved,
        output=tmp_path / "small",
        precisions=("fp32", "fp16", "int8"),
        check_audio=tmp_path / "audio",
        max_drift=0.5,  # of a random model
    )
    assert set(report.drifts) == {
        f"{role}.{precision}.onnx" for role in ("encoder", "decoder") for precision in ("fp16", "int8")
    }
    assert report.drifts["decoder.fp16.onnx"].moved < report.drifts["decoder.int8.onnx"].moved < 0.5
    for precision in ("fp16", "int8"):
        found = tritone.load(tmp_path / "small", precision=precision, threads=1, language="de", temperature=0)
        assert found.transcribe(speech(1.0)).text
    assert isinstance(tritone.load(tmp_path / "small"), tritone.Transcriber)
    with pytest.raises(BundleError, match="which nothing compiles"):
        build_repository([tmp_path / "small"], tmp_path / "r", options=ModelOptions(compile="auto"))
