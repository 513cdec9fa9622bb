"""Moonshine, from a folder of transformers to the tokens that it generates: on the host, in the engine, in company."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tritone
from effort import runtimes
from families.conftest import babble
from families.moonshine_models import CONTEXT, END, START, generated, random_model, save, write
from tritone.bundle import Bundle
from tritone.errors import BundleError, ExportError, InputError
from tritone.families.hf.export import export_hf
from tritone.families.known import recognise
from tritone.families.moonshine.model import MIN_SAMPLES
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.attended import AttendedPipeline
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.runtime import open_graph

WAVEFORMS = [babble(16000, 3), babble(9001, 4), babble(24000, 6), babble(40000, 9)]
LONG = DecodingOptions(max_tokens=CONTEXT - 1)
ON_TORCH = Placement(runtime="torch")


@pytest.fixture(scope="module")
def upstream() -> Any:
    return random_model()


@pytest.fixture(scope="module")
def folder(upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("hf") / "moonshine", upstream)


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    found = recognise(folder)
    assert (found.family, found.arguments) == ("moonshine", {"folder": folder})
    return export_hf(
        **found.arguments,
        output=tmp_path_factory.mktemp("b") / "moonshine",
        runtimes=runtimes(),
        precisions=("fp32", "int8"),
        max_drift=1.0,  # what a random net says hangs on little
    ).bundle


def tokens_of(results: Any) -> list[list[int]]:
    return [[token for segment in each.segments for token in segment.tokens] for each in results]


def test_the_manifest_has_what_decoding_needs(bundle: Bundle) -> None:
    special = bundle.manifest.find(EncoderDecoderPart)
    assert special is not None
    assert (bundle.manifest.kind, special.prompt, special.eot, special.text_context) == (
        *("encoder-decoder", (START,), END, CONTEXT),
    )
    assert (special.form, special.max_samples, special.languages) == ("gated-silu", 30 * 16000, {})
    assert bundle.manifest.encoder.min_samples == MIN_SAMPLES == 895
    assert {each.precision for each in bundle.manifest.artifacts} == {"fp32", "int8"}


def test_encoder_and_log_probabilities_are_upstreams(bundle: Bundle, upstream: Any) -> None:
    waveform, tokens = WAVEFORMS[0], [START, 40, 263, 12]
    with torch.no_grad():
        encoded = upstream.model.encoder(torch.from_numpy(waveform)[None])
        given = {"encoder_outputs": encoded, "decoder_input_ids": torch.tensor([tokens])}
        expected = upstream(**given).logits[0].log_softmax(-1).numpy()
    special = bundle.manifest.find(EncoderDecoderPart)
    assert special is not None
    encoder, decoder = (open_graph(bundle.file(f"{role}.onnx")) for role in ("encoder", "decoder"))
    inputs = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    found, *heard = encoder(inputs, ["encoder_out", *special.encoder_names])
    reference = encoded.last_hidden_state[0].numpy()
    assert np.abs(found[0] - reference).max() < 1e-4 * np.abs(reference).max()
    empty = np.zeros((1, special.heads, 0, special.head_dim), np.float32)
    inputs = {
        "tokens": np.array([tokens]),
        "padding": np.zeros(1, np.int64),
        "places": np.arange(len(tokens))[None],
        **dict(zip(special.encoder_names, heard, strict=True)),
        **dict.fromkeys(special.self_names, empty),
    }
    [logits] = decoder(inputs, ["logits"])
    log_probs = torch.from_numpy(logits[0]).log_softmax(-1).numpy()
    assert np.abs(log_probs - expected).max() < 1e-3


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_texts_in_company_and_alone_are_what_upstream_generates(bundle: Bundle, upstream: Any, on_device: bool) -> None:
    pipeline = AttendedPipeline(bundle, placement=ON_TORCH if on_device else Placement(), on_device=on_device)
    expected = [generated(upstream, each, max_length=CONTEXT) for each in WAVEFORMS]
    assert len({len(each) for each in expected}) > 1
    assert tokens_of(pipeline.transcribe(WAVEFORMS, [LONG] * len(WAVEFORMS))) == expected
    assert [tokens_of(pipeline.transcribe([each], [LONG]))[0] for each in WAVEFORMS] == expected
    beam = DecodingOptions(beam=3, max_tokens=20)
    found = tokens_of(pipeline.transcribe(WAVEFORMS, [beam] * len(WAVEFORMS)))
    assert found == [generated(upstream, each, max_length=21, num_beams=3) for each in WAVEFORMS]


def test_texts_are_upstreams_tokenizers(bundle: Bundle, upstream: Any, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    [found] = AttendedPipeline(bundle).transcribe([WAVEFORMS[0]], [DecodingOptions(suppress=tuple(range(3, 259)))])
    spelled = tokenizer.decode(found.segments[0].tokens, skip_special_tokens=True)
    assert found.text == " ".join(spelled.split())
    assert len(found.text) > 3


def test_a_text_is_no_longer_than_its_audio_allows(bundle: Bundle, upstream: Any) -> None:
    [found] = AttendedPipeline(bundle).transcribe([WAVEFORMS[0]])
    assert found.segments[0].tokens == tuple(generated(upstream, WAVEFORMS[0], max_length=CONTEXT)[:13])  # 13 a second


def test_long_audio_is_cut_and_joined_and_what_has_no_frame_is_empty(bundle: Bundle) -> None:
    pauses = np.zeros(8000, np.float32)
    waveform = np.concatenate([part for seed in range(9) for part in (babble(56000, seed), pauses)])  # 36 s
    whole, short, empty, silent = AttendedPipeline(bundle).transcribe(
        [waveform, WAVEFORMS[0][: MIN_SAMPLES - 1], np.zeros(0, np.float32), np.zeros(16000, np.float32)]
    )
    assert [(each.text, each.segments) for each in (short, empty)] == [("", ())] * 2
    assert silent.audio_s == 1.0
    first, second = whole.segments
    assert (first.start_s, second.end_s, whole.audio_s) == (0.0, 36.0, 36.0)
    assert first.end_s == second.start_s <= 30.0
    cut = round(first.end_s * 16000)
    assert not waveform[cut - 800 : cut + 800].any()  # within a pause
    parts = AttendedPipeline(bundle).transcribe([waveform[:cut], waveform[cut:]])
    assert whole.text == " ".join(each.text for each in parts)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"language": "de"}, "no choice of languages"),
        ({"task": "translate"}, "no choice of languages"),
        ({"punctuation": False}, "no choice of punctuation"),
        ({"word_times": True}, "cannot tell the times of words"),
        ({"prompt": "names"}, "prompt is for Whisper models"),
        ({"temperature": "0.4"}, "temperature is for Whisper models"),
        ({"max_tokens": CONTEXT}, f"writes at most {CONTEXT - 1}"),
    ],
)
def test_what_the_model_does_not_have_is_an_error(bundle: Bundle, options: dict[str, Any], told: str) -> None:
    model = tritone.load(bundle.path)
    with pytest.raises(InputError, match=told):
        model.transcribe([WAVEFORMS[0]], options=options)  # type: ignore[attr-defined]


def test_there_are_no_streams(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="has no streams"):
        tritone.load(bundle.path).stream()


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("config.json", {"attention_bias": True}, "attention_bias is true"),
        ("config.json", {"encoder_num_key_value_heads": 1}, "only equal ones"),
        ("config.json", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 7.0}}, "even number"),
        ("config.json", {"rope_scaling": {"type": "linear"}}, "only plain rotary ones"),
        ("config.json", {"hidden_size": 64}, "does not fit its config"),
        ("config.json", {"encoder_num_hidden_layers": 3}, "missing encoder.blocks.2"),
        ("preprocessor_config.json", {"do_normalize": True}, "samples as they are"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate is 8000"),
    ],
)
def test_a_folder_that_cannot_be_exported_says_why(
    folder: Path, file: str, change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in folder.iterdir():
        (copy / each.name).hardlink_to(each)
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    (copy / file).unlink()
    write(copy / file, content | change)
    with pytest.raises(ExportError, match=told):
        export_hf(folder=copy, output=tmp_path / "b")
