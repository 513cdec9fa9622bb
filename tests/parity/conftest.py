"""Parity tests run once per golden case found below the folders of `--golden`."""

from pathlib import Path

import pytest

from parity.exports import Exports
from parity.golden_cases import DEFAULT_FOLDERS, Case, find_cases

KINDS = {
    "wenet_case": "wenet",
    "streaming_case": "wenet_streaming",
    "ctc_search_case": "ctc_search",
    "fbank_case": "fbank",
}


def golden_folders(config: pytest.Config) -> list[Path]:
    given = config.getoption("--golden")
    if not given:
        return list(DEFAULT_FOLDERS)
    folders = [Path(folder) for folder in given]
    for folder in folders:
        if not folder.is_dir():
            raise pytest.UsageError(f"--golden {folder} is not a folder")
    return folders


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, kind in KINDS.items():
        if fixture in metafunc.fixturenames:
            cases = find_cases(golden_folders(metafunc.config), kind)
            metafunc.parametrize(fixture, cases, ids=[case.name for case in cases], scope="module")


EXPORTS = pytest.StashKey[Exports]()
EXPORTS_S = 900  # all of them, on a machine that has much else to do


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the exports that tests will ask for."""
    items = [item for item in session.items if isinstance(item, pytest.Function) and "exported" in item.fixturenames]
    for item in items:
        item.add_marker(pytest.mark.timeout(EXPORTS_S))
    if items and not session.config.option.collectonly:
        values = [value for item in items if hasattr(item, "callspec") for value in item.callspec.params.values()]
        exports = session.config.stash[EXPORTS] = Exports()
        exports.begin(value for value in values if isinstance(value, Case))


def pytest_unconfigure(config: pytest.Config) -> None:
    if EXPORTS in config.stash:
        config.stash[EXPORTS].close()


@pytest.fixture(scope="session")
def exported(pytestconfig: pytest.Config) -> Exports:
    """Bundles of golden cases that take features in place of samples; each is exported once for all tests."""
    return pytestconfig.stash[EXPORTS]
