"""The packages of docs/design.md: who imports whom, and what an import costs."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tritone.client import transport
from tritone.pipelines import wire

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tritone"
# Modules beside the packages that every package may use.
FOR_ALL = {
    "activity",
    "bfloat16",
    "container",
    "errors",
    "installing",
    "keys",
    "later",
    "pages",
    "paths",
    "preparing",
    "result",
    "transcript",
    "yaml_text",
}
PACKAGES = re.findall(
    r"^\| `(\w+)/(?:<\w+>/)?` \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE
)

# Packages that only one package may import, and who of the packages below may be imported by few.
OWNERS = {
    "torch": {"families", "runtime", "search"},  # of search only `device/`, see below
    "triton": {"search"},
    "onnx": {"families", "runtime", "tensorrt"},
    "onnxscript": {"families"},
    "onnxruntime": {"runtime", "families"},  # of families only `convert/`, for its converters, see below
    "triton_python_backend_utils": {"backend"},
    "typer": {"cli"},
    "soundfile": {"audio"},
    "av": {"audio"},
    "jinja2": {"report"},
    "rapidfuzz": {"evaluate"},
    "obstore": {"storage"},
    "huggingface_hub": {"storage"},
    "matplotlib": {"report", "loadtest"},  # report gives every figure its look, the others draw on it
    "ray": {"systems"},
    "starlette": {"gateway"},
    "uvicorn": {"net"},
}


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """The full names of all modules that a file imports, also inside of functions and for type checkers."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            # `from tritone import errors` imports a module, `from tritone.errors import X` a name
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def room(parts: Sequence[str]) -> str:
    """The package of a module: a kind's part of the manifest is data, and stands with bundles wherever its file is."""
    return "bundle" if parts[0] == "kinds" and "part" in parts[2:3] else parts[0]


def edges() -> Iterator[tuple[Path, str, str]]:
    """File, its package, and the package or module of `tritone` that it imports."""
    for path in sources():
        package = room(path.relative_to(PACKAGE).with_suffix("").parts)
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "tritone" and len(parts) > 1:
                yield path, package, room(parts[1:])


def test_the_design_tells_of_every_package_and_of_no_other() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(PACKAGES) == folders
    assert len(PACKAGES) == len(set(PACKAGES))


def test_imports_point_down_the_list_of_packages() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports tritone.{other}"
        for path, package, other in edges()
        if other in PACKAGES and PACKAGES.index(other) < PACKAGES.index(package)
    ]
    assert wrong == []


def test_no_module_beside_the_packages_stands_on_one() -> None:
    """All packages use them: one that imported a package would make a circle of all that are below it."""
    upward = [
        f"{path.name} imports {name}"
        for path in PACKAGE.glob("*.py")
        if path.name != "__init__.py"  # the public face
        for name in imports(path)
        if name.startswith("tritone.") and name.split(".")[1] not in FOR_ALL
    ]
    assert upward == []


def test_what_is_imported_from_beside_the_packages_is_for_all() -> None:
    # The command uses the public face of the package, as its users do; `systems` passes the options of `load` on.
    public = {"load", "load_as", "Client", "Detector", "Embedder", "Model", "Recognizer", "Transcriber", "TritoneError"}
    public |= {"Voice"}
    beside = {(package, other) for _, package, other in edges() if other not in PACKAGES and other not in FOR_ALL}
    assert {
        (package, other) for package, other in beside if package not in ("cli", "systems") or other not in public
    } == set()


def test_a_family_is_known_to_who_exports_alone_and_knows_nothing_of_serving() -> None:
    assert {other for _, package, other in edges() if package == "families" and other in PACKAGES} <= {
        *("families", "bundle", "audio", "runtime", "corpus", "kinds", "pipelines", "options")
    }
    assert {package for _, package, other in edges() if other == "families"} <= {"cli", "prepare", "families"}


def test_the_client_knows_no_more_than_http_and_audio_and_how_it_is_cut() -> None:
    known = {other for _, package, other in edges() if package == "client" and other in PACKAGES}
    assert known <= {"client", "net", "audio", "longform"}


