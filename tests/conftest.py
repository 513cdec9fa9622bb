"""Fixtures for all tests. Pytest puts this folder on the path, so tests import the toy model with `import toy`."""

from pathlib import Path

import hypothesis
import pytest

from toy import write_toy_bundle

# The same examples in every run, and no time limit per example: test machines are busy.
hypothesis.settings.register_profile("tritone", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tritone")


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy bundle with both roles; read-only by agreement."""
    return write_toy_bundle(tmp_path_factory.mktemp("bundles") / "toy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        action="append",
        metavar="DIR",
        help="folder with golden cases for tests/parity, searched at any depth; may be given several times. "
        "Default: tests/golden, and shared/golden beside the repository where it exists.",
    )
