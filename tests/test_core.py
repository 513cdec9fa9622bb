"""The core: the files that a recording meets, how little else a process imports for it, and what commands import."""

import ast
import re
from importlib import import_module

import pytest

from measured_code import PACKAGE, ROOT, code_lines, imported, imports_inside_functions, traced
from tritone.corpus.clips import read_clips
from tritone.later import MODULES
from tritone.pipelines.kind import built_in, kind_named

PAGE = ROOT / "docs" / "core.md"
LOAD = 'import tritone\nmodel = tritone.load("demo-asr")\n'
# Packages that a recording of a bundle on this machine has no business with.
NOT_CORE = (
    *("repository", "diarization", "texts", "formats", "inspection", "storage", "prepare", "evaluate"),
    *("families", "gateway", "kinds.synthesis"),
)
MOST_FILES, MOST_LINES = 95, 9000
MOST_IMPORTS_INSIDE_FUNCTIONS = 242
MOST_OF_A_COMMAND = 100


@pytest.fixture(scope="module")
def transcribing() -> str:
    return f"{LOAD}assert model.transcribe({str(read_clips()[0].path)!r}).text\n"


def test_the_page_of_the_core_has_the_files_that_a_recording_meets_in_their_order(transcribing: str) -> None:
    listed = re.findall(r"^1\. `([\w/]+\.py)`: [^\n]+\.$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [path.as_posix() for path in traced(transcribing, transcribing)]


def test_a_recording_needs_little_of_the_code_in_memory(transcribing: str) -> None:
    modules, _ = imported(transcribing)
    unwanted = [name for name in modules if any(f"{name}.".startswith(f"tritone.{each}.") for each in NOT_CORE)]
    assert unwanted == []
    lines = sum(map(code_lines, modules.values()))
    assert len(modules) <= MOST_FILES
    assert lines <= MOST_LINES


@pytest.mark.parametrize("arguments", ["--help", "transcribe --help", "export --help"])
def test_a_help_imports_little(arguments: str) -> None:
    modules, packages = imported(
        "import contextlib, io\n"
        "from tritone.cli.main import app\n"
        "with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):\n"
        f"    app({arguments.split()!r})\n"
        'assert "Usage: " in shown.getvalue()'
    )
    assert "onnxruntime" not in packages
    assert len(modules) <= MOST_OF_A_COMMAND, sorted(modules)


def test_few_imports_are_hidden_in_functions() -> None:
    found = imports_inside_functions(PACKAGE.rglob("*.py"))
    assert len(found) <= MOST_IMPORTS_INSIDE_FUNCTIONS


def test_each_name_of_the_table_is_used_and_is_the_module_that_type_checkers_see() -> None:
    used: set[str] = set()
    wrong: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        seen: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                seen |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if isinstance(node, ast.Assign) and (names := _names_in_table(node.value)):
                used |= set(names)
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
                for target, name in zip(targets, names, strict=True):
                    module = seen.get(
                        ast.unparse(target), MODULES[name] if path.name in ("loading.py", "paths.py") else ""
                    )
                    wrong += [f"{path}: {name}"] if module != MODULES[name] else []
    assert wrong == []
    assert used | {name for kind in built_in() for name in kind_named(kind).later} == set(MODULES)


def test_no_name_that_a_package_imports_on_first_use_is_a_module_of_it() -> None:
    """Who imported the module first would have it in place of the name."""
    taken = set()
    for path in PACKAGE.rglob("__init__.py"):
        if "attributes(" in path.read_text(encoding="utf-8"):
            package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
            taken |= {f"{package}.{each.stem}" for each in path.parent.iterdir()} & {
                f"{package}.{name}" for name in import_module(package).__all__
            }
    # The first is a module by its name, too; the second nobody imports but the package.
    assert taken == {"tritone.errors", "tritone.texts.tidy"}


def _names_in_table(value: ast.expr) -> list[str]:
    calls = value.elts if isinstance(value, ast.Tuple) else [value]
    return [
        ast.literal_eval(call.args[0])
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "later" and isinstance(call.args[0], ast.Constant)
    ]
