"""Folders of transformers in all their forms, damaged and hostile ones among them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from families.hf.granite import LENGTHS, SETTINGS, signals
from families.hf.granite import PATH as GRANITE
from families.hf_models import PARTS, PIECES, VOCAB, pieces_tokenizer, random_model, write, write_json
from tritone.errors import ExportError
from tritone.families.hf.checkpoint import read_state, renamed
from tritone.families.hf.config import parse_config
from tritone.families.hf.export import HfModel, export_hf
from tritone.families.hf.features import read_front_end
from tritone.families.hf.granite import GraniteEncoder
from tritone.families.hf.granite_features import GraniteFbank
from tritone.families.hf.model import Network
from tritone.families.hf.options import HfOptions
from tritone.families.hf.tokenizer import read_pieces, read_tokenizer


def opened(folder: Path, **options: Any) -> HfModel:
    return HfModel(HfOptions(folder=folder, output=folder / "b", **options))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hf") / "model")


def test_weight_norm_is_folded_in_its_old_and_in_its_new_names() -> None:
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(4, 6, 5), dim=2)
    with torch.no_grad():
        normed.parametrizations.weight.original0.mul_(1.7)
    magnitude, direction = normed.parametrizations.weight.original0, normed.parametrizations.weight.original1
    new = {
        "wav2vec2.c.parametrizations.weight.original0": magnitude,
        "wav2vec2.c.parametrizations.weight.original1": direction,
    }
    old = {"wav2vec2.c.weight_g": magnitude, "wav2vec2.c.weight_v": direction}
    for state in (new, old):
        found = renamed(state, "wav2vec2")
        assert list(found) == ["c.weight"]
        torch.testing.assert_close(found["c.weight"], normed.weight.detach())


@pytest.mark.parametrize("form", ["bin", "shards", "bin-shards"])
def test_weights_may_be_of_torch_or_in_shards(form: str, original: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    name = "model.safetensors" if form == "shards" else "pytorch_model.bin"
    store = save_file if form == "shards" else torch.save
    if form == "bin":
        store(state, folder / name)
    else:
        parts = {f"part-{part}.{form[:3]}": sorted(state)[part::2] for part in range(2)}
        parts = {file.replace(".sha", ".safetensors"): held for file, held in parts.items()}
        for file, held in parts.items():
            store({each: state[each] for each in held}, folder / file)
        write_json(
            folder / f"{name}.index.json", {"weight_map": {each: file for file, held in parts.items() for each in held}}
        )
    found, expected = opened(folder), opened(original)
    for one, other in zip(found.network.parameters(), expected.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(found.sources) == len(expected.sources) + ("shards" in form)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "stolen.safetensors")
    for named in ("../stolen.safetensors", str(tmp_path / "stolen.safetensors"), "missing.safetensors", ""):
        write_json(folder / "model.safetensors.index.json", {"weight_map": {"lm_head.weight": named}})
        with pytest.raises(ExportError, match="which is not a file of"):
            opened(folder)
    write_json(folder / "model.safetensors.index.json", {"weight_map": [1]})
    with pytest.raises(ExportError, match="has no weight_map"):
        opened(folder)


def damage(path: Path, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / path).read_text(encoding="utf-8"))
        write_json(folder / path, {**content, **changes})

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def headless(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({name: value for name, value in state.items() if "lm_head" not in name}, folder / "model.safetensors")


def truncated(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:500])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("config.json"), "config.json not found: give a folder"),
        (
            lambda folder: (folder / "config.json").write_text("[" * 100_000, encoding="utf-8"),
            "config.json is not a JSON file",
        ),
        (
            lambda folder: (folder / "config.json").write_text("[]", encoding="utf-8"),
            "must hold a JSON object, got a list",
        ),
        (damage(Path("config.json"), model_type="llama"), "model_type 'llama'; this command exports CTC models of"),
        (damage(Path("config.json"), add_adapter=True), "add_adapter: true, convolutions after the encoder"),
        (damage(Path("config.json"), hidden_act="mish"), "hidden_act: Input should be 'gelu'"),
        (damage(Path("config.json"), hidden_size=2**40), "hidden_size: Input should be less than"),
        (damage(Path("config.json"), num_attention_heads=5), "24 is no multiple of num_attention_heads 5"),
        (damage(Path("config.json"), conv_stride=[5, 2]), "must be equally long"),
        (damage(Path("config.json"), conv_stride=[5, 9, 8]), "goes beyond conv_kernel"),
        (damage(Path("config.json"), hidden_size=60000, num_attention_heads=1), "the network asks for"),
        (damage(Path("config.json"), num_hidden_layers=3), r"missing encoder\.layers\.2\.attention"),
        (without("model.safetensors"), "has no weights: expected model.safetensors or pytorch_model.bin"),
        (truncated, "not a readable safetensors file"),
        (headless, "without CTC head"),
        (without("preprocessor_config.json"), "has neither preprocessor_config.json nor"),
        (
            damage(Path("preprocessor_config.json"), feature_extractor_type="SeamlessM4TFeatureExtractor"),
            "of a Seamless",
        ),
        (damage(Path("preprocessor_config.json"), sampling_rate="16k"), "sampling_rate '16k'"),
        (without("vocab.json"), "vocab.json not found"),
        (damage(Path("vocab.json"), **{"|": "four"}), "expected an id for each token"),
        (damage(Path("vocab.json"), **{"<pad>": 99}), "the pad token '<pad>', which is the blank"),
        (damage(Path("vocab.json"), **{" ": 5}), "cannot be told apart"),
        (
            lambda folder: write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}),
            "BertToken",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_is_missing_damaged_or_unsupported_is_said(
    change: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model")
    change(folder)
    with pytest.raises(ExportError, match=said):
        export_hf(folder=folder, output=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_language_of_mms_brings_its_adapter_its_head_and_its_vocabulary(tmp_path: Path) -> None:
    stable = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "adapter_attn_dim": 4}
    folder = write(tmp_path / "model", **stable)
    vocab = {token: id for id, token in enumerate(VOCAB)}
    write_json(folder / "vocab.json", {"eng": vocab, "deu": {**vocab, "ß": len(vocab)}})
    state = load_file(folder / "model.safetensors")
    adapter = {name: value + 1 for name, value in state.items() if "adapter_layer" in name}
    adapter |= {"lm_head.weight": torch.ones(len(vocab) + 1, 24), "lm_head.bias": torch.zeros(len(vocab) + 1)}
    save_file(adapter, folder / "adapter.deu.safetensors")
    model = opened(folder, language="deu")
    assert model.tokens is not None
    assert model.tokens[-1] == "ß"
    assert model.network.lm_head.out_features == len(vocab) + 1
    found = model.network.state_dict()
    name = "encoder.layers.1.adapter_layer.linear_1.weight"
    assert torch.equal(found[name], state[f"wav2vec2.{name}"] + 1)
    assert model.sources["adapter.deu.safetensors"] == folder / "adapter.deu.safetensors"
    for language, said in (("fra", "has no adapter.fra.safetensors or"), ("../deu", "this language's adapter")):
        with pytest.raises(ExportError, match=said):
            opened(folder, language=language)
    with pytest.raises(ExportError, match=r"choose one of deu, eng; got None"):
        opened(folder)
    write_json(folder / "tokenizer_config.json", {"target_lang": "eng"})
    assert opened(folder).tokens == [each.replace("|", "▁") for each in VOCAB]


def test_a_language_of_a_model_without_adapters_is_refused(original: Path) -> None:
    with pytest.raises(ExportError, match="has no adapters of languages"):
        opened(original, language="eng")


def test_the_tokenizers_settings_are_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    vocab = {"A": 0, "B": 1, "_": 2, "[UNK]": 3, "[PAD]": 4}
    write_json(folder / "vocab.json", vocab)
    write_json(folder / "added_tokens.json", {"<s>": 5, "</s>": 6, "[PAD]": 9})
    write_json(folder / "special_tokens_map.json", {"pad_token": {"content": "[PAD]"}, "unk_token": "<unk>"})
    write_json(
        folder / "tokenizer_config.json", {"unk_token": "[UNK]", "word_delimiter_token": "_", "do_lower_case": True}
    )
    table = read_tokenizer(folder, 8)
    assert table.tokens == ["a", "b", "▁", "[unk]", "[pad]", "<s>", "</s>", "<unused-7>"]
    assert (table.blank_id, table.unk_id, table.sos_id, table.eos_id, table.nameless) == (4, 3, 5, 6, [7])


def test_phonemes_are_written_with_spaces_between_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    write_json(folder / "vocab.json", {"<pad>": 0, "aː": 1, "|": 2, "t͡ʃ": 3})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"})
    table = read_tokenizer(folder, 4)
    assert (table.tokens, table.connect_symbol) == (["<pad>", "aː", "|", "t͡ʃ"], " ")


def test_notes_say_what_was_taken_for_granted(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", pad_token_id=3)
    (folder / "language_model").mkdir()
    vocab = {token: id for id, token in enumerate(VOCAB[:-1])}
    write_json(folder / "vocab.json", vocab)
    notes = opened(folder).notes
    assert [note.split(" ")[0] for note in notes] == ["1", "the", str(folder / "language_model")]


def test_a_program_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "model.safetensors").unlink()

    class Program:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"lm_head.weight": Program()}, folder / "pytorch_model.bin")
    with pytest.raises(ExportError, match="cannot be read safely"):
        opened(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "wav2vec2-conformer", "position_embeddings_type": "relative_key"}, "is of wav2vec2-bert alone"),
        ({"model_type": "wav2vec2-conformer", "conv_depthwise_kernel_size": 8}, "8 must be odd"),
        (
            {"model_type": "wav2vec2-bert", "position_embeddings_type": "alibi"},
            "position_embeddings_type: Input",
        ),
        ({"model_type": "wav2vec2-bert", "add_adapter": True}, "add_adapter: true"),
        ({"model_type": "wav2vec2-bert", "use_intermediate_ffn_before_adapter": True}, "use_intermediate_ffn_before"),
        ({"model_type": "omniasr_ctc", "audio_config": {"num_conv_pos_embeddings": 5}}, "num_conv_pos_embeddings 5 is"),
        ({"model_type": "omniasr_ctc", "audio_config": [1]}, "audio_config should hold settings"),
        ({"model_type": "lasr_ctc", "encoder_config": {"rope_parameters": {"rope_type": "yarn"}}}, "rope_type"),
        ({"model_type": "lasr_ctc", "encoder_config": {"rope_parameters": {"factor": 2}}}, "rope_parameters.factor"),
        ({"model_type": "lasr_ctc", "encoder_config": {"head_dim": 100}}, "head_dim 100 is not"),
        ({"model_type": "lasr_ctc", "encoder_config": {"num_attention_heads": 7}}, "num_attention_heads 7"),
        ({"model_type": "lasr_ctc", "encoder_config": {"num_key_value_heads": 2}}, "num_key_value_heads 2 is not"),
        (
            {"model_type": "lasr_ctc", "encoder_config": {"conv_padding": "causal"}},
            "has conv_padding, which models of type lasr",
        ),
        ({"model_type": "wav2vec2-bert", "position_scale": 2}, "has position_scale, which models"),
        ({"model_type": "omniasr_ctc", "use_cif": True}, "has use_cif, which models"),
        ({"model_type": "granite_speech5_ctc", "encoder_config": {"mid_layer": 3}}, "has mid_layer, which"),
        ({"model_type": "granite_speech5_ctc", "encoder_config": {"num_key_value_heads": 2}}, "num_key_value_heads 2"),
        ({"model_type": "granite_speech5_ctc", "encoder_config": {"conv_kernel_size": 8}}, "conv_kernel_size 8 must"),
        ({"model_type": "granite_speech5_ctc", "encoder_config": {"context_size": 513}}, "context_size 513 goes"),
        ({"model_type": "granite_speech5_ctc", "encoder_config": {"subsample_layers": [0, 16]}}, "subsample_layers"),
        (
            {"model_type": "granite_speech5_ctc", "vocab_size": 9, "encoder_config": {"vocab_size": 8}},
            "has vocab_size 9, but 8 in encoder_config",
        ),
    ],
)
def test_what_other_types_have_and_is_not_computed_is_refused_by_its_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(config, "config.json")


@pytest.mark.parametrize(
    ("model_type", "extractor", "said"),
    [
        ("wav2vec2-bert", {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "has a SeamlessM4TFeatureExtractor"),
        ("wav2vec2-bert", {"num_mel_bins": 40}, "frames of 160"),
        ("wav2vec2-bert", {"num_mel_bins": 160, "stride": True}, "covers no DFT bin"),
        ("lasr_ctc", {"feature_size": 80}, "expected 128"),
        ("lasr_ctc", {"n_fft": 1024}, "n_fft 1024"),
        ("lasr_ctc", {"hop_length": 0}, "whole numbers above 0"),
        ("granite_speech5_ctc", {"num_mel_bins": 40}, "expected 80 bands"),
        ("granite_speech5_ctc", {"delta_win_length": 5}, "differences of 3 frames"),
        ("granite_speech5_ctc", {"logmel_floor_db": -1}, "logmel_floor_db -1"),
        ("granite_speech5_ctc", {"win_length": 800}, "a window up to n_fft"),
        ("lasr_ctc", {"sampling_rate": 8000}, "low < high"),
        ("omniasr_ctc", {"do_normalize": "yes"}, "do_normalize 'yes'"),
    ],
)
def test_features_that_are_not_the_models_are_refused(model_type: str, extractor: dict[str, Any], said: str) -> None:
    config = parse_config({"model_type": model_type}, "config.json")
    with pytest.raises(ExportError, match=said):
        read_front_end(extractor, Path("preprocessor_config.json"), config)


def test_a_blank_that_is_no_piece_is_refused(tmp_path: Path) -> None:
    pieces_tokenizer().save_pretrained(tmp_path)
    assert read_pieces(tmp_path, len(PIECES) + 2, 0).nameless == [len(PIECES), len(PIECES) + 1]
    with pytest.raises(ExportError, match=r"the blank of .* is 12"):
        read_pieces(tmp_path, 40, 12)


@pytest.mark.parametrize("model_type", ["wav2vec2-conformer", "wav2vec2-bert", *PARTS])
def test_what_transformers_writes_of_a_config_is_known(model_type: str) -> None:
    model = random_model(model_type)
    written = {**model.config.to_dict(), **json.loads(model.config.to_json_string(use_diff=True))}
    assert parse_config(written, "config.json").vocab_size == model.config.vocab_size


@pytest.mark.parametrize("kept", ["ctc_head.", "encoder.out."])
def test_a_layer_that_is_two_is_read_of_a_file_that_has_it_once(kept: str, tmp_path: Path) -> None:
    model = random_model("granite_speech5_ctc")
    other = {"ctc_head.": "encoder.out.", "encoder.out.": "ctc_head."}[kept]
    state = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith(other)}
    save_file(state, tmp_path / "model.safetensors")
    found = read_state([tmp_path / "model.safetensors"], "granite_speech5_ctc")
    network = Network.of(parse_config(model.config.to_dict(), "config.json"), found, "the test")
    assert isinstance(network.encoder, GraniteEncoder)
    assert network.encoder.out is network.lm_head


def test_the_features_of_granite_are_those_of_upstreams_extractor() -> None:
    waves = signals()
    block = torch.full((len(waves), max(LENGTHS) + 77), 0.4)
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = torch.from_numpy(wave)
    front_end = GraniteFbank(16000, 400, 160, 512, SETTINGS["num_mel_bins"], 8.0)
    features, frames = front_end(block, torch.tensor(LENGTHS))
    with np.load(GRANITE) as kept:
        for length, row, count in zip(LENGTHS, features.numpy(), frames.tolist(), strict=True):
            np.testing.assert_allclose(row[:count], kept[str(length)], atol=1e-5)
            assert not row[count:].any()
