"""Hotwords of a SeACo-Paraformer: upstream's tokens with each list of phrases, in any company; limits and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families import funasr_models
from families.funasr import upstream
from serving import quiet_options
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.errors import BundleError, ExportError, InputError, TritoneError
from tritone.families.funasr.config import parse_config
from tritone.families.funasr.export import export_funasr
from tritone.pipelines.kind import kind_of
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.searching import paraformer as searching
from tritone.pipelines.searching.phrases import Phrases
from tritone.repository import ModelOptions, build_repository
from tritone.search.options import SearchOptions
from tritone.server import TritonServer
from tritone.transcript import Transcript

GOLDEN = np.load(upstream.PATH)
SIGNALS = upstream.signals()
SILENT = (0, 1, 2)
INDICES = [index for index in range(len(SIGNALS)) if f"hotwords_0_{index}" in GOLDEN]


LISTS = [*upstream.PHRASES, upstream.MANY]


def asking(number: int | None) -> SearchOptions:
    """The options of a request with a list of upstream's phrases, or with none."""
    phrases = [] if number is None else LISTS[number]
    return SearchOptions(mode="contextual", hotwords=tuple((phrase, 1.0) for phrase in phrases))


def assert_upstreams(found: Transcript, number: int, index: int) -> list[str]:
    ids, log_probs = GOLDEN[f"hotwords_{number}_{index}"]
    return assert_best(found, ids.astype(int), log_probs)


def assert_best(found: Transcript, ids: Any, log_probs: Any) -> list[str]:
    """Tokens and confidences are those of ids and log-probabilities, but for marks."""
    kept = ~np.isin(ids, SILENT)
    texts = [token.text for token in found.tokens]
    assert texts == [upstream.TOKENS[id] for id in ids[kept]]
    np.testing.assert_allclose([token.confidence for token in found.tokens], np.exp(log_probs)[kept], atol=1e-4)
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return funasr_models.write_seaco(tmp_path_factory.mktemp("funasr") / "seaco", words=upstream.split_words())


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    report = export_funasr(folder=folder, output=tmp_path_factory.mktemp("bundles") / "small")
    assert not any("whole tokens" in note for note in report.notes)
    return report.bundle


def test_rows_with_other_hotwords_have_upstreams_tokens_in_one_batch(bundle: Bundle) -> None:
    pipeline = OfflinePipeline(bundle)
    asked = [(index, number) for index in INDICES for number in (2, None, 0, 1)]
    plain = dict(zip(INDICES, pipeline.recognize([SIGNALS[index] for index in INDICES]), strict=True))
    together = pipeline.recognize([SIGNALS[index] for index, _ in asked], [asking(number) for _, number in asked])
    texts: dict[int, list[tuple[str, ...]]] = {}
    for (index, number), found in zip(asked, together, strict=True):
        [alone] = pipeline.recognize([SIGNALS[index]], [asking(number)])
        for each in (found, alone):
            if number is None:
                assert each.text == plain[index].text
                texts.setdefault(index, []).append(tuple(token.text for token in each.tokens))
            else:
                texts.setdefault(index, []).append(tuple(assert_upstreams(each, number, index)))
    assert sum(len(set(each)) > 2 for each in texts.values()) > 2  # hotwords matter, and which they are


def deep_content() -> dict[str, Any]:
    content = funasr_models.seaco_content() | {"predictor": "CifPredictorV2", "predictor_conf": upstream.PREDICTOR}
    return content | {"seaco_decoder_conf": upstream.DEEP_HOTWORDS}


@pytest.mark.parametrize("name", ["seaco", "contextual", "published"])
def test_networks_that_take_long_lists_write_upstreams_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = deep_content() if name == "seaco" else funasr_models.contextual_content()
    if name == "published":
        content["decoder_conf"] = upstream.LIKE_PUBLISHED
    seed = upstream.TOLD_SEEDS[name]
    folder = funasr_models.write_seaco(tmp_path / name, content, upstream.split_words(), seed)
    bundle = export_funasr(folder=folder, output=tmp_path / "b").bundle
    monkeypatch.setattr(searching, "MAX_KNOWN", 60)  # so that some vectors are made again
    monkeypatch.setattr(searching, "PHRASES_OF_A_CALL", 32)
    pipeline = OfflinePipeline(bundle)
    lists: dict[str, list[int | None]] = {"seaco": [3], "contextual": [None, 0, 1, 2, 3], "published": [None, 1]}
    numbers = lists[name]
    asked = [(index, number) for index in INDICES for number in numbers if f"{name}_0_{index}" in GOLDEN]
    together = pipeline.recognize([SIGNALS[index] for index, _ in asked], [asking(number) for _, number in asked])
    for (index, number), found in zip(asked, together, strict=True):
        ids, log_probs = GOLDEN[f"{name}_{numbers.index(number)}_{index}"]
        [alone] = pipeline.recognize([SIGNALS[index]], [asking(number)])
        for each in (found, alone):
            assert_best(each, ids.astype(int), log_probs)
    assert len(asked) > 5


def test_phrases_are_written_with_upstreams_tokens(bundle: Bundle) -> None:
    phrases = Phrases(bundle)
    for number, listed in enumerate(upstream.PHRASES):
        expected = [[id for id in row if id >= 0] for row in GOLDEN[f"phrases_{number}"].tolist()]
        assert [list(each) for each in phrases.ids(asking(number).hotwords)] == expected[: len(listed)]
        assert expected[-1] == [1]  # which stands for no phrase


