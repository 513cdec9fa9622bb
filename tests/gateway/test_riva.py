"""The protocol for Riva's clients, asked by NVIDIA's own client, nvidia-riva-client, as it comes from its package."""

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import riva.client
import riva.client.proto.health_pb2 as health_pb2
import riva.client.proto.health_pb2_grpc as health_grpc
import riva.client.proto.riva_asr_pb2 as asr
import riva.client.proto.riva_common_pb2 as common
import soundfile

from certificates import write_certificates
from gateway_streams import whole_frames
from toy import SAMPLE_RATE, toy_waveform
from tritone.client import Client
from tritone.errors import ServerSetupError
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.protocols import all_protocols
from tritone.gateway.protocols.riva import messages
from tritone.gateway.server import GatewayServer
from tritone.net.limits import Tls
from tritone.server import TritonServer
from waiting import until

TIMEOUT_S = 60.0
LINEAR = riva.client.AudioEncoding.LINEAR_PCM
PAUSE = np.zeros(SAMPLE_RATE, np.float32)

ENDPOINTING = asr.EndpointingConfig

Clients = Callable[..., riva.client.ASRService]


@pytest.fixture(scope="module")
def served(triton: Any) -> Iterator[GatewayServer]:
    """A gateway with this protocol alone."""
    with started(triton) as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Clients]:
    """Makes official clients of a gateway, and closes their connections."""
    made: list[riva.client.Auth] = []

    def connect(running: GatewayServer, host: str = "127.0.0.1", **auth: Any) -> riva.client.ASRService:
        made.append(riva.client.Auth(uri=f"{host}:{running.ports['riva']}", **auth))
        return riva.client.ASRService(made[-1])

    yield connect
    for each in made:
        each.channel.close()


@pytest.fixture
def client(served: GatewayServer, connect: Clients) -> riva.client.ASRService:
    return connect(served)


def pcm(samples: Any) -> bytes:
    return np.clip(samples * 32768, -32768, 32767).astype("<i2").tobytes()


def file_of(samples: Any, form: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, SAMPLE_RATE, format=form, subtype=subtype)
    return file.getvalue()


def recognition(**fields: Any) -> Any:
    """As an application configures raw samples; texts as the model writes them."""
    usual = {
        "encoding": LINEAR,
        "sample_rate_hertz": SAMPLE_RATE,
        "language_code": "en-US",
        "verbatim_transcripts": True,
    }
    return riva.client.RecognitionConfig(**{**usual, **fields})


def streamed(client: Any, config: Any, audio: bytes, *, interim: bool = True, piece: int = 2000) -> list[Any]:
    """The results of a stream, in their order."""
    chunks = [audio[begin : begin + piece] for begin in range(0, len(audio), piece)]
    wanted = riva.client.StreamingRecognitionConfig(config=config, interim_results=interim)
    found = []
    for response in client.streaming_response_generator(chunks, wanted):
        found += response.results
    return found


def finals(results: list[Any]) -> list[str]:
    return [each.alternatives[0].transcript for each in results if each.is_final]


def test_our_messages_are_those_of_the_official_client() -> None:
    compared = set()
    for module in (asr, common, health_pb2):
        for theirs in module.DESCRIPTOR.message_types_by_name.values():
            for each in (theirs, *theirs.nested_types):
                ours = messages.POOL.FindMessageTypeByName(each.full_name)
                assert facts(ours) == facts(each), each.full_name
                compared.add(each.full_name)
    assert "nvidia.riva.asr.RecognitionConfig.CustomConfigurationEntry" in compared
    assert set(messages.ENCODINGS.items()) == {(name, value) for name, value in riva.client.AudioEncoding.items()}


def facts(message: Any) -> dict[str, Any]:
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            getattr(field.message_type, "full_name", ""),
            getattr(field.enum_type, "full_name", ""),
            getattr(field.containing_oneof, "name", ""),
        )
        for field in message.fields
    }


