import gzip
import http.client
import json
import socket
import time

import numpy as np
import pytest
import tritonclient.http as triton

from proxied import KEY, Start, body, get, infer, post
from tritone.net.prometheus import quantile, samples
from tritone.proxy import Limits, Proxy
from tritone.server import TritonServer, free_ports
from waiting import until


def test_requests_and_answers_pass_as_they_are(proxy: Proxy, upstream: TritonServer) -> None:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/count", "/v2/models/count/ready"):
        ours, theirs = get(proxy.options.http_port, path), get(upstream.options.http_port, path)
        assert ours[:2] == theirs[:2], path
    assert get(proxy.options.http_port, "/v2/models/stats")[0] == 200
    request = json.dumps(body(id="mine", parameters={"note": "ü"})).encode()
    answers = [
        post(port, "/v2/models/count/versions/1/infer", request)
        for port in (proxy.options.http_port, upstream.options.http_port)
    ]
    assert answers[0][:2] == answers[1][:2]
    assert answers[0][1]["id"] == "mine"


def test_binary_data_and_compression_pass(proxy: Proxy) -> None:
    samples = np.linspace(0, 0.01, 50_000, dtype=np.float32)[None]
    tensors = [triton.InferInput("WAV", samples.shape, "FP32"), triton.InferInput("WAV_LENS", [1, 1], "INT32")]
    tensors[0].set_data_from_numpy(samples)
    tensors[1].set_data_from_numpy(np.array([[50_000]], np.int32))
    with triton.InferenceServerClient(f"127.0.0.1:{proxy.options.http_port}") as client:
        for packed in (None, "gzip", "deflate"):
            result = client.infer(
                "count", tensors, request_compression_algorithm=packed, response_compression_algorithm=packed
            )
            assert result.as_numpy("TRANSCRIPTS").ravel().tolist() == [b"50000 250.0"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics", 404),
        ("POST", "/v2/models/count/generate", 404),
        ("GET", "/v2/../v2", 404),
        ("DELETE", "/v2", 404),
        ("GET", "/v2/models/%2e%2e/config", 400),
        ("GET", "/v2/models/a%00b", 400),
        ("POST", "/v2/models/" + "n" * 300 + "/infer", 400),
        ("POST", "/v2/models/count/versions/x/infer", 400),
        ("GET", "/v2/repository/index", 403),
        ("POST", "/v2/repository/index", 403),
        ("POST", "/v2/repository/models/count/unload", 403),
        ("GET", "/v2/systemsharedmemory/status", 403),
        ("POST", "/v2/systemsharedmemory/region/x/register", 403),
        ("GET", "/v2/cudasharedmemory/status", 403),
        ("GET", "/v2/logging", 403),
        ("POST", "/v2/logging", 403),
        ("GET", "/v2/trace/setting", 403),
        ("POST", "/v2/models/count/trace/setting", 403),
    ],
)
def test_what_is_not_open_is_refused_in_json(proxy: Proxy, method: str, path: str, status: int) -> None:
    for headers in ({}, {"tritone-key": "guess"}):
        answer = post(proxy.options.http_port, path, headers=headers, method=method)
        assert (answer[0], list(answer[1])) == (status, ["error"])


def test_locked_apis_open_with_the_key(proxy: Proxy) -> None:
    port, key = proxy.options.http_port, {"tritone-key": KEY}
    assert {each["name"] for each in post(port, "/v2/repository/index", headers=key)[1]} >= {"count", "running"}
    assert get(port, "/v2/logging", key)[0] == 200
    shared = body()
    shared["inputs"][0] = {
        **{"name": "WAV", "datatype": "FP32", "shape": [1, 2]},
        "parameters": {"shared_memory_region": "x", "shared_memory_byte_size": 8},
    }
    assert "not open here" in infer(port, "count", shared)[1]
    assert "Unable to find shared memory region" in infer(port, "count", shared, key)[1]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (json.dumps(body(parameters={"search": "?"})).encode().replace(b"?", b"\xff"), "not UTF-8"),
        (json.dumps(body(parameters={"sequence_id": "?"})).encode().replace(b"?", b"\xff"), "not UTF-8"),
        (json.dumps(body(outputs=[{"name": "TRANSCRIPTS", "parameters": {"classification": 1}}])).encode(), "rank"),
        (b"", "cannot be read"),
        (b"[1", "cannot be read"),
    ],
)
def test_bad_bodies_are_refused(proxy: Proxy, request_: bytes, told: str) -> None:
    status, answer, _ = post(proxy.options.http_port, "/v2/models/count/infer", request_)
    assert status == 400
    assert told in answer["error"] or (told == "rank" and "no tensor of numbers" in answer["error"])


