"""Parity tests run once per golden case found below the folders of `--golden`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from parity.front_end import export_case, export_icefall_case, export_jasper_case, export_wespeaker_case
from parity.golden_cases import DEFAULT_FOLDERS, Case, find_cases
from shared import Shared
from tritone.bundle.manifest import Runtime

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
            # The smallest of each kind is exported in quick runs.
            least = min(cases, key=lambda case: case.num_bytes, default=None)
            slow = pytest.mark.slow if "exported" in metafunc.fixturenames else ()
            values = [case if case is least else pytest.param(case, marks=slow) for case in cases]
            metafunc.parametrize(fixture, values, ids=[case.name for case in cases], scope="module")


@pytest.fixture(scope="session")
def exported(shared: Shared) -> Callable[..., Path]:
    """Bundles of golden cases that take features in place of samples; each is exported once for all tests."""

    def bundle(case: Case, runtime: Runtime = "onnxruntime") -> Path:
        """Of WeNet's cases the bundle for a runtime, of others one for all of theirs."""
        if (case.path / "train.yaml").is_file():
            return shared(f"{case.name}-{runtime}", lambda folder: export_case(case, folder / "bundle", runtime))
        export = next(export for file, export in EXPORTS.items() if (case.path / file).is_file())
        return shared(case.name, lambda folder: export(case, folder / "bundle"))

    return bundle
