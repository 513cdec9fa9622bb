"""TLS and mutual TLS, and what is said where it does not work. Certificates are made here."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

from certificates import write_certificates
from fronts import Front, ServerTls
from tritone.client import AsyncClient, Client
from tritone.errors import OperatorError, ServerUnreachableError, TritoneError
from tritone.server import TritonServer
from wire_toys import toy_server

PROTOCOLS = ["grpc", "http"]
SOUND = np.ones(800, np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("certificates"))


def front(server: TritonServer | None, protocol: str, files: Path, name: str, *, mutual: bool = False) -> Front:
    tls = ServerTls(str(files / f"{name}.pem"), str(files / f"{name}.key"), str(files / "ca.pem") if mutual else None)
    return Front(server, protocol, tls=tls)


def own(files: Path, name: str) -> dict[str, Path]:
    return {"certificate": files / f"{name}.pem", "private_key": files / f"{name}.key"}


def refusal(url: str, files: Path, ca: str | None = "ca.pem", **options: object) -> TritoneError:
    """The error of a client that trusts this authority."""
    trusted = {} if ca is None else {"ca": files / ca}
    with Client(url, timeout_s=20, **trusted, **options) as client, pytest.raises(TritoneError) as caught:  # type: ignore[arg-type]
        client.models()
    return caught.value


@pytest.fixture(scope="module")
def locked(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton whose gRPC wants certificates of clients."""
    extra = (
        "--grpc-use-ssl=1",
        "--grpc-use-ssl-mutual=1",
        f"--grpc-server-cert={files / 'good.pem'}",
        f"--grpc-server-key={files / 'good.key'}",
        f"--grpc-root-cert={files / 'ca.pem'}",
    )
    with toy_server(tmp_path_factory.mktemp("repository"), "count", extra=extra) as server:
        yield server


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_triton_itself_answers_a_client_with_a_certificate_by_grpc_and_no_other(
    locked: TritonServer, files: Path, host: str
):
    url = f"grpcs://{host}:{locked.options.grpc_port}"
    with Client(url, ca=files / "ca.pem", **own(files, "me")) as client:
        assert client.transcribe(SOUND, "count").text == "800 800.0"
    assert "give certificate and private_key" in str(refusal(url, files))
    stranger = refusal(url, files, **own(files, "stranger"))
    assert isinstance(stranger, ServerUnreachableError)
    assert "may not be one that the server trusts" in str(stranger)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual tls"])
def test_requests_and_streams_travel_by_tls(wire_server: TritonServer, files: Path, protocol: str, mutual: bool):
    certificates = own(files, "me") if mutual else {}
    with (
        front(wire_server, protocol, files, "good", mutual=mutual) as proxy,
        Client(proxy.url, ca=files / "ca.pem", **certificates) as client,
    ):
        assert client.transcribe(SOUND, "count").text == "800 800.0"
        with client.stream("running") as stream:
            assert stream.finish().is_final

        async def by_a_task() -> None:
            async with AsyncClient(proxy.url, ca=files / "ca.pem", **certificates) as others:
                assert (await others.transcribe(SOUND, "count")).text == "800 800.0"
                async with await others.stream("running") as stream:
                    assert (await stream.finish()).is_final

        asyncio.run(by_a_task())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_authority_that_signed_nothing_here_is_named(files: Path, protocol: str):
    with front(None, protocol, files, "good") as proxy:
        wrong = refusal(proxy.url, files, ca="other.pem")
        assert isinstance(wrong, OperatorError)
        assert f"not signed by an authority of {files / 'other.pem'}; give" in str(wrong)
        assert "not signed by an authority that this system trusts" in str(refusal(proxy.url, files, ca=None))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("name", "complaint"), [("foreign", "is for another name than 'localhost'"), ("expired", "has expired")]
)
def test_a_certificate_of_another_name_or_of_the_past_is_told(files: Path, protocol: str, name: str, complaint: str):
    if protocol == "grpc" and Version(version("grpcio")) < Version("1.76"):
        pytest.skip("this grpcio does not say why a certificate is refused")
    with front(None, protocol, files, name) as proxy:
        error = refusal(proxy.url, files)
    assert isinstance(error, OperatorError)
    assert complaint in str(error)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_or_unknown_client_certificate_is_told(files: Path, protocol: str):
    with front(None, protocol, files, "good", mutual=True) as proxy:
        assert "give certificate and private_key" in str(refusal(proxy.url, files))
        stranger = refusal(proxy.url, files, **own(files, "stranger"))
    assert "may not be one that the server trusts" in str(stranger)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tls_and_none_that_meet_name_the_url_to_use(wire_server: TritonServer, files: Path, protocol: str):
    with front(None, protocol, files, "good") as proxy:
        plain = proxy.url.replace(f"{protocol}s://", f"{protocol}://")
        assert "f it uses TLS" in (said := str(refusal(plain, files, ca=None)))
        assert proxy.url in said
    address = wire_server.options.address(protocol)
    assert f"That port does not use TLS, it seems: use {protocol}://{address}" in str(
        refusal(f"{protocol}s://{address}", files)
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"ca": "missing.pem"}, "ca: .*missing.pem cannot be read"),
        ({"ca": "me.key"}, "ca: .*me.key has no certificate in PEM form"),
        ({"certificate": "me.pem"}, "certificate and private_key go together"),
        ({"certificate": "me.pem", "private_key": "good.key"}, "do not belong together"),
        ({"certificate": "me.key", "private_key": "me.key"}, "are not a certificate and a key in PEM form"),
        ({"certificate": "me.pem", "private_key": "secret.key"}, "the private key has a passphrase"),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_anything_is_sent(files: Path, given: dict, complaint: str):
    paths = {name: files / file for name, file in given.items()}
    for url in ("grpcs://localhost:1", "https://localhost:1"):
        with pytest.raises(ValueError, match=complaint):
            Client(url, **paths)


def test_files_without_tls_are_refused_not_ignored(files: Path):
    with pytest.raises(ValueError, match=r"uses no TLS, so ca would not be looked at; write grpcs://"):
        Client("localhost:8001", ca=files / "ca.pem")
