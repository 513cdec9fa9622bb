"""What earlier versions wrote is served and opened by this one, and says what it said then.

See the README of each folder beside this file.
"""

import ast
import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton

import tritone
from earlier import FOLDER, archive, unpack
from serving import TIMEOUT_S, Ask, RawClient, backend_module, quiet_options
from tritone.bundle import Bundle
from tritone.pipelines.generic.model import GenericModel
from tritone.pipelines.searching.readings import MAX_LINGER_S
from tritone.repository import build_repository, read_repository
from tritone.server import TritonServer

MODES = {
    "joined": "offline",
    "joined-streaming": "streaming",
    "letters": "offline",
    "letters-streaming": "streaming",
    "speaker": "embedding",
    "staged": "offline",
    "staged-acoustic": "acoustic",
    "staged-decoder": "decoder",
    "staged-features": "features",
}
OTHERS = dict.fromkeys(
    ("mean-length", "mean-length-pool", "mean-length-scale", "mean-length-tokenizer", "scaled", "sums"), "generic"
)
"""Those of any kind, which later commits have."""
VERSIONS = {"v0_1_0": MODES, "commit_7550cee": MODES | OTHERS}
# Fourteen models are as many processes, which take their time to start.
EACH = ["v0_1_0", pytest.param("commit_7550cee", marks=pytest.mark.slow)]
SCALED, SUMMED, TEXT = [1.0, 2.5, -3.0], [[1.0, 2.0], [10.0, 20.0], [0.5, -0.5]], "a whole sentence"
CHUNK = 1000  # samples that a stream gets at once
BOTH = ("TRANSCRIPTS", "DETAILS")
# Numbers in details have four digits after the point, and the last one may fall to either side.
DETAILS_TOLERANCE = 2e-4
# A mean of about 10,000 values up to 1, added up as float32 in any order: rounding wanders by half of 1e-7 times the
# root of their number.
EMBEDDING_TOLERANCE = 1e-5
IDS = count(1)


