"""Which modules are protocols."""

import sys
from pathlib import Path

import pytest

from tritone.gateway import protocols


def test_a_module_is_a_protocol_if_it_has_routes_or_a_server_and_helpers_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"deepgram", "openai", "page", "riva", "sherpa_onnx", "sherpa_onnx_offline"}
    ours |= {"stream", "vosk", "wenet", "wyoming"}
    assert protocols.all_protocols().keys() == ours
    for name, text in (
        ("toy_routes", "def routes(gateway): return []"),
        ("toy_server", "async def serve(gateway, address): ..."),
        ("toy_helper", "def words(text): return text.split()"),
    ):
        (tmp_path / f"{name}.py").write_text(text + "\n", encoding="utf-8")
        monkeypatch.delitem(sys.modules, f"{protocols.__name__}.{name}", raising=False)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    assert protocols.all_protocols().keys() == ours | {"toy_routes", "toy_server"}
    for name in ("toy_routes", "toy_server", "toy_helper"):
        monkeypatch.delitem(sys.modules, f"{protocols.__name__}.{name}")
        monkeypatch.delattr(protocols, name)
