"""Models in this process and clients of a server: the same verbs."""

import inspect
from pathlib import Path

import pytest

import tritone

VERBS = {
    tritone.Recognizer: ("transcribe", "transcribe_iter", "stream"),
    tritone.Transcriber: ("transcribe", "transcribe_iter"),
    tritone.Embedder: ("embed", "embed_iter"),
    tritone.Detector: ("detect", "detect_iter", "detect_stream"),
    tritone.GenericModel: ("infer", "infer_iter", "infer_stream", "infer_sequence"),
    tritone.Ensemble: ("infer", "infer_iter", "infer_stream"),
}


@pytest.mark.parametrize("model", VERBS)
def test_a_model_in_process_has_the_verbs_of_a_client_and_those_of_every_model(model: type[tritone.Model]) -> None:
    assert issubclass(model, tritone.Model)
    for verb in VERBS[model]:
        assert callable(getattr(model, verb))
        assert callable(getattr(tritone.Client, verb))
    for verb in ("run", "run_iter", "stream"):
        assert inspect.isfunction(getattr(model, verb))


@pytest.mark.parametrize("name", ["load_embedder", "load_detector", "load_model", "load_whisper"])
def test_the_loaders_of_single_kinds_warn_and_refuse_other_kinds_as_they_did(name: str) -> None:
    other = "demo-speaker" if name != "load_embedder" else "demo-asr"
    with (
        pytest.warns(DeprecationWarning, match=rf"tritone\.{name} goes with 0\.3: use tritone\.load"),
        pytest.raises(tritone.errors.BundleError, match=r"tritone\.load"),
    ):
        getattr(tritone, name)(other)


def test_a_loader_of_a_single_kind_loads_it() -> None:
    with pytest.warns(DeprecationWarning, match="load_embedder") as warned:
        embedder = tritone.load_embedder("demo-speaker", threads=1, window_s=2.0)
    assert warned[0].filename == __file__
    assert isinstance(embedder, tritone.Embedder)
    assert embedder.offline.options == tritone.EmbedOptions(window_s=2.0)


def test_an_option_that_the_kind_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(tritone.errors.InputError, match=r"is of kind embedding, which has no beam; .*window_s"):
        tritone.load("demo-speaker", beam=4)
    with pytest.raises(tritone.errors.BundleError, match=r"is a speaker model: .*tritone\.load"):
        tritone.load_as(tritone.Recognizer, "demo-speaker")


def test_the_file_of_an_ensemble_becomes_no_model_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("steps: {}", encoding="utf-8")
    with pytest.raises(tritone.errors.InputError, match="is the file of an ensemble, and Embedder is not"):
        tritone.load_as(tritone.Embedder, tmp_path / "spec.yaml")
    with pytest.warns(DeprecationWarning, match="load_ensemble") as warned, pytest.raises(tritone.errors.InputError):
        tritone.load_ensemble(tmp_path / "spec.yaml")
    assert warned[0].filename == __file__