def test_a_recording_is_recognised_with_times_and_confidences(client: Any) -> None:
    response = client.offline_recognize(pcm(toy_waveform("hello world")), recognition(enable_word_time_offsets=True))
    (result,) = response.results
    (best,) = result.alternatives
    # Final texts end with a space, as Riva's own: its clients put them behind each other.
    assert (best.transcript, result.channel_tag) == ("hello world ", 1)
    assert result.audio_processed == pytest.approx(len(toy_waveform("hello world")) / SAMPLE_RATE, abs=1e-3)
    assert [word.word for word in best.words] == ["hello", "world"]
    assert 0 <= best.words[0].start_time < best.words[0].end_time <= best.words[1].start_time < 1000  # ms
    assert best.confidence == pytest.approx(0.95, abs=0.01)
    assert best.words[0].confidence == pytest.approx(0.95, abs=0.01)
    assert [word.speaker_tag for word in best.words] == [0, 0]


def test_each_channel_has_a_result_of_its_own(client: Any) -> None:
    audio = np.stack([toy_waveform("hello world"), toy_waveform("seven eights")], axis=1)
    config = recognition(
        audio_channel_count=2, enable_separate_recognition_per_channel=True, enable_word_time_offsets=True
    )
    results = client.offline_recognize(pcm(audio), config).results
    assert [(each.channel_tag, each.alternatives[0].transcript) for each in results] == [
        *((1, "hello world "), (2, "seven eights "))
    ]
    assert [word.word for word in results[1].alternatives[0].words] == ["seven", "eights"]
    with pytest.raises(grpc.RpcError, match="enable_separate_recognition_per_channel is of Recognize"):
        streamed(client, config, pcm(audio))


@pytest.mark.parametrize(
    ("form", "subtype", "encoding"),
    [
        ("WAV", "PCM_16", 0),
        ("WAV", "PCM_16", LINEAR),
        ("FLAC", None, riva.client.AudioEncoding.FLAC),
        ("FLAC", None, 0),
    ],
)
def test_a_file_says_itself_how_it_is_encoded(client: Any, form: str, subtype: str, encoding: int) -> None:
    audio = file_of(toy_waveform("hello"), form, subtype)
    config = recognition(encoding=encoding, sample_rate_hertz=0)
    assert client.offline_recognize(audio, config).results[0].alternatives[0].transcript == "hello "
    assert finals(streamed(client, config, audio)) == ["hello "]


def test_alternatives_and_boosted_words_choose_the_search(client: Any, triton: TritonServer) -> None:
    with Client(triton.grpc_address, retries=100, timeout_s=300) as patient:  # while the search is compiled, once
        patient.transcribe(toy_waveform("a"), model="toy", search={"search": "prefix-beam"})
    config = recognition(max_alternatives=3)
    riva.client.add_custom_configuration_to_config(config, "search:prefix-beam,beam:40")
    (result,) = client.offline_recognize(pcm(toy_waveform("hello")), config).results
    texts = [each.transcript for each in result.alternatives]
    assert (texts[0], len(texts), len(set(texts))) == ("hello ", 3, 3)
    greedy = recognised(client, max_alternatives=3)  # the most there may be: this search has one
    assert [each.transcript for each in greedy.results[0].alternatives] == ["hello "]

    riva.client.add_word_boosting_to_config(config, ["hellx"], 90.0)
    riva.client.add_word_boosting_to_config(config, ["world", "word"], 5.0)
    (boosted,) = client.offline_recognize(pcm(toy_waveform("hello")), config).results
    assert boosted.alternatives[0].transcript == "hellx "


def test_a_stream_has_partial_texts_and_a_final_one_for_each_utterance(client: Any) -> None:
    audio = pcm(np.concatenate([whole_frames("one", 3), PAUSE, toy_waveform("neo")]))
    config = recognition(enable_word_time_offsets=True)
    results = streamed(client, config, audio)
    assert finals(results) == ["one ", "neo "]
    partials = [each for each in results if not each.is_final]
    assert {each.alternatives[0].transcript for each in partials} & {"o", "on", "n", "ne"}
    assert all(not each.alternatives[0].words for each in partials)
    second = results[-1]
    assert second.alternatives[0].words[0].start_time >= 1000  # ms from the start of the stream
    assert second.audio_processed == pytest.approx(len(audio) / 2 / SAMPLE_RATE, abs=1e-3)

    assert [each.is_final for each in streamed(client, config, audio, interim=False)] == [True, True]