@pytest.mark.parametrize("length", ["-5", "x", "99999999999999", "100000", "3"])
def test_a_wrong_length_of_the_json_header_is_refused(proxy: Proxy, length: str) -> None:
    request = json.dumps(body()).encode()
    headers = {"Inference-Header-Content-Length": length}
    assert post(proxy.options.http_port, "/v2/models/count/infer", request, headers)[0] == 400


def test_sizes_have_limits(start: Start) -> None:
    port = start(limits=Limits(max_body_bytes=10_000)).options.http_port
    assert infer(port, "count", body([0.0] * 100))[0] == 200
    large = json.dumps(body([0.0] * 10_000)).encode()
    for headers, sent in (({}, large), ({"Content-Encoding": "gzip"}, gzip.compress(large))):
        status, answer, _ = post(port, "/v2/models/count/infer", sent, headers)
        assert (status, "more than 10000 bytes" in answer["error"]) == (413, True)
    assert "rle" in post(port, "/v2/models/count/infer", b"x", {"Content-Encoding": "rle"})[1]["error"]
    for headers in ({"X-Long": "x" * 20_000}, {f"X-{number}": "x" for number in range(500)}):
        status, answer, _ = get(port, "/v2", headers)
        assert (status, "error" in answer) == (400, True)


def test_an_unknown_model_has_tritons_own_error(proxy: Proxy, upstream: TritonServer) -> None:
    ours, theirs = (infer(port, "nobody", body()) for port in (proxy.options.http_port, upstream.options.http_port))
    assert ours == (404, theirs[1])


def test_audio_in_flight_is_bounded_by_the_models_own_limit(proxy: Proxy) -> None:
    port = proxy.options.http_port  # 1000 samples a second, 10 s at most
    busy = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    busy.request("POST", "/v2/models/slow/infer", json.dumps(body([1.0] + [0.0] * 7999)))
    until(lambda: proxy.in_flight)
    status, answer, headers = post(port, "/v2/models/slow/infer", json.dumps(body([0.0] * 3000)).encode())
    assert status == 503
    assert "8.0 s of audio in flight and takes 10 s; this one has 3.0 s" in answer["error"]
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) >= 100
    assert infer(port, "count", body())[0] == 200
    assert busy.getresponse().status == 200
    busy.close()
    assert infer(port, "slow", body([0.0] * 3000)) == (200, "done")


def test_a_full_queue_has_a_hint(proxy: Proxy) -> None:
    port = proxy.options.http_port
    busy = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(3)]
    for each in busy:  # one runs, one waits; then the queue is full
        each.request("POST", "/v2/models/narrow/infer", json.dumps(body([0.5])))
    answers = [each.getresponse() for each in busy]
    refused = [each for each in answers if each.status == 503]
    assert refused
    assert all(each.headers["Retry-After"] == "1" for each in refused)
    for each in busy:
        each.close()


def test_a_deadline_that_passes_in_flight_is_told_at_once(proxy: Proxy) -> None:
    begun = time.monotonic()
    status, told = infer(proxy.options.http_port, "slow", body([6.0], parameters={"timeout": 200_000}))
    assert (status, "deadline" in told) == (503, True)
    assert 0.2 <= time.monotonic() - begun < 6  # the model sleeps for six seconds
    assert proxy.in_flight == 1  # it takes its room until then


def test_what_nobody_waits_for_counts_until_it_is_answered(proxy: Proxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.options.http_port)
    connection.request("POST", "/v2/models/slow/infer", json.dumps(body([1.0])))
    until(lambda: proxy.in_flight)
    connection.close()
    until(lambda: 'outcome="cancelled",protocol="http"} 1.0' in proxy.metrics())
    assert proxy.in_flight == 1
    assert proxy.wait_idle(60)


