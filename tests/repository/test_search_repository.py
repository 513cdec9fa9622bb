"""Building models that search: what is written, what goes along, and what is refused before a server sees it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from toy import CHUNK, write_toy_bundle
from tritone.backend.instance import read_instance
from tritone.backend.settings import SearchParameters, Settings
from tritone.cli.main import app
from tritone.errors import BundleError, InputError, OperatorError
from tritone.repository import BuiltModel, ModelOptions, build_repository
from tritone.repository.config import from_text
from tritone.search.endpoint import EndpointRules

ARPA = """\\data\\
ngram 1=4

\\1-grams:
-1.0 <s>
-1.0 </s>
-1.0 <unk>
-0.5 ab

\\end\\
"""


@pytest.fixture
def lm(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


@pytest.fixture
def hotwords(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("# names\nanna 8\nnew york -2.5\n", encoding="utf-8")
    return path


def settings_of(model: BuiltModel) -> Settings:
    config = from_text((model.path / "config.pbtxt").read_text(encoding="utf-8"))
    return Settings.from_parameters({name: each.string_value for name, each in config.parameters.items()})


def placed(model: BuiltModel) -> Any:
    """What the model's instance is told by Triton, as far as it looks at it."""
    config = from_text((model.path / "config.pbtxt").read_text(encoding="utf-8"))
    parameters = {name: {"string_value": each.string_value} for name, each in config.parameters.items()}
    return read_instance(
        {
            "model_config": json.dumps({"max_batch_size": 8, "parameters": parameters}),
            "model_repository": str(model.path),
            "model_version": "1",
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )


@given(
    search=st.sampled_from(["greedy", "prefix-beam", "rescoring"]),
    beam=st.integers(2, 128),
    nbest=st.integers(1, 2),
    ctc_weight=st.none() | st.floats(-100, 100),
    reverse_weight=st.none() | st.floats(0, 1),
    lm_weight=st.none() | st.floats(-100, 100),
    word_bonus=st.floats(-100, 100),
    timestamps=st.booleans(),
    chunk_size=st.none() | st.integers(1, 99),
    left_chunks=st.none() | st.integers(-1, 99),
    endpoint_silence_s=st.none() | st.floats(0.01, 99) | st.just(float("inf")),
)
def test_settings_of_the_search_survive_the_way_through_the_config(**values: Any) -> None:
    settings = Settings(sample_rate=16000, **values)
    assert Settings.from_parameters(settings.to_parameters()) == settings


def test_without_options_models_search_greedily_and_streams_are_whole(toy_bundle: Path, tmp_path: Path) -> None:
    for model in build_repository([toy_bundle], tmp_path / "repo"):
        settings = settings_of(model)
        assert {name: getattr(settings, name) for name in SearchParameters.__dataclass_fields__} == vars(
            SearchParameters()
        )
        assert (settings.endpoint_rules(), settings.chunking()) == (None, {})


def test_the_files_of_the_search_go_along_and_the_server_finds_them(
    toy_bundle: Path, tmp_path: Path, lm: Path, hotwords: Path
) -> None:
    options = ModelOptions(search="prefix-beam", lm=str(lm), hotwords=str(hotwords), lm_weight=0.3, beam=7)
    models = build_repository([toy_bundle], tmp_path / "repo", options=options)
    lm.unlink()
    hotwords.unlink()
    (tmp_path / "repo").rename(tmp_path / "moved")
    for model in models:
        found = placed(BuiltModel(model.name, model.mode, tmp_path / "moved" / model.name)).search
        assert found.lm.read_text(encoding="utf-8") == ARPA
        assert found.options.hotwords == (("anna", 8.0), ("new york", -2.5))
        assert (found.options.mode, found.options.beam, found.options.lm_weight) == ("prefix-beam", 7, 0.3)


def test_linked_files_stay_where_they_are(toy_bundle: Path, tmp_path: Path, lm: Path) -> None:
    options = ModelOptions(search="prefix-beam", lm=str(lm))
    model, _ = build_repository([toy_bundle], tmp_path / "repo", options=options, link=True)
    assert (model.path / "1" / settings_of(model).lm).resolve() == lm


BAD_FILES = {
    "no language model": ({"lm": "nowhere.arpa"}, "there is no language model .*nowhere.arpa"),
    "no hotwords": ({"hotwords": "nowhere.yaml"}, "there is no hotwords file .*nowhere.yaml"),
    "a language model that is none": ({"lm": "bad.arpa"}, "bad.arpa"),
    "hotwords without a weight": ({"hotwords": "bad.txt"}, "bad.txt, line 2"),
    "hotwords that the vocabulary cannot spell": ({"hotwords": "foreign.txt"}, "Ä"),
    "equal names": ({"lm": "words.arpa", "hotwords": "sub/words.arpa"}, "both called words.arpa"),
}


@pytest.mark.parametrize(("files", "told"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_files_that_cannot_be_used_are_told_when_the_repository_is_built(
    toy_bundle: Path, tmp_path: Path, lm: Path, files: dict[str, str], told: str
) -> None:
    (tmp_path / "bad.arpa").write_text("\\data\\\nngram 1=5\n", encoding="utf-8")
    (tmp_path / "bad.txt").write_text("fine 3\nanna\n", encoding="utf-8")
    (tmp_path / "foreign.txt").write_text("Änne 3\n", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "words.arpa").write_text("anna 3\n", encoding="utf-8")
    options = ModelOptions(search="prefix-beam", **{name: str(tmp_path / file) for name, file in files.items()})
    with pytest.raises((OperatorError, InputError), match=told):
        build_repository([toy_bundle], tmp_path / "repo", options=options)
    assert not (tmp_path / "repo").exists()


def test_rescoring_without_a_decoder_is_refused_with_the_way_out(
    toy_bundle: Path, decoding_bundle: Path, tmp_path: Path
) -> None:
    options = ModelOptions(search="rescoring")
    with pytest.raises(BundleError, match=r"--search rescoring.*no attention decoder.*Use greedy.*export.*again"):
        build_repository([toy_bundle], tmp_path / "repo", options=options)
    assert len(build_repository([decoding_bundle], tmp_path / "repo", options=options)) == 2


def test_rescoring_needs_a_decoder_for_the_runtime_that_is_asked_for(tmp_path: Path) -> None:
    path = write_toy_bundle(tmp_path / "both", streaming=False, runtimes=("onnxruntime", "torch"), decoder=True)
    options = {"search": "rescoring", "device": "cpu"}
    with pytest.raises(BundleError, match=r"no graph for decoder \(torch\)"):
        build_repository([path], tmp_path / "repo", options=ModelOptions(runtime="torch", **options))
    assert build_repository([path], tmp_path / "repo", options=ModelOptions(runtime="onnxruntime", **options))


@pytest.mark.parametrize("name", ["lm_weight", "word_bonus"])
def test_weights_of_a_language_model_that_is_not_there_are_refused(toy_bundle: Path, tmp_path: Path, name: str) -> None:
    options = ModelOptions(search="prefix-beam", **{name: 0.5})
    told = f"--{name.replace('_', '-')} is for .* language model.* give one with --lm"
    with pytest.raises(OperatorError, match=told):
        build_repository([toy_bundle], tmp_path / "repo", options=options)
    assert build_repository([toy_bundle], tmp_path / "repo", options=ModelOptions(lm_weight=0.0))


def test_sizes_that_a_bundle_was_not_exported_for_are_refused(toy_bundle: Path, tmp_path: Path) -> None:
    own = ModelOptions(chunk_size=CHUNK, left_chunks=1)
    assert len(build_repository([toy_bundle], tmp_path / "repo", options=own)) == 2
    for other in (ModelOptions(chunk_size=CHUNK + 1), ModelOptions(left_chunks=-1)):
        with pytest.raises(BundleError, match=f"exported for chunk_size {CHUNK} and left_chunks 1 alone"):
            build_repository([toy_bundle], tmp_path / "repo", options=other)
        assert len(build_repository([toy_bundle], tmp_path / "repo", modes="offline", options=other)) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"search": "best"}, "search must be one of greedy, prefix-beam, rescoring"),
        ({"beam": -1}, "beam must be 1 to 128"),
        ({"nbest": 11}, "nbest must be 1 to 10"),
        ({"lm_weight": float("nan")}, "lm_weight must be a number"),
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"left_chunks": -2}, "left_chunks must be 0 or more, or -1"),
        ({"endpoint_silence_s": 0.0}, "silence_s must be a number of seconds above 0"),
    ],
)
def test_options_of_the_search_that_make_no_sense_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ModelOptions(**options)