def test_the_official_printers_read_our_answers(client: Any, capsys: Any) -> None:
    config = riva.client.StreamingRecognitionConfig(config=recognition(), interim_results=True)
    chunks = [pcm(toy_waveform("hello"))]
    riva.client.print_streaming(client.streaming_response_generator(chunks, config), additional_info="confidence")
    assert "## hello \nConfidence:" in capsys.readouterr().out
    riva.client.print_offline(client.offline_recognize(chunks[0], recognition()))
    assert "Final transcript: hello" in capsys.readouterr().out


def test_voice_activity_ends_utterances_where_the_client_says_after_how_much_silence(client: Any) -> None:
    config = recognition()
    riva.client.add_endpoint_parameters_to_config(config, -1, -1.0, 300, 200, -1.0, -1.0)
    riva.client.add_custom_configuration_to_config(config, "neural_vad.onset:0.6,enable_vad_endpointing:true")
    results = streamed(
        client, config, pcm(np.concatenate([PAUSE, whole_frames("one", 3), PAUSE, toy_waveform("neo"), PAUSE]))
    )
    assert finals(results) == ["one ", "neo "]


def test_a_partial_result_that_nothing_follows_is_called_stable_before_the_end(client: Any) -> None:
    config = recognition(endpointing_config=ENDPOINTING(stop_history_eou=240))
    results = streamed(client, config, pcm(np.concatenate([whole_frames("one", 3), PAUSE])), piece=1000)
    stable = [each.stability for each in results if not each.is_final]
    assert (max(stable), stable.count(1.0), finals(results)) == (1.0, 1, ["one "])
    assert stable[-1] == 1.0
    plain = streamed(client, recognition(), pcm(np.concatenate([whole_frames("one", 3), PAUSE])))
    assert {each.stability for each in plain} == {0.0}


def test_a_client_may_end_an_utterance_itself(client: Any) -> None:
    def requests() -> Iterator[Any]:
        config = riva.client.StreamingRecognitionConfig(config=recognition())
        yield asr.StreamingRecognizeRequest(streaming_config=config, id=common.RequestId(value="mine"))
        yield asr.StreamingRecognizeRequest(
            audio_content=pcm(toy_waveform("one")), runtime_config={"force_eou": "true"}
        )
        yield asr.StreamingRecognizeRequest(audio_content=pcm(toy_waveform("two")))

    responses = list(client.stub.StreamingRecognize(requests(), timeout=TIMEOUT_S))
    assert [each.results[0].alternatives[0].transcript for each in responses] == ["one ", "two "]
    assert {each.id.value for each in responses} == {"mine"}


def test_texts_are_written_as_people_write_them_where_the_client_asks(client: Any) -> None:
    audio = pcm(toy_waveform("twenty damn two"))
    config = recognition(verbatim_transcripts=False, enable_automatic_punctuation=True, profanity_filter=True)
    (result,) = client.offline_recognize(audio, config).results
    assert result.alternatives[0].transcript.startswith("20 d***")


def test_models_are_listed_as_the_official_commands_read_them(client: Any) -> None:
    listed = client.stub.GetRivaSpeechRecognitionConfig(asr.RivaSpeechRecognitionConfigRequest()).model_config
    found = {each.model_name: dict(each.parameters) for each in listed}
    assert found == {
        "live": {"type": "online", "streaming": "True", "sample_rate": "16000"},
        "toy": {"type": "offline", "streaming": "False", "sample_rate": "16000"},
    }
    named = asr.RivaSpeechRecognitionConfigRequest(model_name="toy")
    assert [each.model_name for each in client.stub.GetRivaSpeechRecognitionConfig(named).model_config] == ["toy"]


