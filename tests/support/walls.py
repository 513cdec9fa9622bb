"""What a file of the sources names, by its syntax: modules, identifiers, texts that are no docstrings; and which of
them stand in tables and comparisons."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tritone"
COMMAND = re.compile(r"`?tritone (export|inspect|build|serve)\b|docs/\w+/")
"""In texts that point to a command or a document, in which its name may stand."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """The full names of the modules, and names in them, that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def named(path: Path) -> frozenset[str]:
    """The identifiers of a file, and its strings that are no docstrings and point to no command, as words: lower case,
    divided by single spaces. The ends of file names, such as `.nemo`, are none."""
    return frozenset(_words(text) for text in _texts(tree_of(path)))


def occurs(name: str, path: Path) -> bool:
    """Has a file a name, in words?"""
    return any(f" {name} " in f" {words} " for words in named(path))


def in_tables(path: Path) -> frozenset[str]:
    """The texts of all tables of a file."""
    return frozenset().union(*tables(path))


@cache
def tables(path: Path) -> tuple[frozenset[str], ...]:
    """The texts that are elements or keys of each table: what a file's module and classes display, or a `Literal`."""
    displays = [
        node
        for statement in _outside_functions(tree_of(path))
        for node in ast.walk(statement)
        if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set)
    ]
    literals = [
        node.slice
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] == "Literal"
    ]
    elements = [node.keys if isinstance(node, ast.Dict) else node.elts for node in displays]
    return tuple(frozenset(_values(each for each in held if each is not None)) for held in [*elements, literals])


@cache
def compared(path: Path) -> frozenset[str]:
    """The texts with which a file compares something, also the beginnings of others."""
    found: list[ast.AST] = []
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Compare():
                found += [node.left, *node.comparators]
            case ast.MatchValue():
                found.append(node.value)
            case ast.Call(func=ast.Attribute(attr="startswith" | "removeprefix")):
                found += node.args
            case _:
                pass
    return frozenset(_values(found))


def _outside_functions(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module and its classes."""
    for each in getattr(node, "body", []):
        if isinstance(each, ast.ClassDef):
            yield from _outside_functions(each)
        elif isinstance(each, ast.stmt) and not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


def _values(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The texts that nodes are, or the elements of those that are tuples and the like; of s3:// the scheme."""
    for node in nodes:
        for each in [node, *getattr(node, "elts", [])]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str | bytes):
                text = each.value if isinstance(each.value, str) else each.value.decode("latin-1")
                yield text.removesuffix("://")


def _texts(tree: ast.Module) -> Iterator[str]:
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(getattr(node, "body", None), list)
        for statement in node.body  # type: ignore[attr-defined]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and not COMMAND.search(text):
                yield text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.alias(name=text):
                yield text
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text) | ast.ImportFrom(module=str(text)):
                yield text
            case ast.keyword(arg=str(text)):
                yield text
            case _:
                pass


def _words(text: str) -> str:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", re.sub(r"(?<![\w.])\*?\.\w+", " ", text))
    return " ".join(re.split(r"[^a-z0-9]+", apart.lower())).strip()