def test_who_hangs_up_in_the_middle_leaves_no_line_in_the_log(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    port = proxy.options.http_port
    with socket.create_connection(("127.0.0.1", port), 20) as cut:
        cut.sendall(b"POST /v2/models/count/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    with socket.create_connection(("127.0.0.1", port), 20) as noise:
        noise.sendall(b"\x16\x03\x01 this is TLS, or nothing at all\r\n\r\n")
        assert b" 400 Bad Request" in noise.recv(1000)
    assert infer(port, "count", body())[0] == 200
    until(lambda: 'outcome="cancelled",protocol="http"} 1.0' in proxy.metrics())
    assert caplog.text == ""


def test_answers_do_not_tell_what_they_are_made_with(proxy: Proxy) -> None:
    for path in ("/v2", "/v2/health/live", "/nothing"):
        assert get(proxy.options.http_port, path)[2]["server"] == "tritone"


def test_two_clients_with_one_stream_id_are_kept_apart(proxy: Proxy) -> None:
    port = proxy.options.http_port

    def say(client: str, samples: int, **flags: bool) -> tuple[int, str]:
        request = body([0.0] * samples, parameters={"sequence_id": 10086, **flags})
        return infer(port, "running", request, {"tritone-client": client} if client else None)

    assert say("ann", 10, sequence_start=True)[1].startswith("1 10 ")
    assert say("bob", 100, sequence_start=True)[1].startswith("1 100 ")
    assert say("ann", 10)[1].startswith("2 20 ")
    assert say("bob", 100)[1].startswith("2 200 ")
    status, told = say("ann", 10, sequence_start=True)
    assert (status, "open already" in told) == (409, True)
    assert say("ann", 10, sequence_end=True)[1].startswith("3 30 ")
    assert say("bob", 100, sequence_end=True)[1].startswith("3 300 ")
    assert proxy.open_streams == 0
    status, told = say("ann", 10)
    assert (status, "not open" in told) == (400, True)


def test_draining_refuses_what_is_new_and_lets_streams_end(proxy: Proxy) -> None:
    port = proxy.options.http_port

    def say(**flags: bool) -> tuple[int, str]:
        return infer(port, "running", body(parameters={"sequence_id": 5, **flags}))

    assert say(sequence_start=True)[0] == 200
    proxy.drain()
    assert get(port, "/v2/health/live")[0] == 200
    assert get(port, "/v2/health/ready")[0] == 503
    assert get(port, "/v2/models/count/ready")[0] == 503
    status, _, headers = post(port, "/v2/models/count/infer", json.dumps(body()).encode())
    assert (status, headers["retry-after"]) == (503, "5")
    assert not proxy.wait_idle(0.05)
    assert say()[0] == 200
    assert say(sequence_end=True)[0] == 200
    assert proxy.wait_idle(60)


def test_the_supervisor_says_whether_the_server_is_ready(proxy: Proxy) -> None:
    proxy.set_ready(False, "model 'count' is loaded again")
    status, answer, _ = get(proxy.options.http_port, "/v2/health/ready")
    assert (status, answer["error"]) == (503, "not ready: model 'count' is loaded again")
    proxy.set_ready(True)
    assert get(proxy.options.http_port, "/v2/health/ready")[0] == 200


def test_a_server_that_is_gone_is_told_with_a_hint(start: Start) -> None:
    port = start(upstream_http="127.0.0.1:9", upstream_grpc="127.0.0.1:9").options.http_port
    status, answer, headers = post(port, "/v2/models/count/infer", json.dumps(body()).encode())
    assert (status, headers["retry-after"]) == (503, "1")
    assert "may be restarting" in answer["error"]
    assert get(port, "/v2/health/ready")[0] == 503


def test_a_body_that_drips_is_given_up(start: Start) -> None:
    port = start(limits=Limits(body_grace_s=0.2)).options.http_port
    with socket.create_connection(("127.0.0.1", port), 20) as slow:
        slow.sendall(b"POST /v2/models/count/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_metrics_count_what_was_refused(start: Start, upstream: TritonServer) -> None:
    (port,) = free_ports(1)
    proxy = start(metrics_port=port, upstream_metrics=upstream.options.address("metrics"))
    infer(proxy.options.http_port, "count", body())
    get(proxy.options.http_port, "/v2/logging")
    told = get(port, "/metrics")[1].decode()
    assert 'tritone_proxy_requests_total{outcome="ok",protocol="http"} 1.0' in told
    assert 'tritone_proxy_requests_total{outcome="locked",protocol="http"} 1.0' in told
    assert "nv_inference_request_success" in told
    assert get(port, "/")[0] == 404


def test_metrics_have_the_times_of_requests_and_chunks_by_model(start: Start) -> None:
    (port,) = free_ports(1)
    proxy = start(metrics_port=port)
    for model, parameters in (("count", {}), ("running", {"sequence_id": 5, "sequence_start": True})):
        infer(proxy.options.http_port, model, body(parameters=parameters))
    infer(proxy.options.http_port, "nobody", body())
    told = list(samples(get(port, "/metrics")[1].decode().splitlines()))
    counts = {
        (labels["model"], labels["kind"]): n for name, labels, n in told if name.endswith("request_seconds_count")
    }
    assert counts == {("count", "request"): 1, ("running", "chunk"): 1}
    of_count = {float(each["le"]): n for name, each, n in told if name.endswith("_bucket") and each["model"] == "count"}
    assert 0 < (quantile(of_count, 0.5) or 0) <= 60
