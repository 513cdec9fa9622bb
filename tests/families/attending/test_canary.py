"""Canary, from a folder of transformers to the tokens that it generates after its prompts, on host and device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tritone
from effort import runtimes
from families.canary_models import (
    CONTEXT,
    END,
    IDS,
    PIECES,
    first_prompt,
    generated,
    heard,
    prompt,
    random_model,
    save,
    spoken,
    write_archive,
)
from families.conftest import babble
from families.moonshine_models import served_info
from serving import quiet_options
from tritone import Client
from tritone.bundle import Bundle
from tritone.errors import ExportError, InputError
from tritone.families.known import recognise
from tritone.families.nemo.canary import prompt_of
from tritone.families.nemo.export import export_nemo
from tritone.kinds.encoder_decoder.part import EncoderDecoderPart
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.whisper.attended import AttendedPipeline, timed_words
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.repository import ModelOptions, build_repository
from tritone.runtime import open_graph
from tritone.server import TritonServer

WAVEFORMS = [babble(16000, 3), babble(9001, 4), babble(24000, 6), babble(40000, 9)]
ASKED = (
    (DecodingOptions(), prompt()),
    (DecodingOptions(language="de", punctuation=False), prompt("de", "de", punctuation=False)),
    (DecodingOptions(language="de", task="translate"), prompt("de", "en")),
    (DecodingOptions(target_language="de", word_times=True), prompt("en", "de", times=True)),
)


@pytest.fixture(scope="module")
def upstream() -> Any:
    return random_model()


@pytest.fixture(scope="module")
def folder(upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("hf") / "canary", upstream)


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    found = recognise(folder)
    assert (found.family, found.arguments) == ("nemo", {"archive": folder})
    output = tmp_path_factory.mktemp("b") / "canary"
    return export_nemo(**found.arguments, output=output, runtimes=runtimes()).bundle


def special_of(bundle: Bundle) -> EncoderDecoderPart:
    special = bundle.manifest.find(EncoderDecoderPart)
    assert special is not None
    return special


def test_the_manifest_has_prompt_languages_and_times(bundle: Bundle) -> None:
    special = special_of(bundle)
    assert (special.languages, special.language) == ({"en": IDS["<|en|>"], "de": IDS["<|de|>"]}, "en")
    assert special.prompt[3:6] == ("language", "target_language", "punctuation")
    assert (special.eot, special.times) == (END, (IDS["<|0|>"], IDS["<|59|>"]))
    assert (special.time_precision, special.max_samples, special.max_positions) == (0.08, 640000, 500)


def test_encoder_and_log_probabilities_are_upstreams(bundle: Bundle, upstream: Any) -> None:
    waveform, tokens, special = WAVEFORMS[0], [*prompt(), 80, 86], special_of(bundle)
    with torch.no_grad():
        given = heard(waveform)
        encoded = upstream.model.encoder(**given)
        expected = upstream(**given, decoder_input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1).numpy()
    encoder, decoder = (open_graph(bundle.file(f"{role}.onnx")) for role in ("encoder", "decoder"))
    inputs = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    found, *rest = encoder(inputs, ["encoder_out", *special.encoder_names])
    [count] = rest[0].tolist()
    reference = encoded.last_hidden_state[0, :count].numpy()
    assert np.abs(found[0, :count] - reference).max() < 2e-3 * np.abs(reference).max()
    empty = np.zeros((1, special.heads, 0, special.head_dim), np.float32)
    inputs = {
        "tokens": np.array([tokens]),
        "padding": np.zeros(1, np.int64),
        "places": np.arange(len(tokens))[None],
        **dict(zip(special.encoder_names, rest, strict=True)),
        **dict.fromkeys(special.self_names, empty),
    }
    [logits] = decoder(inputs, ["logits"])
    assert np.abs(torch.from_numpy(logits[0]).log_softmax(-1).numpy() - expected).max() < 5e-3


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_texts_of_each_prompt_in_company_are_what_upstream_generates(
    bundle: Bundle, upstream: Any, on_device: bool
) -> None:
    placement = Placement(runtime="torch") if on_device else Placement()
    pipeline = AttendedPipeline(bundle, placement=placement, on_device=on_device)
    pairs = [(waveform, asked) for asked in ASKED for waveform in WAVEFORMS]
    found = pipeline.transcribe([each for each, _ in pairs], [asked[0] for _, asked in pairs])
    expected = [generated(upstream, each, before, max_length=CONTEXT) for each, (_, before) in pairs]
    assert len({tuple(each) for each in expected}) > len(WAVEFORMS) * 2
    written = [[token for segment in each.segments for token in segment.tokens] for each in found]
    silent = special_of(bundle).silent
    # A recording without a piece of text has no segment.
    assert written == [each if set(each) - set(silent) else [] for each in expected]
    assert [each.language for each in found] == [asked[0].language or "en" for _, asked in pairs]
    some = [index for index, each in enumerate(found) if each.segments][::5]
    assert len(some) > 1
    for index in some:
        [alone] = pipeline.transcribe([pairs[index][0]], [pairs[index][1][0]])
        assert [each.tokens for each in alone.segments] == [each.tokens for each in found[index].segments]


@pytest.mark.slow
def test_an_archive_of_nemos_with_the_same_weights_writes_the_same(upstream: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "canary.nemo", upstream)
    assert recognise(archive).arguments == {"archive": archive}
    bundle = export_nemo(archive=archive, output=tmp_path / "b").bundle
    special = special_of(bundle)
    assert (special.languages, special.times) == ({"en": IDS["<|en|>"]}, (IDS["<|0|>"], IDS["<|59|>"]))
    # Of the tokens of both there are few that are text; all others are left out.
    suppress = tuple(id for id in special.silent if id != END)
    options = DecodingOptions(word_times=True, suppress=suppress)
    found = AttendedPipeline(bundle).transcribe(WAVEFORMS, [options] * len(WAVEFORMS))
    asked = {"max_length": CONTEXT, "suppress_tokens": [*suppress]}
    expected = [generated(upstream, each, prompt(times=True), **asked) for each in WAVEFORMS]
    assert [[token for segment in each.segments for token in segment.tokens] for each in found] == expected
    assert len({tuple(each) for each in expected}) > 1


@pytest.fixture(scope="module")
def projected() -> Any:
    """A model whose decoder is wider than its encoder."""
    return random_model(seed=2, width=24)


@pytest.fixture(scope="module")
def flash(projected: Any, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("flash")
    return export_nemo(archive=write_archive(folder / "flash.nemo", projected), output=folder / "flash").bundle


def texts_of(model: Any, bundle: Bundle) -> list[str]:
    """What upstream writes of each recording, as text."""
    written = [generated(model, each, prompt(), max_length=CONTEXT) for each in WAVEFORMS]
    silent = special_of(bundle).silent
    return [bundle.vocabulary.text([token for token in each if token not in silent]) for each in written]


def test_a_decoder_wider_than_the_encoder_hears_through_the_projection_between_them(
    flash: Bundle, projected: Any
) -> None:
    special, waveform = special_of(flash), WAVEFORMS[0]
    assert (special.heads * special.head_dim, flash.manifest.encoder.output_dim) == (24, 24)
    inputs = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    [found] = open_graph(flash.file("encoder.onnx"))(inputs, ["encoder_out"])
    reference = spoken(projected, waveform)["encoder_outputs"].last_hidden_state.numpy()
    assert found.shape == reference.shape
    assert np.abs(found - reference).max() < 2e-3 * np.abs(reference).max()
    texts = texts_of(projected, flash)
    assert [each.text for each in tritone.load(flash.path).transcribe(WAVEFORMS)] == texts
    assert len(set(texts)) > 1


def test_the_configuration_says_what_requests_may_ask_for(bundle: Bundle) -> None:
    info = served_info(bundle)
    assert (info.decodes, info.languages, info.translates, info.has_word_times) == (True, ("en", "de"), True, True)
    assert (info.has_prompt, info.finds_language) == (False, False)


@pytest.mark.slow
def test_texts_of_a_server_are_those_in_process_and_of_upstream(flash: Bundle, projected: Any, tmp_path: Path) -> None:
    build_repository([flash.path], tmp_path / "repository", names=["canary"], options=ModelOptions(threads=1))
    asked = {"punctuation": False}
    with TritonServer(tmp_path / "repository", quiet_options()) as running, Client(running.grpc_address) as client:
        found = client.transcribe(WAVEFORMS, model="canary")
        assert [each.text for each in found] == texts_of(projected, flash)
        other = client.transcribe(WAVEFORMS, model="canary", search=asked)
    unwritten = tritone.load(flash.path).transcribe(WAVEFORMS, options=asked)  # type: ignore[attr-defined]
    assert [each.text for each in other] == [each.text for each in unwritten]


def test_an_archive_with_another_prompt_is_refused(upstream: Any, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="prompt_format is 'gemma'; those that can be exported are canary2, canary"):
        export_nemo(archive=write_archive(tmp_path / "m.nemo", upstream, prompt_format="gemma"), output=tmp_path / "b")


def test_the_first_prompt_says_whether_a_text_is_a_translation(projected: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "first.nemo", projected, prompt_format="canary")
    bundle = export_nemo(archive=archive, output=tmp_path / "b").bundle
    special = special_of(bundle)
    assert (sorted(special.languages), special.word_times) == (["de", "en"], None)
    asked = [("en", "en", True), ("en", "de", True), ("de", "de", False), ("de", "en", True)]
    pairs = [(waveform, each) for waveform in WAVEFORMS for each in asked]
    options = [DecodingOptions(language=own, target_language=other, punctuation=on) for _, (own, other, on) in pairs]
    found = AttendedPipeline(bundle).transcribe([waveform for waveform, _ in pairs], options)
    expected = [
        generated(projected, waveform, first_prompt(own, other, punctuation=on), max_length=CONTEXT)
        for waveform, (own, other, on) in pairs
    ]
    assert [[token for segment in each.segments for token in segment.tokens] for each in found] == expected
    assert len({tuple(each) for each in expected}) > 4


def test_words_stand_between_their_times(bundle: Bundle) -> None:
    special, silent = special_of(bundle), frozenset(special_of(bundle).silent)
    written = ["<|3|>", "▁the", "<|7|>", "<|7|>", "▁in", "s", "<|9|>", "<|pnc|>", "<|12|>", "▁a"]
    words = timed_words([IDS[each] for each in written], special, silent, bundle.vocabulary, 10.0)
    assert [(each.text, round(each.start_s, 2), round(each.end_s, 2)) for each in words] == [
        ("the", 10.24, 10.56),
        ("ins", 10.56, 10.72),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"language": "aa"}, "this model knows en, de"),
        ({"target_language": "fr"}, "target_language is 'fr'"),
        ({"task": "translate", "target_language": "de"}, "translate is into English"),
        ({"previous_text": False}, "previous_text is for Whisper models"),
    ],
)
def test_what_the_model_does_not_have_is_an_error(bundle: Bundle, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        tritone.load(bundle.path).transcribe([WAVEFORMS[0]], options=options)  # type: ignore[attr-defined]


def test_a_tokenizer_without_the_prompts_tokens_is_refused_and_one_without_times_has_no_words() -> None:
    with pytest.raises(ExportError, match=r"has no <\|startofcontext\|>"):
        prompt_of([each for each in PIECES if each != "<|startofcontext|>"], "t", has_times=True)
    found = prompt_of(PIECES, "t", has_times=False, languages=("multilingual",))
    assert (sorted(found["languages"]), found["language"]) == (["aa", "de", "en"], "en")
    found = prompt_of(PIECES, "t", has_times=False, languages=("en",), usual="de")
    assert (sorted(found["languages"]), found["language"]) == (["de", "en"], "de")
    found = prompt_of(PIECES, "t", has_times=False)
    assert (found["word_times"], found["prompt"][7]) == (None, IDS["<|notimestamp|>"])
