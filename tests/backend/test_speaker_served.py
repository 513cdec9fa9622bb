"""Speaker models behind a real Triton, in one piece and in stages, and what is built of a bundle."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype
from typer.testing import CliRunner

from serving import TIMEOUT_S, RawClient, metrics_of
from toy_speaker import DIM, MIN_SAMPLES, SAMPLE_RATE, toy_embedding, toy_voice, write_toy_speaker
from tritone.cli.main import app
from tritone.errors import BundleError
from tritone.repository import (
    EnsembleOptions,
    ModelOptions,
    build_repository,
    compiled_searches,
    parse_stages,
    read_repository,
    runtimes_of,
    shared_memory_bytes,
)
from tritone.repository.config import from_text
from tritone.server import TritonServer

EXACT = 1e-5
BOTH = pytest.mark.parametrize("model", ["speaker", "speaker-staged"])
Array = np.ndarray


def embed(raw: RawClient, model: str, wav: Array, lens: Any = None, parameters: Mapping[str, Any] | None = None) -> Any:
    """The answer of one request, or its error; `lens` None sends none."""
    wav = np.atleast_2d(wav)
    inputs = [
        triton.InferInput(*(("PCM", wav.shape, "INT16") if wav.dtype == np.int16 else ("WAV", wav.shape, "FP32")))
    ]
    inputs[0].set_data_from_numpy(wav)
    if lens is not None:
        counts = np.array(lens, np.int32).reshape(len(wav), 1)
        inputs.append(triton.InferInput("WAV_LENS", counts.shape, "INT32"))
        inputs[1].set_data_from_numpy(counts)
    try:
        result = raw.grpc.infer(model, inputs, parameters=dict(parameters or {}), client_timeout=TIMEOUT_S)
    except triton.InferenceServerException as error:
        return error
    return result.as_numpy("EMBEDDINGS")


def together(raw: RawClient, model: str, asks: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Answers to requests that are sent at once."""
    answers: list[Any] = [None] * len(asks)

    def ask(place: int) -> None:
        answers[place] = embed(raw, model, **asks[place])

    threads = [threading.Thread(target=ask, args=[place]) for place in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S + 5)
    return answers


def voices(count: int = 8) -> list[Array]:
    return [toy_voice([number + 1, 2, 1, 1], 900 + 777 * number, number) for number in range(count)]


def check(answers: Sequence[Any], waves: Sequence[Array]) -> None:
    assert [getattr(answer, "shape", answer) for answer in answers] == [(1, DIM)] * len(waves)
    np.testing.assert_allclose([answer[0] for answer in answers], [toy_embedding(w) for w in waves], atol=EXACT)


@BOTH
@pytest.mark.parametrize("told", ["all", "none", "some"], ids="lengths told by {}".format)
def test_requests_of_any_lengths_get_their_own_embeddings(raw: RawClient, model: str, told: str) -> None:
    waves = voices()
    says = {"all": [True] * 8, "none": [False] * 8, "some": [False, True] * 4}[told]
    asks = [{"wav": wave, "lens": len(wave) if each else None} for wave, each in zip(waves, says, strict=True)]
    check(together(raw, model, asks), waves)


@BOTH
def test_16_bit_audio_has_exactly_the_embedding_of_the_floats_that_it_stands_for(raw: RawClient, model: str) -> None:
    numbers = [(wave * 32767).astype(np.int16) for wave in voices()]
    wide = [(each / 32768).astype(np.float32) for each in numbers]
    found, expected = (together(raw, model, [{"wav": wave} for wave in waves]) for waves in (numbers, wide))
    np.testing.assert_array_equal(found, expected)
    check(found, wide)


def test_requests_of_different_lengths_share_a_batch(raw: RawClient) -> None:
    """With lengths and without; requests that do not agree in this are Triton's to part, and not looked at here."""
    waves = voices()
    for lens in (True, False):
        before = raw.batches("speaker")
        for _ in range(10):
            check(together(raw, "speaker", [{"wav": w, "lens": len(w) if lens else None} for w in waves]), waves)
            if 8 in raw.batches("speaker") - before:
                break
        else:
            pytest.fail("eight requests at once never shared a batch")


@BOTH
def test_padding_is_cut_off_and_rows_have_an_embedding_each(raw: RawClient, model: str) -> None:
    waves = voices(3)
    block = np.full((3, max(map(len, waves))), 7 / 8, np.float32)
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = wave
    answer = embed(raw, model, block, [len(wave) for wave in waves])
    assert answer.shape == (3, DIM)
    np.testing.assert_allclose(answer, [toy_embedding(wave) for wave in waves], atol=EXACT)
    np.testing.assert_allclose(embed(raw, model, block), [toy_embedding(row) for row in block], atol=EXACT)


