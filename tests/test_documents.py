"""The documents against the tree: links, headings, paths, modules and make targets that they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tritone"
FOLDERS = ("docs", "src", "training", "benchmarks")
IGNORED = (".venv", "training/data", "training/runs")  # what is made here, in .gitignore
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    if not path.relative_to(ROOT).as_posix().startswith(IGNORED)
)
UPSTREAM = ("runtime/gpu", "runtime/server")  # folders of WeNet's repository, beside our `runtime/`
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
MODULE = re.compile(r"python -m ((?:benchmarks|training)(?:\.\w+)*)")
CONFLICT = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
TARGET = re.compile(r"^make ([a-z][a-z-]*)", re.MULTILINE)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paths(text: str) -> Iterator[str]:
    """What stands in backticks and begins with a folder of the project or of the package."""
    folders = {each.name for root in (ROOT, PACKAGE) for each in root.iterdir() if each.is_dir()} | {"tritone"}
    for code in CODE.findall(FENCE.sub("", text)):
        for word in code.split():
            ours = PATH.fullmatch(word) and "/" in word and word.split("/")[0] in folders
            if ours and not word.startswith((*IGNORED, *UPSTREAM)):
                yield word


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    wrong = []
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = (document.parent / name) if name else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_no_merge_was_left_half_done(document: Path) -> None:
    assert not CONFLICT.search(document.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_of_the_project_exists(document: Path) -> None:
    roots = (ROOT, PACKAGE, PACKAGE.parent, document.parent)
    wrong = [
        word
        for word in paths(document.read_text(encoding="utf-8"))
        if not any((root / word).exists() for root in roots)
    ]
    assert wrong == []


def test_the_picture_of_the_house_has_every_room_once() -> None:
    picture = FENCE.findall((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))[0]
    assert sorted(re.findall(r"\b(\w+)/", picture)) == sorted(
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    )


def test_every_module_that_the_design_names_exists() -> None:
    names = re.findall(r"`(\w+\.py)`", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    assert set(names) - {path.name for path in PACKAGE.rglob("*.py")} == set()


def test_every_module_and_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for module in MODULE.findall(text):
            file = ROOT / module.replace(".", "/")
            if not (file.with_suffix(".py").is_file() or (file / "__main__.py").is_file()):
                wrong.append(f"{named(document)}: python -m {module}")
        blocks = "\n".join(FENCE.findall(text))
        wrong += [f"{named(document)}: make {name}" for name in TARGET.findall(blocks) if name not in targets]
    assert wrong == []


def test_pictures_are_small_enough_for_a_clone() -> None:
    pictures = [path for path in (ROOT / "docs" / "pictures").iterdir() if path.suffix in (".png", ".svg")]
    assert pictures
    assert {path.name: path.stat().st_size for path in pictures if path.stat().st_size > 200 * 1024} == {}