@pytest.mark.parametrize(
    ("hotwords", "said"),
    [
        ({"一é": 1.0}, "no tokens for 'é'"),
        ({"hello zebra": 1.0}, "no tokens for 'zebra'"),
        ({"一": 0.0}, "not above 0"),
        ({"一": -2.0}, "not above 0"),
        (
            {f"{first}{second}": 1.0 for first in "一丁丂七" for second in upstream.TOKENS[24:37]},
            "at most 49 hotwords, got 5",
        ),
        ({" ".join(["w-2"] * 25): 1.0, " ".join(["w-2"] * 26): 1.0}, "1 to 100 characters"),
    ],
)
def test_hotwords_that_cannot_be_told_are_refused(bundle: Bundle, hotwords: dict[str, float], said: str) -> None:
    pipeline = OfflinePipeline(bundle)
    with pytest.raises(InputError, match=said):
        pipeline.recognize(SIGNALS[:1], [SearchOptions(mode="contextual", hotwords=tuple(hotwords.items()))])


def test_without_the_file_of_words_phrases_have_whole_tokens_alone(tmp_path: Path) -> None:
    folder = funasr_models.write_seaco(tmp_path / "model")
    report = export_funasr(folder=folder, output=tmp_path / "b", check=False)
    assert any("whole tokens" in note for note in report.notes)
    phrases = Phrases(report.bundle)
    assert phrases.ids((("一 is的", 1.0),)) == ((24, 4, 6),)
    with pytest.raises(InputError, match="no tokens for 'hello'"):
        phrases.ids((("hello", 1.0),))


def test_a_damaged_file_of_words_is_named(bundle: Bundle, tmp_path: Path) -> None:
    folder = funasr_models.write_seaco(tmp_path / "model", words="一 一\n")
    copy = export_funasr(folder=folder, output=tmp_path / "b", check=False).bundle
    (copy.path / "seg_dict").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BundleError, match="seg_dict is not UTF-8"):
        Phrases(copy).ids((("一", 1.0),))


def test_a_paraformer_without_the_part_takes_no_hotwords(tmp_path: Path) -> None:
    folder = funasr_models.write_paraformer(tmp_path / "plain")
    bundle = export_funasr(folder=folder, output=tmp_path / "b", check=False).bundle
    assert kind_of(bundle).served(bundle).searches == ("greedy",)
    with pytest.raises(InputError, match="no part that takes hotwords"):
        OfflinePipeline(bundle).recognize(SIGNALS[:1], [asking(0)])


def test_a_manifest_without_the_part_or_its_graph_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    manifest = bundle.manifest
    for changed in (
        manifest.model_copy(update={"parts": ()}),
        *(
            manifest.model_copy(update={"artifacts": tuple(each for each in manifest.artifacts if each.role != role)})
            for role in ("hotword_encoder", "hotword_decoder", "decoder")
        ),
    ):
        assert "hotwords" in str(kind_of(bundle).fault(changed))


@pytest.mark.slow  # a server
def test_a_server_tells_the_model_the_hotwords_of_each_request(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("".join(f"{each} 1\n" for each in upstream.PHRASES[1]), encoding="utf-8")
    options = ModelOptions(search="contextual", hotwords=str(tmp_path / "names.txt"))
    build_repository([bundle.path], tmp_path / "repository", options=options)
    signals = [SIGNALS[index] for index in INDICES]
    plain = [each.text for each in OfflinePipeline(bundle).recognize(signals)]
    with TritonServer(tmp_path / "repository", quiet_options()) as server, Client(server.grpc_address) as client:
        for number, asked in ((1, {}), (0, {"hotwords": {"我的": 5}}), (2, {"hotwords": dict(asking(2).hotwords)})):
            for index, found in zip(INDICES, client.transcribe(signals, details=True, search=asked), strict=True):
                assert_upstreams(found.get(), number, index)
        for other in ({"search": "greedy"}, {"hotwords": {}}):
            assert [each.get().text for each in client.transcribe(signals, search=other)] == plain
        with pytest.raises(TritoneError, match="no tokens for 'zebra'"):
            client.transcribe(signals[0], search={"hotwords": {"zebra": 5}}).get()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bias_encoder_bid": True}, "in one direction"),
        ({"bias_encoder_type": "mean"}, "bias_encoder_type is 'mean'"),
        ({"inner_dim": 16}, "the encoder's output_size, 32"),
    ],
)
def test_settings_that_cannot_be_had_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        parse_config(funasr_models.seaco_content(**changes))


def test_weights_and_tokens_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = funasr_models.write_seaco(tmp_path / "many", funasr_models.seaco_content(NO_BIAS=64))
    with pytest.raises(ExportError, match="NO_BIAS is 64, and there are 64 tokens"):
        export_funasr(folder=folder, output=tmp_path / "b")
    content = funasr_models.seaco_content()
    folder = funasr_models.write_paraformer(tmp_path / "none", content)
    with pytest.raises(ExportError, match="bias_encoder"):
        export_funasr(folder=folder, output=tmp_path / "b")
