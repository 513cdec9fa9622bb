import pytest

from tritone.client.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("localhost:8001", None, "grpc://localhost:8001"),
        ("localhost", None, "grpc://localhost:8001"),
        ("localhost:8000", "http", "http://localhost:8000"),
        ("localhost", "http", "http://localhost:8000"),
        ("grpc://10.0.0.1:9001", "grpc", "grpc://10.0.0.1:9001"),
        ("http://h:1/asr/", None, "http://h:1/asr"),
        ("https://h", None, "https://h:443"),
        ("grpcs://h", None, "grpcs://h:443"),
        ("[::1]:8001", None, "grpc://[::1]:8001"),
        ("http://[::1]:8000/asr", None, "http://[::1]:8000/asr"),
        ("[2001:db8::2]", "http", "http://[2001:db8::2]:8000"),
    ],
)
def test_a_url_says_protocol_host_and_port(url: str, protocol: str | None, expected: str):
    assert str(Endpoint.parse(url, protocol)) == expected


@pytest.mark.parametrize(
    ("url", "protocol", "complaint"),
    [
        ("ftp://h:1", None, "unknown scheme 'ftp'"),
        ("http://h:1", "grpc", "speaks http"),
        ("h:1", "udp", "must be 'grpc' or 'http'"),
        (":8001", None, "names no host"),
        ("::1", None, r"stands in brackets; write \[::1\]:8001"),
        ("::1:8001", "http", "stands in brackets"),
        ("http://2001:db8::2:8000", None, "stands in brackets"),
        ("", None, "names no host"),
        ("h:port", None, "must be a number"),
        ("h:99999", None, "must be a number"),
        ("grpc://h:1/path", None, "only scheme, host and port"),
        ("http://user@h:1", None, "only scheme, host and port"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_the_reason(url: str, protocol: str | None, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        Endpoint.parse(url, protocol)


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.2", True), ("[::1]", True), ("h", False)]
)
def test_loopback_is_recognised(host: str, expected: bool):
    assert Endpoint.parse(f"{host}:1").is_loopback is expected
