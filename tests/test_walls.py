"""Families are folders that can be taken out: nobody else imports one or has its name in the code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from walls import PACKAGE, imported, occurs

FAMILIES = sorted(path.parent.name for path in (PACKAGE / "families").glob("*/family.py"))
ORDINARY = {"generic", "hf"}
"""Folders whose names are ordinary words: only imports count."""
OF_KINDS = {"whisper", "moonshine", "wenet", "sherpa_onnx"}
"""Folders with the name of a kind or a protocol, which have walls of their own."""

TENSORS = "the names of tensors of NVIDIA's own deployment of it, a layout of repositories"
WRITTEN = "the rules of NVIDIA's package nemo-text-processing, as users name them"
LIGHTNING = "checkpoints that pyannote.audio's trainer wrote, of a network that is this family's"
ALLOWED = {
    ("jasper", "cli/build.py"): TENSORS,
    ("jasper", "repository/ensemble.py"): TENSORS,
    ("jasper", "repository/stage_config.py"): TENSORS,
    ("jasper", "families/nemo/config.py"): "the key of a config that says that it is not this family's",
    ("nemo", "texts/nemo.py"): WRITTEN,
    ("nemo", "texts/options.py"): WRITTEN,
    ("nemo", "texts/tidy.py"): WRITTEN,
    ("pyannote", "families/wespeaker/checkpoint.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/family.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/lightning.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/options.py"): LIGHTNING,
    ("pyannote", "cli/shared/turn_errors.py"): "the package pyannote.metrics, whose way of counting it is",
}
"""Files that may name a family, with the reason; the list may only shrink."""
MOST_ALLOWED = 12


def _outside(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_imports_a_family_or_has_its_name(family: str) -> None:
    module, name = f"tritone.families.{family}", family.replace("_", " ")
    seen = set()
    for path in _outside(PACKAGE / "families" / family):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        if family not in ORDINARY | OF_KINDS and occurs(name, path):
            seen.add((family, place))
    assert seen == {each for each in ALLOWED if each[0] == family}


def test_what_is_allowed_only_shrinks() -> None:
    assert len(ALLOWED) <= MOST_ALLOWED
