"""A checkpoint of each toolkit, as it lies in its folder, becomes a bundle by its name alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sherpa_toys
from exports import let_go
from families import (
    funasr_models,
    hf_models,
    icefall_models,
    jasper_models,
    nemo_models,
    parakeet_models,
    wespeaker_models,
    whisper_models,
)
from families.conftest import write_model
from families.speakers import test_pyannote, test_resemblyzer, test_speechbrain
from tritone.bundle import Bundle
from tritone.families.icefall.model import IcefallConfig
from tritone.prepare import cached, prepare

pytestmark = pytest.mark.slow


def icefall(folder: Path) -> Path:
    config = IcefallConfig(encoder=icefall_models.CONFORMER, predictor=icefall_models.PREDICTOR)
    return icefall_models.write_files(folder, config).checkpoint.parent


def within(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Of a function that writes one file into a folder that is there, one that makes the folder."""

    def written(folder: Path) -> Path:
        folder.mkdir()
        return write(folder).parent

    return written


def sherpa(folder: Path) -> Path:
    folder.mkdir()
    sherpa_toys.transducer(folder)
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "wenet": write_model,
    "icefall": icefall,
    "nemo": lambda folder: nemo_models.write_archive(
        folder.with_suffix(".nemo"), nemo_models.hybrid_tdt(), {"./t.model": nemo_models.pieces_model()}
    ),
    "jasper": lambda folder: jasper_models.write_model(folder, jasper_models.small_config())[0].parent,
    "wespeaker": lambda folder: (
        wespeaker_models.write_model(folder, wespeaker_models.small_content("resnet"))[0].parent
    ),
    "wespeaker, of pyannote.audio": within(test_pyannote.saved),
    "resemblyzer": within(test_resemblyzer.saved),
    "speechbrain": test_speechbrain.written,
    "hf": hf_models.write,
    "hf, of features that are normalised by the loudest": lambda folder: hf_models.save(
        folder, hf_models.random_model("granite_speech5_ctc")
    ),
    "nemo, of transformers": lambda folder: parakeet_models.save(
        folder, "parakeet_tdt", parakeet_models.random_model("parakeet_tdt")
    ),
    "funasr": funasr_models.write_sense_voice,
    "whisper": lambda folder: whisper_models.write_openai(folder, whisper_models.random_model())[0].parent,
    "sherpa-onnx": sherpa,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    yield
    let_go()


@pytest.mark.parametrize("family", MAKERS)
def test_a_checkpoint_of_each_toolkit_is_prepared_once(family: str, tmp_path: Path) -> None:
    what = MAKERS[family](tmp_path / "theirs")
    said: list[str] = []
    found = prepare(what, notify=said.append)
    manifest = Bundle.open(found.path).manifest
    assert manifest.name == found.name == "theirs"
    assert f"tritone export {family.partition(',')[0]} " in cached()[0].about["command"]
    assert prepare(what).path == found.path
    assert len(cached()) == 1
