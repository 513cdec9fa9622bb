"""Tritone's own client behind the proxy: 16-bit audio, and shared memory for those who have the key."""

import numpy as np
import pytest

from proxied import KEY
from tritone.client import Client
from tritone.errors import InputError, OperatorError
from tritone.proxy import Proxy

RAMP = np.arange(-4000, 4000, dtype=np.int16)
SAID = f"PCM 8000 {(RAMP / 32768).sum()!r}"


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_audio_passes_in_messages_and_in_shared_memory(proxy: Proxy, protocol: str) -> None:
    port = proxy.options.grpc_port if protocol == "grpc" else proxy.options.http_port
    url = f"{protocol}://127.0.0.1:{port}"
    with Client(url) as client:
        assert client.transcribe(RAMP, "either").text == SAID
    with Client(url, key=KEY, shared_memory="system") as client:
        assert [each.text for each in client.transcribe([RAMP] * 4, "either")] == [SAID] * 4
    with Client(url, key="guess", shared_memory="system") as client, pytest.raises(InputError, match="does not fit"):
        client.transcribe(RAMP, "either")


def test_a_region_that_the_server_cannot_open_is_told(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tritone.client.regions.SystemRegion.registration", {"key": "/tritone-client-0", "byte_size": 9}
    )
    with (
        Client(f"127.0.0.1:{proxy.options.grpc_port}", key=KEY, shared_memory="system") as client,
        pytest.raises(OperatorError, match="Unable to open shared memory region: '/tritone-client-0'"),
    ):
        client.transcribe(RAMP, "either")
