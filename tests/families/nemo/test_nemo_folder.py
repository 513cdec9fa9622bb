"""Folders of transformers that hold NeMo's networks: parity with transformers itself, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tritone
from families.conftest import babble
from families.hf_models import write_json
from families.parakeet_models import CLASSES, LANGUAGES, PIECES, features_of, random_model, save, write
from tritone.bundle.bundle import Bundle
from tritone.errors import ExportError
from tritone.families.known import recognise
from tritone.families.layers.log_mel import LogMel
from tritone.families.nemo.export import export_nemo
from tritone.families.nemo.family import TYPES as OF_NEMO
from tritone.families.nemo.folder import VOCAB_SIZES, parse_folder, read_folder
from tritone.families.nemo.graphs import OfflineGraph

LENGTHS = (16000, 9000, 24321, 12345)
ALLOWED = 2e-4  # of numbers up to 20, in float32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A folder of each kind as transformers writes it, and its model; one kind in bfloat16, one in shards."""
    pytest.importorskip("transformers")
    found: dict[str, tuple[Path, Any]] = {}

    def make(kind: str) -> tuple[Path, Any]:
        if kind not in found:
            model, folder = random_model(kind), tmp_path_factory.mktemp("parakeet") / kind
            model.to(torch.bfloat16 if kind == "parakeet_rnnt" else torch.float32)
            save(folder, kind, model, max_shard_size="20KB" if kind == "nemotron_asr_streaming" else "5GB")
            found[kind] = folder, model.float()
        return found[kind]

    return make


def upstream(kind: str, model: Any, inputs: dict[str, Tensor], prompt: int) -> Tensor:
    """What transformers computes for one utterance alone: log-probabilities, or projected encoder frames."""
    frames = int(model._get_subsampling_output_length(inputs["attention_mask"].sum()))
    if kind == "parakeet_ctc":
        return torch.log_softmax(model(**inputs).logits[0, :frames], dim=-1)
    more = {"prompt_ids": torch.tensor([prompt])} if kind == "nemotron3_5_asr" else {}
    found: Tensor = model.get_audio_features(**inputs, **more).pooler_output[0, :frames]
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_ragged_batches_have_what_transformers_computes_for_each_utterance_alone(
    kind: str, made: Callable[[str], tuple[Path, Any]]
) -> None:
    folder, theirs = made(kind)
    model, tokens, sources = read_folder(folder)
    assert len(tokens) == PIECES + 1
    assert len(sources) == 3 or kind == "nemotron_asr_streaming"
    front_end = LogMel(model.config.features)
    graph = OfflineGraph(model, front_end, "ctc" if model.config.ctc else "transducer").eval()
    block, lengths = torch.full((len(LENGTHS), max(LENGTHS)), 0.3), torch.tensor(LENGTHS)
    inputs = []
    for row, length in enumerate(LENGTHS):
        waveform = babble(length, seed=length)
        block[row, :length] = torch.from_numpy(waveform)
        inputs.append(features_of(kind, waveform))
    features, counts = front_end(block, lengths)
    prompts = torch.tensor([*LANGUAGES.values(), 2])
    given_language = {"language": prompts} if kind == "nemotron3_5_asr" else {}
    result = dict(zip(graph.outputs, graph(block, lengths, **given_language), strict=True))
    worst, worst_feature = 0.0, 0.0
    for row, given in enumerate(inputs):
        [theirs_features] = given["input_features"][:, given["attention_mask"][0]]
        assert len(theirs_features) == counts[row]
        worst_feature = max(worst_feature, float((features[row, : counts[row]] - theirs_features).abs().max()))
        expected = upstream(kind, theirs, given, int(prompts[row]))
        found = result[graph.compared[0]][row, : result["num_frames"][row]]
        assert len(found) == len(expected)
        worst = max(worst, float((found - expected).abs().max()))
    assert worst_feature < 1e-3, worst_feature
    assert worst < ALLOWED, worst


