"""Archives and configs: what is read, and what is refused with its name."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from families.nemo_models import LABELS, make_model, pieces_model, small_config, write_archive, write_nemo
from nemo_reference import Reference
from tritone.errors import ExportError
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.model import read_archive


def changed(kind: str, path: str, value: Any) -> dict[str, Any]:
    """A config with the setting at `a.b` changed; ... takes it out."""
    content = small_config(kind)
    section, (*parents, key) = content, path.split(".")
    for parent in parents:
        section = section[parent]
    if value is ...:
        del section[key]
    else:
        section[key] = value
    return content


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("ctc", "encoder._target_", "nemo.collections.asr.modules.SqueezeformerEncoder", "only ConformerEncoder"),
        ("ctc", "encoder.jasper", [], "tritone export jasper"),
        ("ctc", "encoder.self_attention_model", "rel_pos_local_attn", r"change_attention_model\('rel_pos'"),
        ("ctc", "encoder.self_attention_model", "abs_pos", "self_attention_model is 'abs_pos'"),
        ("ctc", "encoder.subsampling", "vggnet", "subsampling is 'vggnet'; upstream knows striding, dw_striding"),
        ("ctc", "encoder.subsampling_factor", 6, "subsampling_factor is 6; expected a power of two"),
        ("ctc", "encoder.conv_norm_type", "group_norm8", "conv_norm_type is 'group_norm8'"),
        ("ctc", "encoder.conv_kernel_size", 6, "needs an odd one"),
        ("ctc", "encoder.conv_context_size", [1, 1], "do not make conv_kernel_size 5"),
        ("ctc", "encoder.att_context_size", "all", "att_context_size is 'all', expected two whole numbers"),
        ("ctc", "encoder.n_heads", 3, "a multiple of n_heads"),
        ("ctc", "encoder.feat_in", 80, "encoder.feat_in is 80, but preprocessor.features are 20"),
        ("ctc", "encoder.n_layers", 10**7, "n_layers is 10000000, expected 1 to 1000"),
        ("ctc", "encoder.twisted", True, "encoder: unknown twisted"),
        (
            "ctc",
            "encoder.att_chunk_context_size",
            [[70], [1], [0]],
            "is of models with att_context_style chunked_limited_w",
        ),
        ("ctc", "encoder.conv_context_style", "dcc2", "conv_context_style is 'dcc2'; upstream knows regular, dcc"),
        (
            "ctc",
            "encoder.att_context_style",
            "chunked",
            "upstream knows regular, chunked_limited, chunked_limited_with_rc",
        ),
        ("ctc", "encoder.d_model", "${model.d}", "d_model is .*, expected a whole number"),
        ("ctc", "preprocessor.frame_splicing", 3, "frame_splicing is 3"),
        ("ctc", "preprocessor.mag_power", 1.0, "mag_power is 1.0"),
        ("ctc", "preprocessor.exact_pad", True, "exact_pad is True"),
        ("ctc", "preprocessor.n_window_size", 400, "window_size and n_window_size are both given"),
        ("ctc", "preprocessor.normalize", {"fixed_mean": [0]}, "normalize has fixed means"),
        ("ctc", "preprocessor.log_zero_guard_value", 0.0, "the logarithm needs more than 0"),
        ("ctc", "decoder.vocabulary", ..., "only models with a CTC or an RNNT decoder"),
        ("ctc", "decoder.vocabulary", ["a", True], "True is no text; quote"),
        ("ctc", "tokenizer", {"type": "wpe"}, "tokenizer.type is 'wpe'; only bpe"),
        ("ctc", "tokenizer", {"type": "bpe"}, "model_path is missing"),
        ("rnnt", "decoder._target_", "nemo.StatelessTransducerDecoder", "only RNNTDecoder can be read"),
        ("rnnt", "joint._target_", "nemo.HATJoint", "only RNNTJoint can be read"),
        ("rnnt", "decoder.normalization_mode", "layer", "only a plain LSTM"),
        ("rnnt", "decoder.prednet.rnn_hidden_size", 99, "an LSTM with a projection"),
        ("rnnt", "joint.num_extra_outputs", 3, "num_extra_outputs is 3, but decoding.durations has 0"),
        ("tdt", "decoding.durations", [0, 0, 0, 0], "not all of them 0"),
        ("tdt", "decoding.durations", [0, -1, 2, 3], "counts of frames, 0 to 1024"),
        ("tdt", "decoding.greedy.max_symbols", 0, "max_symbols is 0"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(kind: str, path: str, value: Any, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(changed(kind, path, value))


def test_a_config_is_read() -> None:
    config = parse_config(changed("tdt", "decoding.greedy.max_symbols", None))
    assert config.transducer is not None
    assert (config.transducer.durations, config.transducer.max_symbols) == ((0, 1, 2, 4), 10)
    assert (config.encoder.factor, config.encoder.channels, config.encoder.padding) == (8, 6, (2, 2))
    assert (config.features.frame_length, config.features.edges, config.features.log_guard) == (400, "zeros", 2**-24)
    guard = parse_config(changed("ctc", "preprocessor.log_zero_guard_value", "eps")).features.log_guard
    assert guard == torch.finfo(torch.float32).eps
    hybrid = parse_config(small_config("hybrid"))
    assert hybrid.ctc
    assert hybrid.hybrid


def test_models_trained_for_buffers_too_see_all_of_an_utterance() -> None:
    """As NeMo's forward does by itself: `set_default_att_context_size` alone gives these models chunks."""
    given = {
        "att_context_style": "chunked_limited_with_rc",
        "att_context_size": [70, 2],
        "att_chunk_context_size": [[70], [1, 2, 7, 13], [0, 1, 2, 3, 4, 7, 13]],
        "conv_context_style": "dcc",
        "conv_context_size": None,
    }
    assert parse_config(small_config("rnnt", **given)) == parse_config(small_config("rnnt", att_context_size=[-1, -1]))


