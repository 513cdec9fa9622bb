"""Parity tests run once per golden case found below the folders of `--golden`."""

from pathlib import Path

import pytest

from parity.front_end import export_case
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
            metafunc.parametrize(fixture, cases, ids=[case.name for case in cases], scope="session")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """Bundles of golden cases that take features in place of samples; each is exported once for all tests."""
    bundles: dict[str, Path] = {}

    def get(case: Case) -> Path:
        if case.name not in bundles:
            bundles[case.name] = export_case(case, tmp_path_factory.mktemp("exported") / "bundle")
        return bundles[case.name]

    return get