def test_health_is_that_of_grpc(served: GatewayServer, client: Any) -> None:
    stub = health_grpc.HealthStub(client.auth.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1
    asked = health_pb2.HealthCheckRequest(service=messages.SERVICE)
    watched = stub.Watch(asked, timeout=TIMEOUT_S)
    assert next(watched).status == 1
    watched.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def recognised(client: Any, audio: bytes = b"", **fields: Any) -> Any:
    return client.offline_recognize(audio or pcm(toy_waveform("hello")), recognition(**fields))


REFUSED = [
    ({"model": "nobody"}, "NOT_FOUND", "no ready model 'nobody'"),
    ({"encoding": 0}, "INVALID_ARGUMENT", "name encoding and sample_rate_hertz"),
    ({"encoding": riva.client.AudioEncoding.FLAC}, "INVALID_ARGUMENT", "the encoding is FLAC"),
    ({"sample_rate_hertz": 0}, "INVALID_ARGUMENT", "needs sample_rate_hertz"),
    ({"sample_rate_hertz": 7}, "INVALID_ARGUMENT", "sample_rate_hertz is 7"),
    ({"encoding": 9}, "INVALID_ARGUMENT", "encoding 9 is not known"),
    ({"audio_channel_count": 99}, "INVALID_ARGUMENT", "audio_channel_count is 99"),
    ({"max_alternatives": -1}, "INVALID_ARGUMENT", "max_alternatives is -1"),
    ({"max_alternatives": 3, "custom_configuration": {"nbest": "2"}}, "INVALID_ARGUMENT", "send one of them"),
    (
        {
            "enable_separate_recognition_per_channel": True,
            "diarization_config": riva.client.proto.riva_asr_pb2.SpeakerDiarizationConfig(
                enable_speaker_diarization=True
            ),
        },
        "INVALID_ARGUMENT",
        "a channel is a speaker",
    ),
    ({"speech_contexts": [asr.SpeechContext(phrases=["anna"])]}, "INVALID_ARGUMENT", "boost"),
    ({"custom_configuration": {"colour": "red"}}, "INVALID_ARGUMENT", "colour"),
    ({"custom_configuration": {"timeout": "1"}}, "INVALID_ARGUMENT", "timeout"),
    ({"endpointing_config": ENDPOINTING(stop_history=500)}, "INVALID_ARGUMENT", "StreamingRecognize"),
]


@pytest.mark.parametrize(("fields", "status", "part"), REFUSED, ids=[str(index) for index in range(len(REFUSED))])
def test_what_cannot_be_done_is_refused_and_says_why(client: Any, fields: Any, status: str, part: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        recognised(client, **fields)
    assert refused.value.code() is grpc.StatusCode[status], refused.value.details()
    assert part in refused.value.details()


def test_what_streams_cannot_do_is_refused_and_says_why(client: Any) -> None:
    audio = pcm(toy_waveform("hello"))
    for fields, status, part in (
        ({"model": "nobody"}, "NOT_FOUND", "nobody"),
        ({"endpointing_config": ENDPOINTING(start_history=100)}, "INVALID_ARGUMENT", "start_history is not done here"),
        ({"endpointing_config": ENDPOINTING(stop_threshold=0.9)}, "INVALID_ARGUMENT", "neural_vad.offset"),
        ({"endpointing_config": ENDPOINTING(stop_history=0)}, "INVALID_ARGUMENT", "more than 0"),
        ({"endpointing_config": ENDPOINTING(stop_history=100, stop_history_eou=100)}, "INVALID_ARGUMENT", "less than"),
        (
            {"custom_configuration": {"neural_vad.onset": "high"}},
            "INVALID_ARGUMENT",
            "neural_vad.onset must be a number",
        ),
        ({"custom_configuration": {"neural_vad.pad_onset": "9"}}, "INVALID_ARGUMENT", "pad_onset"),
        ({"custom_configuration": {"enable_vad_endpointing": "maybe"}}, "INVALID_ARGUMENT", "true or false"),
        ({"encoding": riva.client.AudioEncoding.OGGOPUS}, "INVALID_ARGUMENT", "the encoding is OGGOPUS"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            streamed(client, recognition(**fields), audio)
        assert refused.value.code() is grpc.StatusCode[status], refused.value.details()
        assert part in refused.value.details()


CONFIG = asr.StreamingRecognizeRequest(streaming_config=asr.StreamingRecognitionConfig(config=recognition()))


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        ([], "without a message"),
        ([CONFIG], "without audio"),
        ([asr.StreamingRecognizeRequest(audio_content=b"1234")], "first message"),
        ([CONFIG, CONFIG], "streaming_config comes once"),
        ([CONFIG, asr.StreamingRecognizeRequest(audio_content=b"12345")], "1 bytes into a sample"),
        ([CONFIG, asr.StreamingRecognizeRequest(runtime_config={"louder": "true"})], "force_eou"),
    ],
)
def test_messages_that_make_no_stream_are_refused(client: Any, sent: list[Any], part: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(client.stub.StreamingRecognize(iter(sent), timeout=TIMEOUT_S))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert part in refused.value.details()


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"\xff\xff\xff", "not a RecognizeRequest"),
        (asr.RecognizeRequest(config=recognition()).SerializeToString(), "no audio"),
        (b"\x1f\x8b\x08 something compressed", "compressed"),
        # A field with the number 99, which a later version of the interface may have.
        (b"\x0a\x03\x98\x06\x01", "fields that are not known here (number 99)"),
    ],
)
def test_bytes_that_are_no_request_are_refused(client: Any, sent: bytes, part: str) -> None:
    call = client.auth.channel.unary_unary(f"/{messages.SERVICE}/Recognize")
    with pytest.raises(grpc.RpcError) as refused:
        call(sent, timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert part in refused.value.details()


@pytest.mark.parametrize("leaving", ["cancels", "vanishes"])
def test_a_client_that_leaves_frees_its_stream(served: GatewayServer, connect: Clients, leaving: str) -> None:
    client, going_on = connect(served), threading.Event()

    def requests() -> Iterator[Any]:
        yield CONFIG
        yield asr.StreamingRecognizeRequest(audio_content=pcm(toy_waveform("hello")))
        going_on.wait(TIMEOUT_S)

    call = client.stub.StreamingRecognize(requests(), timeout=TIMEOUT_S)
    try:
        until(lambda: served.gateway.speech.open_streams == 1)
        call.cancel() if leaving == "cancels" else client.auth.channel.close()
        until(lambda: served.gateway.speech.open_streams == 0)
    finally:
        going_on.set()


def started(triton: Any, **options: Any) -> AbstractContextManager[GatewayServer]:
    given = GatewayOptions(triton=triton.grpc_address, port=0, ports={"riva": 0}, **options)
    return GatewayServer(given, protocols={"riva": all_protocols()["riva"]}).background()


def test_a_stream_that_sends_nothing_is_ended(triton: Any, connect: Clients) -> None:
    silent = threading.Event()

    def requests() -> Iterator[Any]:
        yield CONFIG
        silent.wait(TIMEOUT_S)

    with started(triton, limits=GatewayLimits(idle_s=0.2)) as running:
        with pytest.raises(grpc.RpcError) as refused:
            list(connect(running).stub.StreamingRecognize(requests(), timeout=TIMEOUT_S))
        silent.set()
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "nothing came for 0.2 s" in refused.value.details()


def test_messages_and_recordings_have_a_largest_size(triton: Any, connect: Clients) -> None:
    with started(triton, limits=GatewayLimits(max_message_kb=8, max_body_mb=0.01)) as running:
        client = connect(running)
        large = asr.StreamingRecognizeRequest(audio_content=bytes(10_000))
        with pytest.raises(grpc.RpcError) as refused:
            list(client.stub.StreamingRecognize(iter([CONFIG, large]), timeout=TIMEOUT_S))
        assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
        assert "8192 are allowed" in refused.value.details()
        with pytest.raises(grpc.RpcError) as refused:
            recognised(client, bytes(20_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # gRPC's own limit


def test_the_door_speaks_tls(triton: Any, connect: Clients, tmp_path: Path) -> None:
    write_certificates(tmp_path)
    tls = Tls(certificate=tmp_path / "good.pem", key=tmp_path / "good.key")
    with started(triton, tls=tls) as running:
        client = connect(running, "localhost", use_ssl=True, ssl_root_cert=str(tmp_path / "ca.pem"))
        assert recognised(client).results[0].alternatives[0].transcript == "hello "


def test_a_port_that_is_taken_is_an_error_that_names_the_option(served: GatewayServer) -> None:
    options = GatewayOptions(triton="localhost:9", port=0, ports={"riva": served.ports["riva"]})
    with (
        pytest.raises(ServerSetupError, match="--riva-port"),
        GatewayServer(options, protocols={"riva": all_protocols()["riva"]}).background(),
    ):
        pass


def of_access(caplog: Any, count: int) -> list[Any]:
    """The lines of the log of calls; none before there are so many."""
    found = [json.loads(each.getMessage()) for each in caplog.records if each.name == "tritone.gateway.access"]
    return found if len(found) == count else []


def test_calls_need_a_key_where_keys_are_asked_for_and_are_counted(
    triton: Any, connect: Clients, tmp_path: Path, caplog: Any
) -> None:
    key, digest = new_key()
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{name: call-centre, sha256: {digest}, streams: 1}}]", encoding="utf-8")
    with started(triton, keys=keys) as running, caplog.at_level("INFO"):
        with pytest.raises(grpc.RpcError) as refused:
            recognised(connect(running))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        client = connect(running, metadata_args=[["authorization", f"Bearer {key}"]])
        assert recognised(client).results[0].alternatives[0].transcript == "hello "
        assert health_grpc.HealthStub(connect(running).auth.channel).Check(health_pb2.HealthCheckRequest()).status == 1

        metrics = running.gateway.metrics.registry.get_sample_value
        labels = {"protocol": "riva", "outcome": "ok"}
        until(lambda: metrics("tritone_gateway_requests_total", labels) == 1)
        labels = {"protocol": "riva", "code": "unauthorized"}
        until(lambda: metrics("tritone_gateway_refusals_total", labels) == 1)
        lines = until(lambda: of_access(caplog, 2))  # which are written last
    found = sorted((each["caller"], each["status"], each["client"], each["path"]) for each in lines)
    path = f"/{messages.SERVICE}/Recognize"
    assert found == [("", 401, "127.0.0.1", path), ("call-centre", 200, "127.0.0.1", path)]
    assert key not in caplog.text


def test_the_example_of_the_document_runs(served: GatewayServer, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "applications" / "gateway-riva.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "speech.wav").write_bytes(file_of(toy_waveform("hello world")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example.replace("localhost:50051", f"127.0.0.1:{served.ports['riva']}"), names)
    names["service"].auth.channel.close()
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("Hello world. ", "final   Hello world. ")


def test_words_have_speakers_by_number_in_recordings_and_streams(client: Any) -> None:
    config = recognition()
    riva.client.add_speaker_diarization_to_config(config, True, 2)
    # Long enough for an embedding; the toy's voices are all alike.
    audio = pcm(np.concatenate([whole_frames("hello", 3), whole_frames("one", 3), toy_waveform("neo", 8)]))
    (result,) = client.offline_recognize(audio, config).results
    assert {word.speaker_tag for word in result.alternatives[0].words} == {1}
    results = streamed(client, config, audio)
    spoken = [each for each in results if each.is_final]
    assert {word.speaker_tag for each in spoken for word in each.alternatives[0].words} <= {0, 1}
    growing = [each for each in results if not each.is_final]
    assert {word.speaker_tag for each in growing for word in each.alternatives[0].words} == {0, 1}  # at first unknown
    assert all(each.alternatives[0].words for each in spoken if each.alternatives[0].transcript)
