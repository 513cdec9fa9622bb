"""Names in backticks of docstrings are those of something: a file, a module, or an identifier of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tritone"
ROOT = PACKAGE.parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
# Of what others call so, and of forms of names.
OTHERS = {
    *("next_x", "streaming_forward", "vector_mean", "score.py", "model.py", "generate_perf_input.py"),
    *("english_cleaners", "generate_with_fallback", "_beam_search"),
}
QUOTED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w/]+\.py")
DOTTED = re.compile(r"(?:tritone\.)?([a-z_]+(?:\.\w+)+)")
PRIVATE_OR_JOINED = re.compile(r"_?[a-z]+(?:_[a-z0-9]+)+|_[a-z]+")


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@cache
def words_of_code() -> frozenset[str]:
    """All identifiers, and words of strings that are no docstrings, in source and tests."""
    found: set[str] = set()
    for folder in (PACKAGE, ROOT / "tests"):
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.update(path.relative_to(folder).with_suffix("").parts)
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                        found.add(name)
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        found.add(name)
                    case ast.keyword(arg=str(name)):
                        found.add(name)
                    case ast.Constant(value=str(text)) if id(node) not in alone:
                        found.update(re.findall(r"\w+", text))
    return frozenset(found)


def is_known(word: str, path: Path) -> bool:
    if FILE.fullmatch(word):
        places = (ROOT, PACKAGE, *path.parents[: len(path.relative_to(PACKAGE).parts)])
        return any((place / word).exists() for place in places)
    if (dotted := DOTTED.fullmatch(word)) and dotted[1].split(".")[0] in ROOMS:
        parts = dotted[1].split(".")
        place = PACKAGE
        for index, part in enumerate(parts):
            if (place / part).is_dir():
                place /= part
            elif (place / f"{part}.py").is_file():
                return all(each in words_of_code() for each in parts[index + 1 :])
            else:
                return (
                    all(each in words_of_code() for each in parts[index:]) and index > 0 and word.startswith("tritone.")
                )
        return True
    return not PRIVATE_OR_JOINED.fullmatch(word) or word in words_of_code()


def test_names_in_docstrings_are_those_of_something() -> None:
    stale = [
        f"{path.relative_to(PACKAGE)}: `{word}`"
        for path in FILES
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        for word in QUOTED.findall(text.partition("Source:")[0])  # whose names are those of upstreams
        if word not in OTHERS and not is_known(word, path)
    ]
    assert stale == []