@pytest.mark.parametrize(
    "kind",
    [
        "parakeet_tdt",
        pytest.param("parakeet_rnnt", marks=pytest.mark.slow),
        pytest.param("nemotron_asr_streaming", marks=pytest.mark.slow),
        "nemotron3_5_asr",
    ],
)
def test_an_exported_folder_writes_the_tokens_of_transformers(
    kind: str, made: Callable[[str], tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, theirs = made(kind)
    report = export_nemo(archive=folder, output=tmp_path / "b")
    manifest = report.bundle.manifest
    assert manifest.provenance.family == "nemo"
    assert manifest.encoder.language == ("auto" if kind == "nemotron3_5_asr" else "")
    waveforms = [babble(length, seed=length) for length in LENGTHS]
    pieces, written_count = Bundle.open(tmp_path / "b").vocabulary.tokens, 0
    more: dict[str, Any] = {"prompt_ids": torch.tensor([LANGUAGES["auto"]])} if kind == "nemotron3_5_asr" else {}
    if not more:  # upstream takes the likeliest of tokens and durations together otherwise
        more["suppress_tokens"] = list(range(PIECES + 1, PIECES + 6))
    for waveform, found in zip(waveforms, tritone.load(tmp_path / "b").transcribe(waveforms), strict=True):
        inputs = features_of(kind, waveform)
        written = theirs.generate(**inputs, decoder_start_token_id=PIECES, max_new_tokens=500, **more).sequences[0]
        assert [token.text for token in found.tokens] == [pieces[id] for id in written if id < PIECES]
        written_count += len(found.tokens)
    assert written_count > 10


def changed(name: str, section: str = "", **changes: Any) -> Callable[[Path], None]:
    """Change settings of a JSON file, None removes one; `section` is the part that they are in."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        part = content[section] if section else content
        part |= changes
        for key in [key for key, value in part.items() if value is None]:
            del part[key]
        write_json(folder / name, content)

    return change


def in_encoder(**changes: Any) -> Callable[[Path], None]:
    return changed("config.json", "encoder_config", **changes)


def in_features(**changes: Any) -> Callable[[Path], None]:
    return changed("processor_config.json", "feature_extractor", **changes)


def with_tensors(**changes: Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        state = load_file(folder / "model.safetensors") | changes
        save_file({name: value for name, value in state.items() if value is not None}, folder / "model.safetensors")

    return change


REFUSED: list[tuple[Callable[[Path], None], str]] = [
    (
        changed("config.json", model_type="parakeet"),
        r"model_type 'parakeet'; this command reads folders .*parakeet_ctc",
    ),
    (changed("config.json", model_type=[1]), "this command reads folders"),
    (changed("config.json", quantization_config={}), "config: unknown quantization_config"),
    (changed("config.json", blank_token_id=2), "config.blank_token_id is 2; the blank should be the last of 25 tokens"),
    (changed("config.json", durations=[]), "config.durations is empty"),
    (changed("config.json", durations=[0, 0]), r"config.durations is \[0, 0\]; expected"),
    (changed("config.json", hidden_act="gelu"), "config.hidden_act is 'gelu'"),
    (changed("config.json", decoder_hidden_size=2**40), "decoder_hidden_size is 1099511627776, expected 1 to"),
    (in_encoder(head_dim=4), "encoder_config: unknown head_dim"),
    (in_encoder(sliding_window=7), "encoder_config: unknown sliding_window"),
    (in_encoder(hidden_act="relu"), "encoder_config.hidden_act is 'relu'"),
    (in_encoder(convolution_bias=False), "attention_bias and convolution_bias differ"),
    (in_encoder(conv_kernel_size=4), "conv_kernel_size is 4; this network needs an odd one"),
    (in_encoder(subsampling_conv_stride=4), "subsampling_conv_stride is 4; only 2"),
    (in_encoder(num_hidden_layers="2"), "encoder_config.num_hidden_layers is '2', expected a whole number"),
    (in_encoder(intermediate_size=23), r"feed_forward1.linear1.weight is \(24, 16\), the network asks for \(23, 16\)"),
    (in_features(feature_size=80), "feature_size is 80, but encoder_config.num_mel_bins 24"),
    (in_features(mel_filters_dtype="bfloat16"), "mel_filters_dtype is 'bfloat16'"),
    (in_features(feature_extractor_type="WhisperFeatureExtractor"), "feature_extractor_type is 'WhisperFeatureExtr"),
    (in_features(do_normalize=True), "feature_extractor: unknown do_normalize"),
    (changed("processor_config.json", feature_extractor=None), "has neither preprocessor_config.json nor"),
    (changed("tokenizer.json", model={"type": "WordPiece"}), "is of a tokenizer of type 'WordPiece'"),
    (
        changed("tokenizer.json", decoder={"type": "ByteLevel"}),
        "is of a tokenizer of type 'Unigram'; expected one made",
    ),
    (changed("tokenizer.json", "model", vocab=[["a", 0.0]]), "no token for 23 of the model's 24 ids, 1 among them"),
    (changed("tokenizer.json", added_tokens=[{"id": 1, "content": "x"}]), "'▁w' and 'x' have the same id 1"),
    (changed("tokenizer.json", added_tokens=[{"id": True}]), "expected an id for each token, got True"),
    (changed("tokenizer.json", "model", vocab={"a": 0, **{f"a{n}": n for n in range(1, 23)}, "b c": 23}), "cannot be"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json not found"),
    (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    (with_tensors(**{"joint.head.bias": None}), r"missing joint.head.bias \(30,\)"),
    (with_tensors(**{"encoder.layers.1.conv.norm.weight": None}), "missing encoder.layers.1.conv.norm.weight"),
    (with_tensors(**{"encoder.adapter.weight": torch.ones(2)}), "unknown encoder.adapter.weight"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_wrong_or_not_computed_is_named(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    change(write(tmp_path / "model"))
    with pytest.raises(ExportError, match=message):
        read_folder(tmp_path / "model")


def test_the_configuration_of_a_released_model_is_read() -> None:
    """That of nvidia/parakeet-tdt-0.6b-v3, with all keys that it has."""
    encoder = {
        **dict.fromkeys(("activation_dropout", "attention_dropout", "dropout", "layerdrop"), 0.1),
        **dict.fromkeys(("attention_bias", "convolution_bias", "scale_input"), False),
        **{"conv_kernel_size": 9, "dropout_positions": 0.0, "hidden_act": "silu", "hidden_size": 1024},
        **{"initializer_range": 0.02, "intermediate_size": 4096, "max_position_embeddings": 5000},
        **{"model_type": "parakeet_encoder", "num_attention_heads": 8, "num_hidden_layers": 24},
        **{"num_key_value_heads": 8, "num_mel_bins": 128, "subsampling_conv_channels": 256},
        **{"subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2, "subsampling_factor": 8},
    }
    content = {
        **{"architectures": ["ParakeetForTDT"], "blank_token_id": 8192, "decoder_hidden_size": 640},
        **{"dtype": "float32", "durations": [0, 1, 2, 3, 4], "encoder_config": encoder, "hidden_act": "relu"},
        **{"initializer_range": 0.02, "is_encoder_decoder": True, "max_symbols_per_step": 10, "pad_token_id": 2},
        **{"model_type": "parakeet_tdt", "num_decoder_layers": 2, "transformers_version": "5.6.0.dev0"},
        "vocab_size": 8193,
    }
    extractor = {
        **{"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": 128, "hop_length": 160, "n_fft": 512},
        **{"padding_side": "right", "padding_value": 0.0, "preemphasis": 0.97, "return_attention_mask": True},
        **{"sampling_rate": 16000, "win_length": 400},
    }
    config, tokens = parse_folder(content, {"blank_token": "<blank>", "feature_extractor": extractor}, extractor)
    assert tokens == 8192
    assert config.transducer is not None
    assert (config.transducer.joint, config.transducer.layers, config.transducer.durations) == (640, 2, (0, 1, 2, 3, 4))
    assert (config.encoder.layers, config.encoder.biases, config.encoder.xscale, config.ctc) == (
        24,
        False,
        False,
        False,
    )


def test_contexts_and_languages_come_from_the_processor(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "nemotron3_5_asr")
    assert read_folder(folder)[0].config.encoder.contexts == ((6, 2), (6, 13), (6, 6), (6, 1), (6, 0))
    changed("processor_config.json", supported_num_lookahead_tokens=[1, 0])(folder)
    assert read_folder(folder)[0].config.encoder.contexts == ((6, 1), (6, 0))
    changed("processor_config.json", default_num_lookahead_tokens=0)(folder)
    config = read_folder(folder)[0].config
    assert config.encoder.contexts == ((6, 0), (6, 1))
    assert config.prompts is not None
    assert (config.prompts.ids, config.prompts.default) == (LANGUAGES, "auto")
    for changes, message in (
        ({"supported_num_lookahead_tokens": [-1]}, "supported_num_lookahead_tokens is -1, expected 0 to"),
        (
            {"supported_num_lookahead_tokens": [1], "prompt_dictionary": {"de": 7}},
            r"dictionary\.de is 7, expected 0 to 6",
        ),
        ({"prompt_dictionary": None}, "has no prompt_dictionary"),
    ):
        changed("processor_config.json", **changes)(folder)
        with pytest.raises(ExportError, match=message):
            read_folder(folder)


def test_every_kind_is_recognised_as_a_model_of_nemo(tmp_path: Path) -> None:
    assert {*VOCAB_SIZES} <= {*OF_NEMO}
    for kind in VOCAB_SIZES:
        found = recognise(write(tmp_path / kind, kind))
        assert found.command("out") == f"tritone export nemo {tmp_path / kind} --output out"
        assert len(found.files) == len(set(found.files)) == 4
    (tmp_path / kind / "model.safetensors").unlink()
    (tmp_path / kind / "other.nemo").write_bytes(b"")
    assert "is no archive" in _refusal(tmp_path / kind), "the hub has archives beside a config.json"


def _refusal(folder: Path) -> str:
    with pytest.raises(tritone.errors.BundleError) as raised:
        recognise(folder)
    return str(raised.value)
