"""How much of the code a process has in memory, and which of it runs: for tests of the core and of commands.

imported("import tritone; ...")  ->  the modules of ours in a fresh process after that
traced("tritone.load(...)")      ->  the files of ours whose functions run, in the order in which they are met
code_lines(path)                 ->  lines without blanks, comments and docstrings
"""

import ast
import inspect
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tritone"
NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)
IMPORTED = """
import json, sys
{code}
files = {{name: getattr(module, "__file__", None) for name, module in sys.modules.items()}}
ours = {{name: file for name, file in files.items() if file and name.split(".")[0] == "tritone"}}
print("\\n" + json.dumps([ours, sorted({{name.split(".")[0] for name in files}})]))
"""
# Function calls alone: the body of a module or class is no function, and what is called to make one runs before.
TRACED = """
import json, sys, threading
{before}
met = {{}}

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & {optimized} and code.co_filename.startswith({package!r}):
        met.setdefault(code.co_filename)

threading.setprofile(profile)
sys.setprofile(profile)
{code}
sys.setprofile(None)
print("\\n" + json.dumps(list(met)))
"""


def imported(code: str) -> tuple[dict[str, Path], frozenset[str]]:
    """What code imports in a fresh process: modules of ours with their files, and all packages by name."""
    ours, packages = _last_line(IMPORTED.format(code=code))
    return {name: Path(file) for name, file in ours.items()}, frozenset(packages)


def traced(before: str, code: str) -> list[Path]:
    """The files of ours, below `src/tritone`, whose functions code runs, once `before` has imported all; in order."""
    script = TRACED.format(before=before, code=code, optimized=inspect.CO_OPTIMIZED, package=f"{PACKAGE}/")
    return [Path(file).relative_to(PACKAGE) for file in _last_line(script)]


def _last_line(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@cache
def code_lines(path: Path) -> int:
    """Lines of a file that have code."""
    text = path.read_text(encoding="utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - set(_docstring_lines(ast.parse(text))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def imports_inside_functions(paths: Iterable[Path]) -> list[str]:
    """Each `import` statement inside a function, as "file:line"."""
    found = []
    for path in paths:
        functions = (
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        lines = {
            each.lineno
            for function in functions
            for each in ast.walk(function)
            if isinstance(each, ast.Import | ast.ImportFrom)
        }
        found += [f"{path.relative_to(ROOT)}:{line}" for line in sorted(lines)]
    return found