def test_one_endpoint_option_switches_endpoints_on_with_the_usual_values_for_the_others() -> None:
    rules = ModelOptions(endpoint_silence_after_speech_s=0.5, endpoint_silence_s=float("inf")).endpoint_rules()
    usual = EndpointRules()
    assert rules == EndpointRules(silence_s=float("inf"), silence_after_speech_s=0.5, max_segment_s=usual.max_segment_s)


def test_the_command_writes_the_search_and_endpoints_only_into_streaming_models(
    decoding_bundle: Path, tmp_path: Path, hotwords: Path
) -> None:
    words = ["--search", "rescoring", "--beam", "5", "--nbest", "2", "--ctc-weight", "0.3", "--reverse-weight", "0.4"]
    words += ["--hotwords-file", str(hotwords), "--no-timestamps", "--endpoint-max-segment-s", "15"]
    result = CliRunner().invoke(app, ["build", str(decoding_bundle), "--output", str(tmp_path / "repo"), *words])
    assert result.exit_code == 0, result.output
    offline, streaming = (
        settings_of(BuiltModel(name, "offline", tmp_path / "repo" / name)) for name in ("toy", "toy-streaming")
    )
    for each in (offline, streaming):
        assert (each.search, each.beam, each.nbest, each.ctc_weight, each.reverse_weight) == (
            "rescoring",
            5,
            2,
            0.3,
            0.4,
        )
        assert (each.hotwords, each.timestamps) == ("search/names.txt", False)
    assert (offline.endpoint_max_segment_s, streaming.endpoint_max_segment_s) == (None, 15)


def test_files_that_greedy_search_does_not_look_at_are_told(toy_bundle: Path, tmp_path: Path, hotwords: Path) -> None:
    words = ["build", str(toy_bundle), "--output", str(tmp_path / "repo"), "--hotwords-file", str(hotwords)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "note: greedy search does not look at --hotwords-file" in result.stderr
