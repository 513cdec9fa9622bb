"""Stages as models of their own, on a real server: what the one model of the usual layout says, in every detail."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils

from serving import Ask, RawClient, Refusal, quiet_options
from toy import FRAME, TOKENS, toy_waveform, write_toy_bundle
from toy_transducer import transducer_waveform, write_toy_transducer
from tritone.bundle.bundle import Bundle
from tritone.client import Client
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.plans.generator import find_target
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.workload.workload import Workload
from tritone.pipelines import OfflinePipeline, open_offline
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.repository import EnsembleOptions, ModelOptions, build_repository, read_repository
from tritone.search.options import SearchOptions
from tritone.server import TritonServer

TEXTS = ["one", "two two", "a", "zero 0", "nine nine nine", "x", "the quick brown fox", "y"]
BOTH = ("TRANSCRIPTS", "DETAILS")
JASPER = "jasper-onnx-ensemble"
LABELS = [" " if token == "▁" else token for token in (*TOKENS[1:], TOKENS[0])]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "words": write_toy_bundle(folder / "words", streaming=False, stages=True),
        "joined": write_toy_transducer(folder / "joined", streaming=False, stages=True),
        JASPER: write_toy_bundle(folder / "labels", streaming=False, stages=True, blank_last=True),
    }


@pytest.fixture(scope="module")
def server(
    bundles: dict[str, Path], searches_compiled: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    usual = {"max_batch_size": 8, "queue_delay_ms": 50.0, "max_audio_s": 20.0}
    options = {"words": ModelOptions(search="prefix-beam", beam=40, **usual)}  # type: ignore[arg-type]
    for name, bundle in bundles.items():
        layout = EnsembleOptions(tensors="jasper" if name == JASPER else "triton")
        built = options.get(name, ModelOptions(**usual))  # type: ignore[arg-type]
        build_repository([bundle], repository, names=[name], options=built, layout=layout)
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def raw(server: TritonServer) -> RawClient:
    return RawClient(server.grpc_address)


@pytest.fixture(scope="module")
def fused(bundles: dict[str, Path]) -> dict[str, OfflinePipeline]:
    """What the usual layout runs."""
    search = SearchSettings(options=SearchOptions(mode="prefix-beam", beam=40))
    return {
        "words": open_offline(Bundle.open(bundles["words"]), placement=Placement(threads=1), search=search),
        "joined": open_offline(Bundle.open(bundles["joined"]), placement=Placement(threads=1)),
    }


def told(text_and_details: tuple[str, str]) -> Any:
    text, details = text_and_details
    found = json.loads(details)
    assert found["text"] == text
    return found


def expected(pipeline: OfflinePipeline, waveform: np.ndarray, **asked: object) -> Any:
    options = pipeline.searching.options.changed(asked) if asked else None
    (transcript,) = pipeline.recognize([waveform], [options])
    return json.loads(json.dumps(transcript.to_dict()))


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("words", {}),
        ("words", {"search": "greedy"}),
        ("words", {"nbest": 3, "hotwords": "quick:9"}),
        ("joined", {}),
        ("joined", {"search": "modified-beam", "nbest": 2, "hotwords": "aek:4"}),
    ],
)
def test_texts_times_and_details_are_those_of_the_one_model(
    raw: RawClient, fused: dict[str, OfflinePipeline], model: str, asked: dict[str, Any]
) -> None:
    write = toy_waveform if model == "words" else transducer_waveform
    waves = [write(text) for text in TEXTS] + [write(text) for text in ("k?", "a~k") if model == "joined"]
    waves = [wave[: len(wave) - cut] for wave, cut in zip(waves, (0, 1, 77, 160, 319, 400, 0, 5, 0, 0), strict=False)]
    answers = raw.together([Ask(model=model, wav=wave, outputs=BOTH, parameters=asked) for wave in waves])
    assert [told(answer) for answer in answers] == [expected(fused[model], wave, **asked) for wave in waves]


@pytest.mark.parametrize("model", ["words", "joined"])
def test_16_bit_audio_gives_every_answer_that_the_floats_give_that_it_stands_for(raw: RawClient, model: str) -> None:
    write = toy_waveform if model == "words" else transducer_waveform
    waves = [(write(text) * 32767).astype(np.int16) for text in TEXTS]
    asks = [Ask(model=model, wav=wave, called=("PCM",), outputs=BOTH) for wave in waves]
    as_floats = [Ask(model=model, wav=(wave / 32768).astype(np.float32), outputs=BOTH) for wave in waves]
    answers = raw.together(asks)
    assert [text for text, _ in answers] == TEXTS
    assert answers == raw.together(as_floats)
    refusal = raw.ask(Ask(model=model, wav=waves[0], called=()))
    assert isinstance(refusal, Refusal)
    assert "WAV" in refusal.message


def test_requests_share_batches_of_the_stages_that_wait_for_company(raw: RawClient) -> None:
    texts = [
        f"{number} word{'s' * (number > 4)}" for number in range(1, 9)
    ]  # of two lengths, so features have one or two
    lonely = {"words-features", "words-acoustic"}
    for _ in range(10):
        before = {model: raw.batches(model) for model in lonely}
        assert raw.together([Ask(model="words", wav=toy_waveform(text)) for text in texts]) == texts
        lonely = {model for model in lonely if max(raw.batches(model) - before[model], default=0) <= 1}
        if not lonely:
            break
    assert lonely == set()


BAD = {
    "NaN": (np.full(FRAME, np.nan, np.float32), None, r"sample 0 .*is nan"),
    "too long": (np.zeros(20 * 16000 + 1, np.float32), None, r"limit is 20 s"),
    "wrong length": (toy_waveform("abc"), 99999, r"WAV_LENS is 99999"),
    "no audio": (np.zeros((1, 1), np.float32), 0, "empty audio"),
}


@pytest.mark.parametrize(("wav", "lens", "said"), BAD.values(), ids=BAD)
def test_a_bad_request_gets_its_own_error_and_its_neighbours_their_texts(
    raw: RawClient, wav: np.ndarray, lens: int | None, said: str
) -> None:
    asks = [Ask(model="words", wav=toy_waveform(text)) for text in TEXTS[:6]]
    answers = raw.together([*asks[:3], Ask(model="words", wav=wav, lens=lens), *asks[3:]])
    refusal = answers.pop(3)
    assert isinstance(refusal, Refusal)
    assert refusal.status == "StatusCode.INVALID_ARGUMENT"
    assert re.search(said, refusal.message), refusal.message
    assert answers == TEXTS[:6]


def test_options_that_the_model_does_not_have_are_refused_by_its_decoder(raw: RawClient) -> None:
    wave = toy_waveform("abc")
    for asked, said in (
        ({"search": "rescoring"}, "build the model with --search rescoring, if it has an attention decoder"),
        ({"beams": 3}, "beams"),
    ):
        refusal = raw.ask(Ask(model="words", wav=wave, parameters=asked))
        assert refusal.status == "StatusCode.INVALID_ARGUMENT"
        assert said in refusal.message


def test_audio_too_short_for_a_frame_and_rows_of_one_request_are_as_usual(raw: RawClient) -> None:
    waves = [toy_waveform("keep"), np.zeros(10, np.float32), toy_waveform("these three")]
    block = np.full((3, max(map(len, waves))), 0.5, np.float32)
    for row, wave in zip(block, waves, strict=True):
        row[: len(wave)] = wave
    assert raw.ask(Ask(model="words", wav=block, lens=[len(each) for each in waves])) == ["keep", "", "these three"]
    assert raw.ask(Ask(model="joined", wav=np.zeros(300, np.float32))) == ""


def test_our_client_sees_one_offline_model_and_no_difference(server: TritonServer) -> None:
    with Client(server.grpc_address) as client:
        assert {each.name for each in client.models() if each.kind == "offline"} == {"words", "joined"}
        audio = [toy_waveform(text) for text in TEXTS]
        found = client.transcribe(audio, model="words", sample_rate=16000, search={"hotwords": {"quick": 2}})
        assert [each.text for each in found] == TEXTS


def ask_as_nvidia(module: Any, address: str, model: str, clips: list[np.ndarray]) -> list[list[str]]:
    """What NVIDIA's client for Jasper does with a batch: reads the configuration, fills shorter clips up with noise,
    sends the longest length for all, and makes text of class ids, row by row in as many pieces as there are rows.
    """
    client = module.InferenceServerClient(address)
    of_grpc = module is tritonclient.grpc
    # By gRPC the configuration lies one level deeper, where NVIDIA's client does not look: see the tests.
    config = client.get_model_config(model, as_json=True)["config"] if of_grpc else client.get_model_config(model)
    (audio, samples), (text,) = config["input"], config["output"]
    assert (audio["data_type"], samples["data_type"], text["data_type"]) == ("TYPE_FP32", "TYPE_INT32", "TYPE_INT32")
    assert len(audio["dims"]) == len(samples["dims"]) == 1
    assert config["max_batch_size"] >= len(clips)
    longest, random = max(map(len, clips)), np.random.default_rng(0)
    filled = [
        np.concatenate([clip, random.normal(clip.mean(), clip.std(), longest - len(clip)).astype(np.float32)])
        for clip in clips
    ]
    tensors = {audio["name"]: np.asarray(filled), samples["name"]: np.full((len(clips), 1), longest, np.int32)}
    inputs = []
    for (name, array), kind in zip(tensors.items(), ("FP32", "INT32"), strict=True):
        inputs.append(module.InferInput(name, array.shape, kind))
        inputs[-1].set_data_from_numpy(array)
    answer = client.infer(model, inputs, outputs=[module.InferRequestedOutput(text["name"])]).as_numpy(text["name"])
    client.close()
    blank, texts = len(LABELS) - 1, []
    for row in answer:
        pieces = []
        for piece in row.reshape((len(clips), row.size // len(clips))).tolist():
            before, found = blank, ""
            for label in piece:
                found += LABELS[label] if label not in (before, blank) else ""
                before = label
            pieces.append(found)
        texts.append(pieces)
    return texts


def test_the_client_of_nvidias_jasper_fails_by_grpc_in_its_own_reading_of_the_configuration(
    server: TritonServer,
) -> None:
    """Its option -i grpc cannot work with any server, which docs/models/export-jasper.md says."""
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        config = client.get_model_config(JASPER, as_json=True)
    with pytest.raises(KeyError, match="input"):
        config["input"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_of_nvidias_jasper_works_by_http_and_one_that_is_mended_by_grpc(
    server: TritonServer, protocol: str
) -> None:
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    address = server.http_address if protocol == "http" else server.grpc_address
    assert ask_as_nvidia(module, address, JASPER, [toy_waveform("how it was")]) == [["how it was"]]
    words = ["a short one", "the longest of the three by far", "third"]
    pieces = ask_as_nvidia(module, address, JASPER, [toy_waveform(each) for each in words])
    assert ["".join(row)[: len(text)] for row, text in zip(pieces, words, strict=True)] == words
    assert "".join(pieces[1]) == words[1], "of the others, noise is heard as it always was"


def test_errors_name_the_tensors_that_the_client_has(server: TritonServer) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    inputs = [
        tritonclient.grpc.InferInput("AUDIO_SIGNAL", (1, 3), "FP32"),
        tritonclient.grpc.InferInput("NUM_SAMPLES", (1, 1), "INT32"),
    ]
    inputs[0].set_data_from_numpy(np.zeros((1, 3), np.float32))
    inputs[1].set_data_from_numpy(np.array([[4]], np.int32))
    with pytest.raises(tritonclient.utils.InferenceServerException, match="NUM_SAMPLES is 4, but AUDIO_SIGNAL has 3"):
        client.infer(JASPER, inputs)
    client.close()


def test_a_repository_knows_its_stages_and_keeps_weights_once(bundles: dict[str, Path], tmp_path: Path) -> None:
    layout = EnsembleOptions()
    models = build_repository([bundles["words"]], tmp_path, names=["words"], layout=layout)
    modes = {"words": "offline", **{f"words-{each}": each for each in ("features", "acoustic", "decoder")}}
    assert {each.name: each.mode for each in models} == modes
    assert {each.name: each.mode for each in read_repository(tmp_path)} == modes
    held = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.onnx")}
    assert held == {"words-features/1/bundle/features.onnx", "words-acoustic/1/bundle/acoustic.onnx"}
    tables = [path.stat() for path in tmp_path.rglob("tokens.txt")]
    assert len(tables) == 3
    assert len({each.st_ino for each in tables}) == 1
    # It replaces what it wrote, whatever the layout was.
    assert len(build_repository([bundles["words"]], tmp_path, names=["words"])) == 1
    assert len(build_repository([bundles["words"]], tmp_path, names=["words"], layout=layout)) == 4
    shutil.rmtree(tmp_path / "words")


@pytest.mark.slow
def test_a_load_test_finds_queue_and_batches_of_an_ensemble_in_its_stages(server: TritonServer) -> None:
    metrics = f"http://{server.options.address('metrics')}/metrics"
    plan = WindowPlan(warmup_s=0.2, window_s=1.0, max_windows=2, tolerance=0.9)
    waveforms = [toy_waveform("speech")] * 8
    for protocol, address in (("grpc", server.grpc_address), ("http", server.http_address)):
        with Client(f"{protocol}://{address}") as client:
            target = find_target(client, "words", streaming=False)
        assert target.stages == ("words-features", "words-acoustic", "words-decoder")
        workload = Workload(seconds="toy", sample_rate=target.sample_rate, waveforms=waveforms)
        found = measure_closed(target, workload, 8, LoadOptions(windows=plan, processes=1, metrics_url=metrics)).server
        assert found is not None
        assert found.requests > 0
        assert found.queue_ms > 0
        assert found.compute_infer_ms > 0
        assert found.mean_batch > 1.5  # one request in flight for each row of a batch of the stages
        assert found.audio_s is not None
        assert found.audio_s > 0