@BOTH
@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"wav": np.zeros(MIN_SAMPLES - 1, np.float32)}, "needs at least 0.050 s (800 samples)"),
        ({"wav": np.zeros((2, 1000), np.float32), "lens": [1000, 0]}, "empty audio"),
        ({"wav": np.full(1000, np.nan, np.float32)}, "sample 0 (0.000 s) is nan"),
        ({"wav": np.zeros(20 * SAMPLE_RATE + 1, np.float32)}, "the limit is 20 s"),
        ({"wav": np.zeros(1000, np.float32), "lens": 1001}, "WAV_LENS is 1001"),
        ({"wav": np.zeros(1000, np.float32), "parameters": {"beam": 4}}, "beam"),
        ({"wav": np.zeros(1000, np.float32), "parameters": {"window-s": 1}}, "window-s"),
    ],
    ids=["too short", "empty row", "NaN", "too long", "wrong length", "unknown parameter", "slip of the pen"],
)
def test_a_bad_request_gets_its_own_error(raw: RawClient, model: str, ask: dict[str, Any], said: str) -> None:
    waves = voices(4)
    bad, *answers = together(raw, model, [ask, *({"wav": wave} for wave in waves)])
    assert isinstance(bad, triton.InferenceServerException)
    assert bad.status() == "StatusCode.INVALID_ARGUMENT"
    assert said in bad.message()
    check(answers, waves)


def test_windows_are_the_models_or_the_requests(raw: RawClient) -> None:
    wave = np.concatenate([np.full(8000, 1 / 8), np.full(4000, 2 / 8)]).astype(np.float32)
    whole, halves = [2 / 3, 1 / 3], [3 / 4, 1 / 4]  # the second of two windows of 0.5 s begins at 0.25 s
    for parameters, expected in (
        ({}, halves),
        ({"window_s": 0}, whole),
        ({"window_s": 0.75}, whole),
        ({"window_s": "0.5", "shift_s": "0.25"}, halves),
        ({"shift_s": 0.05}, [(0.5 + 0.6 + 0.7 + 0.8 + 0.9 + 1) / 6, (0.5 + 0.4 + 0.3 + 0.2 + 0.1) / 6]),
    ):
        (found,) = embed(raw, "speaker", wave, parameters=parameters)
        np.testing.assert_allclose(found[1:3], expected, atol=EXACT, err_msg=str(parameters))
    refusal = embed(raw, "speaker", wave, parameters={"window_s": 0.01})
    assert "window_s is 0.01, but this model needs at least 0.050 s" in refusal.message()
    staged = embed(raw, "speaker-staged", wave, parameters={"window_s": 0.1})
    assert "windows are for speaker models of the usual layout" in staged.message()


def test_the_client_of_wespeaker_works_unchanged(server: TritonServer, tmp_path: Path) -> None:
    """What it sends is a file's samples alone, in one row, with a request id; it reads row 0 of the answer."""
    wave = toy_voice([1, 0, 2, 5], 4321)
    soundfile.write(tmp_path / "a.wav", wave, SAMPLE_RATE, subtype="PCM_16")
    heard, _ = soundfile.read(tmp_path / "a.wav")
    sent = np.zeros((1, len(heard)), dtype=np.float32)
    sent[0][:] = heard
    with triton.InferenceServerClient(url=server.grpc_address, verbose=False) as client:
        inputs = [triton.InferInput("WAV", sent.shape, np_to_triton_dtype(sent.dtype))]
        inputs[0].set_data_from_numpy(sent)
        outputs = [triton.InferRequestedOutput("EMBEDDINGS")]
        answer = client.infer("speaker", inputs, request_id="3", outputs=outputs)
        embedding = answer.as_numpy("EMBEDDINGS")[0]
    assert (embedding.shape, embedding.dtype) == ((DIM,), np.float32)
    np.testing.assert_allclose(embedding, toy_embedding(wave), atol=1e-3)  # of 16 bits


