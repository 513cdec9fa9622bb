"""Servers for the commands: toy models that answer with arithmetic, and the toy bundle as `tritone build` serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tritone.repository import build_repository
from tritone.search.prefix_beam import compile_search
from tritone.server import TritonServer
from wire_toys import running_server, toy_server


@pytest.fixture(scope="session")
def wire_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with toy_server(tmp_path_factory.mktemp("repository"), "count", "running") as server:
        yield server


@pytest.fixture(scope="session")
def served_toy(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    compile_search()  # else the first request that asks for a beam would wait for it
    repository = tmp_path_factory.mktemp("repository")
    build_repository([toy_bundle], repository)
    with running_server(repository) as server:
        yield server
