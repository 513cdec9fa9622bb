"""Protocols and their pages: ours, and those of other packages."""

import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tritone import pages
from tritone.cli import gateway as command
from tritone.errors import ServerSetupError
from tritone.gateway import GatewayOptions
from tritone.gateway.protocol import Protocol
from tritone.gateway.protocols import all_protocols
from tritone.gateway.server import GatewayServer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(all_protocols()))
def test_a_page_names_the_document_and_the_addresses_of_its_protocol(name: str, gateway: GatewayServer) -> None:
    protocol = all_protocols()[name]
    assert (ROOT / protocol.page).is_file()
    routes = protocol.all_routes(gateway.gateway)
    assert tuple(dict.fromkeys(each.path for each in routes)) == protocol.paths  # type: ignore[attr-defined]
    assert not protocol.port or protocol.serve or protocol.paths
    assert not protocol.serve or callable(protocol.server)


def test_the_document_has_all_protocols_in_a_table() -> None:
    text = (ROOT / "docs" / "applications" / "gateway.md").read_text(encoding="utf-8")
    for each in all_protocols().values():
        paths = ", ".join(f"`{path}`" for path in each.paths) or "–"
        port = f"`--{each.port_name.replace('_', '-')}`" if each.port else "–"
        document = each.page.rpartition("/")[2]
        assert f"| {each.what} | {paths} | {port} | [{document}]({document}) |" in text


Install = Callable[[str], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """Installs a package with a protocol of a name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tidy_protocol", raising=False)

    def add(name: str) -> None:
        (tmp_path / "tidy_protocol.py").write_text(
            "from tritone.gateway.protocol import Protocol\n"
            f"PROTOCOL = Protocol(name={name!r}, package='tidy_protocol', interface={Protocol.INTERFACE},\n"
            "    what='Tidy.', paths=('/tidy',), routes=('nowhere:routes',), port='Port of it.')\n",
            encoding="utf-8",
        )
        point = EntryPoint("tidy", "tidy_protocol:PROTOCOL", Protocol.GROUP)
        monkeypatch.setattr(pages, "entry_points", lambda group: [point] if group == Protocol.GROUP else [])
        all_protocols.cache_clear()

    yield add
    all_protocols.cache_clear()


def test_a_protocol_of_a_package_is_known_and_one_whose_code_fails_harms_nobody(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    ours = set(all_protocols())
    install("tidy")
    assert set(all_protocols()) == ours | {"tidy"}
    with caplog.at_level(logging.WARNING), GatewayServer(GatewayOptions(triton="127.0.0.1:9", port=0)).background():
        assert "tidy_protocol, which has the protocol 'tidy', fails as its routes are made: ModuleNot" in caplog.text


@pytest.mark.parametrize("name", ["http", "metrics", "two words"])
def test_a_name_that_cannot_be_one_of_a_protocol_is_left_out(
    install: Install, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    ours = dict(all_protocols())
    install(name)
    with caplog.at_level(logging.WARNING):
        assert dict(all_protocols()) == ours
    assert re.search(f"'tidy' of the package .* cannot be loaded .*'{name}' cannot name a protocol", caplog.text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Options:\n    tidy_speed: int = option(1, 'How fast.')", ""),
        ("class Options:\n    speed: int = option(1, 'How fast.')", "options of tidy begin with tidy_, got speed"),
        ("class Other:\n    tidy_speed: int = option(1, 'How fast.')", "has no attribute 'Options'"),
    ],
)
def test_options_of_a_package_that_cannot_be_used_are_left_out(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    head = "from dataclasses import dataclass\nfrom tritone.options.fields import option\n@dataclass\n"
    (tmp_path / "tidy_package").mkdir()
    (tmp_path / "tidy_package" / "options.py").write_text(f"{head}{text}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for each in ("tidy_package", "tidy_package.options"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    tidy = Protocol(name="tidy", package="tidy_package", interface=1, what="Tidy.", options="options:Options")
    monkeypatch.setattr(command, "PROTOCOLS", [tidy])
    with caplog.at_level(logging.WARNING):
        found = command._option_classes()
    assert [each.name for kind in found.values() for each in fields(kind)] == ([] if said else ["tidy_speed"])
    assert said in caplog.text


def test_options_of_a_protocol_that_there_is_not_are_an_error() -> None:
    with (
        pytest.raises(ServerSetupError, match="there is no protocol pages; there are "),
        GatewayServer(GatewayOptions(triton="127.0.0.1:9", port=0, protocols={"pages": object()})).background(),
    ):
        pass