def waveform(*, asks: bool = False) -> npt.NDArray[np.float32]:
    """Audio that the toy models hear letters in, at 16 kHz, (23200,); `asks`: a transducer is to guess some of them."""
    frames, frame = 36, 640
    places = np.arange(frames)
    tokens = 3 + 7 * places % 26  # letters
    tokens[[4, 8, 33]] = 2  # spaces
    if asks:
        tokens[::5] = 39  # what a transducer is to guess
        tokens[12] = 1  # doubt
    tokens[16:28] = 0  # a pause of 0.48 s
    levels = np.cumsum(tokens) % 40 / 64
    samples = np.arange(frames * frame + 160)
    tone = np.sin(np.pi * samples / 80) / 256  # whole periods in a frame: no model hears it but the speaker's
    return (levels[np.minimum(samples // frame, frames - 1)] + tone).astype(np.float32)


def models_with(name: str) -> list[Any]:
    """The version and the model of each file of this name, as parameters of a test."""
    found = []
    for version in VERSIONS:
        with archive(version) as packed:
            found += [(version, path.split("/")[1]) for path in packed.getnames() if path.endswith(f"/1/{name}")]
    return [pytest.param(*each, id="-".join(each)) for each in found]


def audio_for(model: str) -> npt.NDArray[np.float32]:
    return waveform(asks=model.startswith("joined"))


def check(found: Any, recorded: Any, place: str = "") -> None:
    """Texts are what they were, and numbers nearly; a later version may tell more than was told then."""
    if isinstance(recorded, dict):
        assert recorded.keys() <= found.keys(), place
        for name, value in recorded.items():
            check(found[name], value, f"{place}.{name}")
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), place
        for index, value in enumerate(recorded):
            check(found[index], value, f"{place}[{index}]")
    elif place.endswith(".end_s"):  # in 0.1.0 the end of the frames in which the search found a token
        assert recorded - DETAILS_TOLERANCE <= found <= recorded + MAX_LINGER_S + DETAILS_TOLERANCE, place
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=0, abs=DETAILS_TOLERANCE), place
    else:
        assert found == recorded, place


@pytest.fixture(scope="module", params=EACH)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository of each version, as it was written."""
    path = tmp_path_factory.mktemp("versions")
    for version in VERSIONS:
        unpack(version, path / version)
    return path


def bundle_of(written: Path, version: str, model: str) -> Path:
    return written / version / "repository" / model / "1" / "bundle"


def recorded(version: str) -> Any:
    """What its models answered then."""
    return json.loads((FOLDER / version / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def served(version: str) -> Any:
    return recorded(version)["served"]


@pytest.fixture(scope="module")
def repository(version: str, written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to be served; Triton writes into it."""
    path = tmp_path_factory.mktemp("version") / "repository"
    return shutil.copytree(written / version / "repository", path)


@pytest.fixture(scope="module")
def server(repository: Path, searches_compiled: None) -> Iterator[TritonServer]:
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def raw(server: TritonServer) -> RawClient:
    return RawClient(server.grpc_address)


def test_all_that_was_recorded_is_asked_for(written: Path) -> None:
    for version, modes in VERSIONS.items():
        stages = {name for name in modes if name.partition("-")[0] in ("mean", "staged")} - {"mean-length", "staged"}
        assert recorded(version)["served"].keys() == modes.keys() - stages
        assert {path.name for path in (written / version / "repository").iterdir()} == modes.keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_its_models_are_known_with_their_modes(written: Path, version: str) -> None:
    assert {model.name: model.mode for model in read_repository(written / version / "repository")} == VERSIONS[version]


@pytest.mark.parametrize(("version", "model"), models_with("model.py"))
def test_a_shim_imports_only_what_there_is(written: Path, version: str, model: str) -> None:
    shim = written / version / "repository" / model / "1" / "model.py"
    _, statement = ast.parse(shim.read_text(encoding="utf-8")).body  # the first is its docstring
    assert isinstance(statement, ast.ImportFrom)
    package, _, module = str(statement.module).rpartition(".")
    assert package == "tritone.backend"
    with backend_module(module) as imported:
        assert all(hasattr(imported, alias.name) for alias in statement.names)


@pytest.mark.parametrize("model", ["joined", "letters", "staged"])
def test_whole_utterances_are_heard_as_they_were(raw: RawClient, served: Any, model: str) -> None:
    answer = raw.ask(Ask(model=model, wav=audio_for(model), outputs=BOTH))
    assert isinstance(answer, tuple), answer
    check({"text": answer[0], "details": json.loads(answer[1])}, served[model])


@pytest.mark.parametrize("model", ["joined-streaming", "letters-streaming"])
def test_streams_are_heard_as_they_were(raw: RawClient, served: Any, model: str) -> None:
    audio, stream, text = audio_for(model), next(IDS), ""
    segments: list[Any] = []
    for start in range(0, len(audio), CHUNK):
        first, last = start == 0, start + CHUNK >= len(audio)
        part = audio[start : start + CHUNK]
        answer = raw.ask(Ask(model=model, wav=part, stream=stream, start=first, end=last, outputs=BOTH))
        assert isinstance(answer, tuple), answer
        text, told = answer[0], json.loads(answer[1])
        segments += told.pop("ended", [])
        segments += [told] if last else []
    check({"text": text, "segments": segments}, served[model])


def test_a_voice_is_what_it_was_and_lengths_need_not_be_sent(raw: RawClient, served: Any) -> None:
    audio = waveform()
    wav = triton.InferInput("WAV", [1, len(audio)], "FP32")
    wav.set_data_from_numpy(audio[None])
    found = raw.grpc.infer("speaker", [wav], client_timeout=TIMEOUT_S).as_numpy("EMBEDDINGS")
    np.testing.assert_allclose(found, [served["speaker"]["embedding"]], rtol=0, atol=EMBEDDING_TOLERANCE)


def test_our_client_sees_and_reads_all_models_that_clients_ask(server: TritonServer, served: Any) -> None:
    with tritone.Client(server.grpc_address) as client:
        heard = served.keys() & MODES.keys()
        assert {each.name: each.kind for each in client.models() if each.name in heard} == {
            name: MODES[name] for name in heard
        }
        for name in ("joined", "letters", "staged"):
            (heard,) = client.transcribe([audio_for(name)], model=name, sample_rate=16000)
            assert heard.text == served[name]["text"]
        for name in ("joined-streaming", "letters-streaming"):
            with client.stream(model=name, sample_rate=16000) as stream:
                stream.accept(audio_for(name))
                assert stream.finish().text == served[name]["text"]
        (voice,) = client.embed([waveform()], model="speaker", sample_rate=16000)
        expected = served["speaker"]["embedding"]
        np.testing.assert_allclose(voice.embedding, expected, rtol=0, atol=EMBEDDING_TOLERANCE)


@pytest.mark.parametrize(("version", "model"), models_with("bundle/manifest.json"))
def test_a_bundle_opens_and_its_files_are_whole(written: Path, version: str, model: str) -> None:
    Bundle.open(bundle_of(written, version, model)).verify()


# Fused models have all of their bundle, whichever part of it they run.
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", ["joined", "joined-streaming", "letters", "letters-streaming"])
def test_a_bundle_hears_in_process_as_it_did(written: Path, version: str, model: str) -> None:
    expected = recorded(version)["in_process"][model.removesuffix("-streaming")]
    audio = audio_for(model)
    recognizer = tritone.load(bundle_of(written, version, model), threads=1)
    (heard,) = recognizer.transcribe([audio])
    check(heard.to_dict(), expected["offline"])
    with recognizer.stream() as stream:
        for start in range(0, len(audio), CHUNK):
            stream.accept(audio[start : start + CHUNK])
        check(stream.finish().to_dict(), expected["streaming"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_speaker_bundle_embeds_in_process_as_it_did(written: Path, version: str) -> None:
    embedder = tritone.load(bundle_of(written, version, "speaker"), threads=1)
    expected = recorded(version)["in_process"]["speaker"]["embedding"]
    np.testing.assert_allclose(embedder.embed([waveform()]), [expected], rtol=0, atol=EMBEDDING_TOLERANCE)


def test_bundles_of_any_kind_compute_in_process_as_they_did(written: Path) -> None:
    expected = recorded("commit_7550cee")["in_process"]
    scaled, sums = (tritone.load(bundle_of(written, "commit_7550cee", name)) for name in ("scaled", "sums"))
    assert isinstance(scaled, GenericModel)
    assert isinstance(sums, GenericModel)
    assert scaled.infer({"x": [SCALED]})["y"].tolist() == [expected["scaled"]]
    answers = sums.sequence([{"x": np.array([each], np.float32)} for each in SUMMED])
    assert [each["sum"][0].tolist() for each in answers] == expected["sums"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["commit_7550cee"], indirect=True)
def test_models_of_any_kind_answer_as_they_did(server: TritonServer, served: Any) -> None:
    with tritone.Client(server.grpc_address) as client:
        (scaled,) = client.infer([{"x": np.array(SCALED, np.float32)}], "scaled")
        (mean,) = client.infer([{"TEXT": np.array([TEXT], object)}], "mean-length")
        sums = list(client.infer_sequence([{"x": np.array(each, np.float32)} for each in SUMMED], "sums"))
    assert scaled.get()["y"].tolist() == served["scaled"]
    assert {name: values.ravel().tolist() for name, values in mean.get().items()} == served["mean-length"]
    assert [each["sum"].tolist() for each in sums] == served["sums"]


@pytest.mark.parametrize("version", VERSIONS)
def test_models_are_built_anew_over_the_old_ones_without_force(written: Path, version: str, tmp_path: Path) -> None:
    """Also of the old bundles, and stages that nobody asks for any more go."""
    path = tmp_path / "repository"
    shutil.copytree(written / version / "repository", path)
    bundle = bundle_of(written, version, "letters")
    for name in ("letters", "staged"):
        build_repository([bundle], path, names=[name], modes="offline")
    left = {name: mode for name, mode in VERSIONS[version].items() if not name.startswith("staged-")}
    assert {model.name: model.mode for model in read_repository(path)} == left