def test_client_and_backend_which_may_not_know_each_other_use_the_same_names_on_the_wire() -> None:
    ours = (transport.WAVEFORM, transport.PCM, transport.NUM_SAMPLES)
    assert ours == (wire.WAV, wire.PCM, wire.WAV_LENS)
    answers = (transport.TEXT, transport.DETAILS, transport.EMBEDDING, transport.SEGMENTS, transport.PROBABILITIES)
    assert answers == (wire.TRANSCRIPTS, wire.DETAILS, wire.EMBEDDINGS, wire.SEGMENTS, wire.PROBABILITIES)


def test_packages_that_know_little_import_little() -> None:
    for modest in ("options", "runtime", "audio", "storage"):
        assert {other for _, package, other in edges() if package == modest and other in PACKAGES} <= {modest}
    assert {other for _, package, other in edges() if package == "search" and other in PACKAGES} == {
        "search",
        "options",
    }
    assert {other for _, package, other in edges() if package == "longform" and other in PACKAGES} == {
        "longform",
        "audio",
    }
    assert {other for _, package, other in edges() if package == "bundle" and other in PACKAGES} == {
        "bundle",
        "storage",
    }


def test_onnxruntime_is_a_converter_in_one_folder_alone() -> None:
    users = {
        path.parent.name
        for path in sources()
        if path.relative_to(PACKAGE).parts[0] == "families"
        for name in imports(path)
        if name.split(".")[0] == "onnxruntime"
    }
    assert users == {"convert"}


def test_search_needs_torch_on_a_device_alone() -> None:
    users = {
        path.parent.name
        for path in sources()
        if path.relative_to(PACKAGE).parts[0] == "search"
        for name in imports(path)
        if name.split(".")[0] in ("torch", "triton")
    }
    assert users == {"device"}


@pytest.mark.parametrize("package", OWNERS)
def test_a_heavy_package_is_imported_by_its_own_package_alone(package: str) -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        for name in imports(path)
        if name.split(".")[0] == package and path.relative_to(PACKAGE).parts[0] not in OWNERS[package]
    }
    assert users == set()


def test_torch_is_imported_by_its_own_runtime_alone() -> None:
    """Whoever serves with onnxruntime does without it. Engines of TensorRT use its memory."""
    users = {
        path.relative_to(PACKAGE / "runtime")
        for path in (PACKAGE / "runtime").rglob("*.py")
        if any(n.split(".")[0] == "torch" for n in imports(path))
    }
    assert {path.parts[0] for path in users} == {"torch", "tensorrt", "cuda", "files"}
    assert {path.stem for path in users if path.parts[0] == "files"} == {
        *("archive", "builder", "operators", "program", "records", "torch_description")  # of torch's own files
    }


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("tritone", ("torch", "onnxruntime", "tritonclient", "numpy")),
        ("tritone.client", ("torch", "onnxruntime", "grpc", "httptools", "uvicorn", "pydantic")),
        ("tritone.bundle", ("torch", "onnxruntime", "tritonclient", "obstore", "huggingface_hub")),
        ("tritone.pipelines", ("torch", "onnxruntime", "tritonclient")),
        ("tritone.pipelines.loading", ("torch", "onnxruntime", "tritonclient", "grpc", "numba", "av")),
        ("tritone.kinds.ctc.kind", ("torch", "onnxruntime", "tritonclient", "numba")),
        ("tritone.systems", ("numpy", "pydantic", "grpc")),
        ("tritone.storage", ("obstore", "huggingface_hub")),
        ("tritone.tensorrt", ("torch", "onnx", "onnxruntime", "tensorrt_rtx_bindings")),
        ("tritone.server", ("torch", "onnxruntime", "pytriton")),
        ("tritone.cli.main", ("torch", "onnxruntime", "tritonclient", "numpy", "matplotlib", "jinja2", "rapidfuzz")),
        ("tritone.report.page", ("matplotlib", "jinja2", "rich", "numpy")),
        ("tritone.report.plots", ("matplotlib",)),
    ],
)
def test_an_import_loads_nothing_that_it_does_not_need(module: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys, {module}; found = set({unwanted}) & set(sys.modules); sys.exit(str(found) if found else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_no_code_is_installed_too() -> None:
    """An editable installation has every file, a wheel those that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["tritone"]
    installed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    compiled = {".py", ".pyc", ".c", ".so", ".nbi", ".nbc"}
    found = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path for path in found if path.suffix not in compiled} <= installed
