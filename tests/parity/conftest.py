"""Parity tests run once per golden case found below the folders of `--golden`."""

from pathlib import Path

import pytest

from background import background, be_patient
from parity.front_end import export_case, export_icefall_case, export_jasper_case, export_wespeaker_case
from parity.golden_cases import DEFAULT_FOLDERS, Case, find_cases

KINDS = {
    "wenet_case": "wenet",
    "streaming_case": "wenet_streaming",
    "ctc_search_case": "ctc_search",
    "fbank_case": "fbank",
    "icefall_fbank_case": "icefall_fbank",
    "icefall_case": "icefall",
    "icefall_offline_case": "icefall_offline",
    "icefall_streaming_case": "icefall_streaming",
    "conformer_case": "icefall_conformer",
    "conformer_streaming_case": "icefall_conformer_streaming",
    "zipformer_case": "icefall_zipformer",
    "zipformer_streaming_case": "icefall_zipformer_streaming",
    "jasper_case": "jasper",
    "scoring_case": "scoring",
    "wespeaker_case": "wespeaker",
    "wespeaker_features_case": "wespeaker_features",
}
EXPORTS = {
    "train.yaml": export_case,
    "pretrained.pt": export_icefall_case,
    "checkpoint.pt": export_jasper_case,
    "avg_model.pt": export_wespeaker_case,
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


class Exports:
    """Bundles of golden cases that take features in place of samples; each is exported once for all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._background = background(config)

    def begin(self, case: Case) -> None:
        """Have a case exported."""
        export = next(export for file, export in EXPORTS.items() if (case.path / file).is_file())
        self._background.begin(case.name, export, case, self._background.folder / case.name / "bundle")

    def __call__(self, case: Case) -> Path:
        """The bundle of a case, when it is ready."""
        self.begin(case)
        bundle: Path = self._background.result(case.name)
        return bundle


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the exports that tests will ask for."""
    items = [item for item in session.items if isinstance(item, pytest.Function) and "exported" in item.fixturenames]
    for item in items:
        be_patient(item)
        if hasattr(item, "callspec") and not session.config.option.collectonly:
            for value in item.callspec.params.values():
                if isinstance(value, Case):
                    Exports(session.config).begin(value)


@pytest.fixture(scope="session")
def exported(pytestconfig: pytest.Config) -> Exports:
    return Exports(pytestconfig)