def test_audio_and_outcomes_are_counted(server: TritonServer, raw: RawClient) -> None:
    """A model tells its numbers now and then, with the next request: bad ones are sent until they are there."""
    before, (good, bad) = metrics_of(server, "speaker"), (toy_voice([1], 12000), toy_voice([1], 100))
    assert embed(raw, "speaker", good).shape == (1, DIM)
    deadline = time.monotonic() + TIMEOUT_S
    while (told := metrics_of(server, "speaker"))["ok"] == before["ok"]:
        assert time.monotonic() < deadline, told
        assert isinstance(embed(raw, "speaker", bad), triton.InferenceServerException)
    # Two windows of 0.5 s are heard of 0.75 s, and perhaps what other tests had sent before, untold so far.
    assert told["audio_seconds_total"] - before["audio_seconds_total"] >= 1 - EXACT
    assert told["network_seconds_total"] > before["network_seconds_total"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without graphs for stages."""
    return write_toy_speaker(tmp_path_factory.mktemp("bundles") / "plain", name="voice")


class TestBuilding:
    def test_the_model_has_the_name_and_the_size_of_the_bundle(self, plain: Path, tmp_path: Path) -> None:
        arguments = ["build", str(plain), "--output", str(tmp_path), "--window-s", "2", "--shift-s", "1"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert done.stdout.split("\t")[:2] == ["voice", "embedding"]
        config = from_text((tmp_path / "voice" / "config.pbtxt").read_text(encoding="utf-8"))
        assert [(each.name, [*each.dims]) for each in config.output] == [("EMBEDDINGS", [DIM])]
        assert {each.name: each.optional for each in config.input} == {"WAV": True, "WAV_LENS": True, "PCM": True}
        told = {key: value.string_value for key, value in config.parameters.items()}
        assert (told["window_s"], told["shift_s"]) == ("2.0", "1.0")
        assert not {"search", "beam", "nbest", "timestamps"} & set(told)

    def test_a_repository_knows_what_it_holds(self, plain: Path, toy_bundle: Path, tmp_path: Path) -> None:
        build_repository([plain, toy_bundle], tmp_path, options=ModelOptions(max_audio_s=10, max_batch_size=4))
        modes = {each.name: each.mode for each in read_repository(tmp_path)}
        assert modes == {"voice": "embedding", "toy": "offline", "toy-streaming": "streaming"}
        assert runtimes_of(tmp_path) == {("", "cpu")}
        assert compiled_searches(tmp_path) == set()
        # Of two models 4 requests of 10 s, and of the third of 1 s.
        assert shared_memory_bytes(tmp_path) == 4 * (10 + 10 + 1) * SAMPLE_RATE * 4

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"search": "prefix-beam", "beam": 4}, "is a speaker model, and --beam, --search is for models that write"),
            ({"lm": "absent.arpa"}, "--lm is for"),
            ({"timestamps": False}, "--no-detail-times is for"),
            ({"endpoint_silence_s": 1.0}, "--endpoint-silence-s is for"),
            ({"chunk_size": 4}, "--chunk-size is for"),
            ({"window_s": 0.02}, r"needs at least 0\.050 s of audio; --window-s 0\.02 is less"),
        ],
    )
    def test_what_makes_no_sense_for_it_is_refused(
        self, plain: Path, tmp_path: Path, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(BundleError, match=said):
            build_repository([plain], tmp_path / "repo", options=ModelOptions(**options))
        assert not (tmp_path / "repo").exists()

    def test_windows_are_for_speaker_models(self, toy_bundle: Path, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="is a CTC model, and --window-s is for speaker models"):
            build_repository([toy_bundle], tmp_path, options=ModelOptions(window_s=2))
        with pytest.raises(ValueError, match="no windows to shift"):
            ModelOptions(shift_s=1)

    def test_it_has_no_streams_and_no_decoder(self, plain: Path, speaker_bundle: Path, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="has no streams"):
            build_repository([plain], tmp_path, modes="streaming")
        with pytest.raises(BundleError, match="Export the checkpoint with --stages"):
            build_repository([plain], tmp_path, layout=EnsembleOptions())
        decoder = EnsembleOptions(stages=parse_stages(["decoder=2"], ModelOptions().usual_instances))
        for layout, options, said in (
            (decoder, ModelOptions(), "leave --stage decoder out"),
            (EnsembleOptions(), ModelOptions(window_s=1), "Leave --window-s out"),
            (EnsembleOptions(tensors="jasper"), ModelOptions(), "for CTC models"),
        ):
            with pytest.raises(BundleError, match=said):
                build_repository([speaker_bundle], tmp_path, options=options, layout=layout)

    def test_the_network_may_be_left_to_triton(self, speaker_bundle: Path, tmp_path: Path) -> None:
        layout = EnsembleOptions(native=True)
        models = build_repository([speaker_bundle], tmp_path, names=["voice"], layout=layout)
        modes = {"voice-features": "features", "voice-acoustic": "acoustic", "voice": "embedding"}
        assert {each.name: each.mode for each in models} == modes
        assert {each.name: each.mode for each in read_repository(tmp_path)} == modes
        config = from_text((tmp_path / "voice-acoustic" / "config.pbtxt").read_text(encoding="utf-8"))
        assert (config.platform, config.default_model_filename) == ("onnxruntime_onnx", "model.onnx")
        assert [each.name for each in config.output] == ["embeddings"]
        assert (tmp_path / "voice-acoustic" / "1" / "model.onnx").is_file()
        ensemble = from_text((tmp_path / "voice" / "config.pbtxt").read_text(encoding="utf-8"))
        assert ensemble.ensemble_scheduling.step[1].output_map == {"embeddings": "EMBEDDINGS"}
