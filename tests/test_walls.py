"""Families and stores are folders that can be taken out: nobody else imports one or has its name in the code."""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tritone.corpus.clips import read_clips
from tritone.families.known import families
from walls import PACKAGE, compared, imported, in_tables, occurs

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


@pytest.mark.parametrize("name", sorted(families()))
def test_a_family_says_where_its_document_is(name: str) -> None:
    assert (PACKAGE.parents[1] / families()[name].page).is_file()


STORES = sorted(path.parent.name for path in (PACKAGE / "storage").glob("*/scheme.py"))
IN_TABLES = {("az", "families/whisper/tokens.py"): "the code of the language Azerbaijani"}
"""Files that may have the scheme of a store in a table, with the reason; the list may only shrink."""
MOST_IN_TABLES = 1


@pytest.mark.parametrize("store", STORES)
def test_nobody_imports_a_store_or_has_its_scheme_in_a_table_or_compares_with_it(store: str) -> None:
    module, seen = f"tritone.storage.{store}", set()
    for path in _outside(PACKAGE / "storage" / store):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        assert store not in compared(path), place
        if store in in_tables(path):
            seen.add((store, place))
    assert seen == {each for each in IN_TABLES if each[0] == store}
    assert len(IN_TABLES) <= MOST_IN_TABLES


TAKEN_OUT = ("resemblyzer", "funasr", "nemo")
STORES_OUT = ("gs", "az", "hf")
IMPORT_ALL = """
import importlib, pkgutil, sys
import tritone
wrong = []
for each in pkgutil.walk_packages(tritone.__path__, "tritone.", onerror=lambda name: None):
    if each.name.endswith("._fused"):  # a library
        continue
    try:
        importlib.import_module(each.name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tritone"):
            wrong.append(f"{each.name}: {error}")
    except ImportError as error:
        wrong.append(f"{each.name}: {error}")
print("\\n".join(wrong))
print(len(tritone.load("demo-asr").transcribe([sys.argv[1]])[0].get().text))
"""
LOAD_ALL = """
import sys, tritone
for address in sys.argv[1:]:
    try:
        tritone.load(address)
    except tritone.TritoneError as error:
        print(error)
"""


@pytest.mark.slow
def test_families_and_stores_are_taken_out_for_real(tmp_path: Path) -> None:
    """Three families, three more by the seed of the day, and stores: all else is imported, printed and loaded."""
    seed = date.today().isoformat()
    others = [each for each in FAMILIES if each not in TAKEN_OUT and each != "generic"]
    gone = [*TAKEN_OUT, *random.Random(seed).sample(others, 3)]
    sys.stdout.write(f"seed {seed}: {', '.join(gone)} are taken out\n")
    shutil.copytree(PACKAGE, tmp_path / "tritone", ignore=shutil.ignore_patterns("__pycache__"))
    for each in gone:
        shutil.rmtree(tmp_path / "tritone" / "families" / each)
    for each in STORES_OUT:
        shutil.rmtree(tmp_path / "tritone" / "storage" / each)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=99)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    wrong, length = run("-c", IMPORT_ALL, str(read_clips()[0].path)).rsplit("\n", 2)[:2]
    assert wrong == ""
    assert int(length) > 0
    command = ("-c", "from tritone.cli.main import app; app(prog_name='tritone')")
    listed = re.findall(
        r"^  ([a-z][a-z-]+) ", run(*command, "export", "--help").partition("Commands:")[2], re.MULTILINE
    )
    names = {each: each.replace("_", "-") for each in FAMILIES}
    assert set(names.values()) - set(listed) - {"generic"} == {names[each] for each in gone}
    assert "CTC" in run(*command, "inspect", "demo-asr")
    assert "s3://BUCKET/FOLDER, or a folder" in " ".join(run(*command, "repo", "push", "--help").split())
    told = run("-c", LOAD_ALL, *(f"{each}://owner/name" for each in STORES_OUT)).splitlines()
    for each, message in zip(STORES_OUT, told, strict=True):
        head, _, known = message.partition(" is not supported here. ")
        assert head == f"{each}://owner/name: a path with the scheme {each}://"
        assert set(re.findall(r"(\w+)://", known)) == {"s3"}
