"""Every protocol of the gateway with a model that is elsewhere, each by its official client where it has one."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
import riva.client
from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from websockets.sync.client import ClientConnection, connect
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient

from elsewhere import RATE, Elsewhere, gateway_of, said, wav
from fake_speech import heard
from tritone.audio.pcm import to_pcm
from tritone.gateway.server import GatewayServer
from tritone.gateway.upstreams.options import UpstreamOptions

TEXT = "three five"
SAMPLES = said(3, 5)
PCM = to_pcm(SAMPLES).tobytes()
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def there() -> Iterator[Elsewhere]:
    with Elsewhere() as found:
        yield found


@pytest.fixture(scope="module", params=["none", "openai", "vllm"])
def gateway(request: Any, there: Elsewhere) -> Iterator[GatewayServer]:
    """Its model is elsewhere, with a Realtime API of each kind, or with none."""
    options = UpstreamOptions(name="m", url=there.url, realtime=request.param)
    ports = {"riva": 0, "wyoming": 0}
    with gateway_of(options, model="m", stream_model="m", ports=ports) as running:
        yield running


def opened(gateway: GatewayServer, path: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", close_timeout=60, open_timeout=60)


def test_websockets(gateway: GatewayServer) -> None:
    floats = SAMPLES.astype("<f4").tobytes()
    found = {}
    with opened(gateway, "/v1/stream?model=m") as client:
        client.send(PCM)
        client.send('{"type": "end"}')
        messages, _ = heard(client)
        found["stream"] = messages[-2]["text"]
    with opened(gateway, "/vosk?sample_rate=16000") as client:
        client.send(PCM)
        client.recv()
        client.send('{"eof" : 1}')
        found["vosk"] = json.loads(client.recv())["text"]
    with opened(gateway, "/wenet?model=m") as client:
        client.send('{"signal":"start"}')
        client.send(PCM)
        client.send('{"signal":"end"}')
        messages, _ = heard(client)
        (best,) = json.loads(messages[-2]["nbest"])
        found["wenet"] = best["sentence"]
    with opened(gateway, "/sherpa-onnx") as client:
        client.send(floats)
        client.send("Done")
        *_, result, _ = client
        found["sherpa_onnx"] = json.loads(result)["text"]
    with opened(gateway, "/sherpa-onnx-offline") as client:
        client.send(RATE.to_bytes(4, "little") + len(floats).to_bytes(4, "little") + floats)
        found["sherpa_onnx_offline"] = json.loads(client.recv())["text"]
    assert set(found.values()) == {TEXT}, found


def test_deepgram(gateway: GatewayServer) -> None:
    address = f"127.0.0.1:{gateway.port}"
    http, ws = f"http://{address}", f"ws://{address}"
    environment = DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)
    with httpx.Client(timeout=TIMEOUT_S) as connections:
        client = DeepgramClient(api_key="any", environment=environment, httpx_client=connections)
        found = client.listen.v1.media.transcribe_file(request=wav(SAMPLES)[1], model="m", keyterm=["three"])
        assert found.results.channels[0].alternatives[0].transcript == TEXT
        with client.listen.v1.connect(model="m", encoding="linear16", sample_rate=RATE) as socket:
            socket.send_media(PCM)
            socket.send_close_stream()
            results = []
            while (each := socket.recv()).type == "Results":
                results.append(each)
        finals = [each.channel.alternatives[0].transcript for each in results if each.is_final]
        assert " ".join(filter(None, finals)) == TEXT


def test_what_needs_words_is_refused_where_the_model_gives_none_and_nothing_is_made_up(gateway: GatewayServer) -> None:
    """Its server gives neither times nor confidences."""
    _, audio = wav(SAMPLES)
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=TIMEOUT_S) as client:

        def listen(query: str) -> Any:
            return client.post(f"/v1/listen?model=m{query}", content=audio, headers={"content-type": "audio/wav"})

        plain = listen("&smart_format=true").json()
        (reading,) = plain["results"]["channels"][0]["alternatives"]
        assert (reading["transcript"] != "", reading["confidence"], reading["words"]) == (True, None, [])
        assert "paragraphs" not in reading
        assert "times of words" in plain["metadata"]["warnings"][0]["message"]
        for query in ("&utterances=true", "&paragraphs=true"):
            refused = listen(query)
            assert (refused.status_code, "times of words" in refused.json()["err_msg"]) == (400, True)
        verbose = {"model": "m", "response_format": "verbose_json"}
        refused = client.post(
            "/v1/audio/transcriptions", data={**verbose, "timestamp_granularities[]": "word"}, files={"file": audio}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timestamp_granularities")
        diarized = {"model": "m", "response_format": "diarized_json"}
        refused = client.post("/v1/audio/transcriptions", data=diarized, files={"file": audio})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")
        (segment,) = client.post("/v1/audio/transcriptions", data=verbose, files={"file": audio}).json()["segments"]
        assert (segment["start"], segment["end"]) == (0.0, pytest.approx(len(SAMPLES) / RATE, abs=0.001))
        assert segment.keys().isdisjoint({"avg_logprob", "no_speech_prob"})
    with opened(gateway, "/v1/stream") as websocket:
        websocket.send('{"type": "start", "model": "m", "words": true}')
        websocket.send(PCM)
        websocket.send('{"type": "end"}')
        messages, _ = heard(websocket)
    finals = [each for each in messages if each["type"] == "final" and each["text"]]
    assert [(each["confidence"], "words" in each) for each in finals] == [(None, False)] * len(finals)
    assert finals
    auth = riva.client.Auth(uri=f"127.0.0.1:{gateway.ports['riva']}")
    try:
        client_of_riva = riva.client.ASRService(auth)
        config = riva.client.RecognitionConfig(
            encoding=riva.client.AudioEncoding.LINEAR_PCM, sample_rate_hertz=RATE, language_code="en-US"
        )
        assert client_of_riva.offline_recognize(PCM, config).results[0].alternatives[0].confidence == 0.0  # none
        config.enable_word_time_offsets = True
        with pytest.raises(grpc.RpcError, match="times of words"):
            client_of_riva.offline_recognize(PCM, config)
        streaming = riva.client.StreamingRecognitionConfig(config=config)
        with pytest.raises(grpc.RpcError, match="times of words"):
            list(client_of_riva.streaming_response_generator([PCM], streaming))
    finally:
        auth.channel.close()


def test_riva(gateway: GatewayServer) -> None:
    auth = riva.client.Auth(uri=f"127.0.0.1:{gateway.ports['riva']}")
    try:
        client = riva.client.ASRService(auth)
        config = riva.client.RecognitionConfig(
            encoding=riva.client.AudioEncoding.LINEAR_PCM,
            sample_rate_hertz=RATE,
            language_code="en-US",
            verbatim_transcripts=True,  # else numbers are written in digits
        )
        whole = client.offline_recognize(PCM, config)
        assert "".join(each.alternatives[0].transcript for each in whole.results).strip() == TEXT
        wanted = riva.client.StreamingRecognitionConfig(config=config, interim_results=True)
        chunks = [PCM[start : start + 3200] for start in range(0, len(PCM), 3200)]
        results = [each for answer in client.streaming_response_generator(chunks, wanted) for each in answer.results]
        finals = [each.alternatives[0].transcript.strip() for each in results if each.is_final]
        assert " ".join(filter(None, finals)) == TEXT
    finally:
        auth.channel.close()


def test_wyoming(gateway: GatewayServer) -> None:
    form: dict[str, Any] = {"rate": RATE, "width": 2, "channels": 1}

    async def ask() -> str:
        async with AsyncTcpClient("127.0.0.1", gateway.ports["wyoming"]) as client:
            for each in (Transcribe(language="en"), AudioStart(**form), AudioChunk(audio=PCM, **form), AudioStop()):
                await client.write_event(each.event())
            while (event := await client.read_event()) is not None:
                if Transcript.is_type(event.type):
                    return Transcript.from_event(event).text
        raise AssertionError("no transcript came")

    assert asyncio.run(asyncio.wait_for(ask(), TIMEOUT_S)) == TEXT