def test_all_contexts_are_read_and_the_first_is_that_of_utterances() -> None:
    given = {"att_context_style": "chunked_limited", "att_context_size": [[6, 2], [6, 0]]}
    encoder = parse_config(small_config("ctc", **given)).encoder
    assert (encoder.contexts, encoder.context) == (((6, 2), (6, 0)), (6, 2))
    given["att_context_size"] = [[6, 2], [5, 2]]
    with pytest.raises(ExportError, match=r"att_context_size \[5, 2\]: the past .* multiple of the chunk"):
        parse_config(small_config("ctc", **given))


def archive(folder: Path, content: dict[str, Any], state: dict[str, Any], **files: bytes) -> Path:
    weights = io.BytesIO()
    torch.save(state, weights)
    config = yaml.safe_dump(content).encode()
    return write_nemo(
        folder / "m.nemo", {"model_config.yaml": config, "model_weights.ckpt": weights.getvalue(), **files}, "w:gz"
    )


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    content = small_config()
    state = dict(Reference(content, len(LABELS)).state_dict())
    del state["encoder.layers.1.norm_out.bias"]
    state["encoder.layers.0.adapter.weight"] = torch.ones(2)
    state["encoder.layers.0.conv.depthwise_conv.weight"] = torch.ones(16, 1, 7)
    with pytest.raises(ExportError) as caught:
        read_archive(archive(tmp_path, content, state))
    for told in (
        "missing encoder.layers.1.norm_out.bias (16,)",
        "unknown encoder.layers.0.adapter.weight (2,)",
        "depthwise_conv.weight is (16, 1, 7), the network asks for (16, 1, 5)",
    ):
        assert told in str(caught.value)


def test_filters_that_are_not_those_of_the_config_are_refused(tmp_path: Path) -> None:
    content = small_config()
    state = dict(Reference(content, len(LABELS)).state_dict())
    state["preprocessor.featurizer.fb"] = state["preprocessor.featurizer.fb"] * 1.5
    with pytest.raises(ExportError, match="not those of its config"):
        read_archive(archive(tmp_path, content, state))


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("unpickled",)


def test_archives_of_strangers_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = small_config()
    with pytest.raises(ExportError, match=r"cannot be read safely.*save_to"):
        read_archive(archive(tmp_path, content, {"encoder": Harmful()}))
    assert "unpickled" not in capsys.readouterr().out
    content["tokenizer"] = {"type": "bpe", "model_path": "nemo:../../etc/passwd"}
    with pytest.raises(ExportError, match=r"holds no \.\./\.\./etc/passwd"):
        read_archive(archive(tmp_path, content, {}))
    content["tokenizer"]["model_path"] = "nemo:t.model"
    with pytest.raises(ExportError, match="is not a sentencepiece model"):
        read_archive(archive(tmp_path, content, {}, **{"t.model": b"nothing"}))
    with pytest.raises(ExportError, match="expected settings"):
        read_archive(write_nemo(tmp_path / "list.nemo", {"model_config.yaml": b"- 1"}))
    content["encoder"]["subsampling"] = "vggnet"
    with pytest.raises(ExportError, match=r"m\.nemo: encoder\.subsampling is 'vggnet'"):
        read_archive(archive(tmp_path, content, {}))
    with pytest.raises(ExportError, match="archive not found"):
        read_archive(tmp_path / "none.nemo")


def test_pieces_come_out_of_the_archive(tmp_path: Path) -> None:
    content = small_config()
    content["tokenizer"] = {"dir": None, "type": "bpe", "model_path": "nemo:0123_tokenizer.model"}
    content["decoder"]["vocabulary"] = [f"piece {index}" for index in range(24)]
    files = {"./0123_tokenizer.model": pieces_model()}
    _, tokens = read_archive(write_archive(tmp_path / "m.nemo", Reference(content, 24), files))
    assert (tokens[0], tokens[-1], len(tokens)) == ("<unk>", "<blank>", 25)
    assert "▁w" in tokens
    content["decoder"]["vocabulary"].pop()
    with pytest.raises(ExportError, match="the tokenizer has 24 pieces, but the config lists 23"):
        read_archive(write_archive(tmp_path / "m.nemo", Reference(content, 24), files))


def test_a_hybrid_model_has_both_heads(tmp_path: Path) -> None:
    """A hybrid model has both decoders, whose tensors are told apart by their prefixes."""
    network, tokens = read_archive(write_archive(tmp_path / "m.nemo", make_model(small_config("hybrid"))))
    assert network.ctc is not None
    assert network.joint is not None
    assert tokens == ["▁", *LABELS[1:], "<blank>"]
