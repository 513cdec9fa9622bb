"""Bundles of a small wav2vec2: texts as upstream writes them, precisions, stages, searches, and the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from families.conftest import babble
from families.hf_models import PARTS, head_of, random_model, save, upstream_log_probs
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import ExportError
from tritone.families.hf.export import export_hf
from tritone.families.known import recognise
from tritone.families.onnx.writer import export_graph
from tritone.pipelines import open_offline
from tritone.pipelines.searching.base import SearchSettings
from tritone.runtime import open_graph
from tritone.search.options import SearchOptions

WIDER: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}  # int8 is for these


@pytest.fixture(scope="module")
def upstream() -> Any:
    model = random_model(**WIDER)
    # No token wins everywhere, and those that stand for no text hardly ever do.
    waveform = babble(64000, 5)
    with torch.no_grad():
        model.lm_head.bias.sub_(upstream_log_probs(model, waveform).mean(dim=0))
        model.lm_head.bias[1:4].sub_(20.0)
    return model


@pytest.fixture(scope="module")
def folder(upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("hf") / "wav2vec2", upstream)


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    report = export_hf(
        folder=folder,
        output=tmp_path_factory.mktemp("bundles") / "small",
        precisions=("fp32", "int8"),
        tail_padding_ms=20,
        max_drift=0.5,  # what a random net says hangs on little
    )
    assert report.notes == ()
    return report.bundle


def test_the_manifest_says_what_the_graph_does(bundle: Bundle) -> None:
    manifest = bundle.manifest
    assert (manifest.kind, manifest.sample_rate, manifest.provenance.family) == ("ctc", 16000, "hf")
    assert (manifest.features.kind, manifest.features.normalize) == ("samples", "all-features")
    encoder = manifest.encoder
    assert (encoder.subsampling_rate, encoder.output_dim, encoder.tail_samples) == (320, 32, 320)
    assert encoder.min_samples == 63 * 5 + 10  # of a frame behind two convolutions of 8 with stride 8
    assert manifest.frame_s == 0.02
    assert set(manifest.provenance.sources) == {"config", "vocabulary", "model.safetensors"}


def test_texts_are_those_of_upstreams_tokenizer_but_for_repeated_spaces(
    bundle: Bundle, upstream: Any, folder: Path
) -> None:
    from transformers import Wav2Vec2CTCTokenizer

    tokenizer = Wav2Vec2CTCTokenizer.from_pretrained(folder)
    waveforms = [babble(16000, 3), babble(9001, 4), babble(24000, 6)]
    tail = np.zeros(320, np.float32)
    best = [upstream_log_probs(upstream, np.concatenate([each, tail])).argmax(dim=1) for each in waveforms]
    expected = [" ".join(tokenizer.decode(ids).split()) for ids in best]
    assert all(len(set(text)) > 2 for text in expected)
    assert [each.text for each in open_offline(bundle).recognize(waveforms)] == expected


def test_times_of_tokens_are_those_of_frames(bundle: Bundle, upstream: Any) -> None:
    waveform = babble(16000, 3)
    [found] = open_offline(bundle).recognize([waveform])
    ids = upstream_log_probs(upstream, np.concatenate([waveform, np.zeros(320, np.float32)])).argmax(dim=1).tolist()
    starts = [at for at, id in enumerate(ids) if id not in (0, *ids[at - 1 : at])]
    assert [token.start_s for token in found.tokens] == pytest.approx([at * 0.02 for at in starts])


def test_beam_search_takes_a_language_model_and_hotwords(bundle: Bundle, tmp_path: Path) -> None:
    letters = [*"ABCDE'", "<unk>", "<s>", "</s>"]
    unigrams = "".join(f"{-0.1 if letter == 'C' else -9}\t{letter}\n" for letter in letters)
    (tmp_path / "lm.arpa").write_text(
        f"\\data\\\nngram 1={len(letters)}\n\n\\1-grams:\n{unigrams}\n\\end\\\n", encoding="utf-8"
    )
    waveforms = [babble(16000, 3), babble(9000, 4)]

    def texts(lm: Path | None = None, **options: object) -> list[str]:
        search = SearchSettings(options=SearchOptions(mode="prefix-beam", **options), lm=lm)  # type: ignore[arg-type]
        return [each.text for each in open_offline(bundle, search=search).recognize(waveforms)]

    assert all(set(text) - set("C ") for text in texts())
    assert all(set(text) <= set("C ") for text in texts(lm=tmp_path / "lm.arpa", lm_weight=50.0))
    assert all("BAD" in text for text in texts(hotwords=(("BAD", 60.0),)))


@pytest.mark.parametrize(
    "model_type",
    ["wav2vec2-bert", *(pytest.param(each, marks=pytest.mark.slow) for each in ("wav2vec2-conformer", *PARTS))],
)
def test_other_types_from_folder_to_the_texts_of_upstreams_tokenizer(model_type: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = random_model(model_type, num_hidden_layers=2 if model_type == "granite_speech5_ctc" else 1)
    head_of(model).bias.data.sub_(upstream_log_probs(model, babble(64000, 5)).mean(dim=0))
    head_of(model).bias.data[1:4].sub_(100.0)  # those that stand for no text
    folder = save(tmp_path / "model", model)
    found = recognise(folder)
    assert (found.family, found.arguments) == ("hf", {"folder": folder})
    bundle = export_hf(**found.arguments, output=tmp_path / "b", tail_padding_ms=0).bundle
    assert bundle.manifest.frame_s == {"lasr_ctc": 0.04, "granite_speech5_ctc": 0.08}.get(model_type, 0.02)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    waveforms = [babble(32000, 3), babble(18001, 4), babble(48000, 6)]
    best = [upstream_log_probs(model, each).argmax(dim=1) for each in waveforms]
    # Skipping special tokens takes blanks out before equal tokens are joined, but in the tokenizers of pieces.
    skipped = model_type in PARTS
    expected = [" ".join(tokenizer.decode(ids, skip_special_tokens=skipped).split()) for ids in best]
    assert all(len(set(text)) > 2 for text in expected)
    assert [each.text for each in open_offline(bundle).recognize(waveforms)] == expected


@pytest.mark.slow
def test_the_command_exports_stages_and_for_torch_too(tmp_path: Path) -> None:
    # Twelve graphs are traced. What one layer hands to the next, test_hf_network holds.
    model = random_model("wavlm", num_buckets=16, max_bucket_distance=30, num_hidden_layers=1)
    folder = save(tmp_path / "model", model, do_normalize=False)
    arguments = ["export", "hf", str(folder), "--output", str(tmp_path / "b"), "--runtimes", "torch,onnxruntime"]
    done = CliRunner().invoke(app, [*arguments, "--precision", "fp32,fp16", "--max-drift", "0.5", "--stages"])
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "b")
    assert {(each.role, each.runtime, each.precision) for each in bundle.manifest.artifacts} == {
        (role, runtime, precision)
        for role in ("encoder", "features", "acoustic")
        for runtime in ("torch", "onnxruntime")
        for precision in ("fp32", "fp16")
    }
    assert (bundle.manifest.features.normalize, bundle.manifest.name) == ("none", "b")
    feed = {"waveform": np.stack([babble(9000, 1), babble(9000, 2)]), "num_samples": np.array([9000, 4321])}
    names = ["log_probs", "num_frames", "encoder_out"]
    whole, features, acoustic = (open_graph(bundle.artifact(role)) for role in ("encoder", "features", "acoustic"))
    (ready,) = features(feed, ["features"])
    for one, other in zip(
        whole(feed, names), acoustic({"features": ready, "num_samples": feed["num_samples"]}, names), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_weights_that_no_file_of_onnx_can_hold_are_refused_before_anything_is_traced() -> None:
    with torch.device("meta"):
        network = torch.nn.Linear(2**15, 2**14)
    with pytest.raises(ExportError, match=r"have 2\.1 GB, .* in a file beside its graphs"):
        export_graph(network, {}, [], {}, {})
