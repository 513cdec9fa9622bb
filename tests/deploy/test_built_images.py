"""Images that are built and run here: by buildah and podman without a daemon, on a Debian that debootstrap makes.

That takes some ten minutes and needs root, so it is done only where it is asked for: `make test-images`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from serving import kill_tree
from tritone.corpus.clips import SHIPPED_CLIPS, read_clips
from tritone.repository import build_repository
from tritone.server import free_ports

ROOT = Path(__file__).parents[2]
ASKED = "TRITONE_TEST_IMAGES"
PROGRAMS = ("buildah", "podman", "debootstrap")
BASE = "localhost/tritone-test/debian:12-slim"
USER = "10001:10001"
COMPILERS = ("gcc", "cc", "c++", "clang", "make", "as", "ld", "pip", "pip3")
# Documentation, which Debian's own slim images leave out too.
WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
LIMIT_S = 1200

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * LIMIT_S),
    pytest.mark.skipif(not os.environ.get(ASKED), reason=f"takes ten minutes: make test-images, or {ASKED}=1"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root"),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
]


def done(*words: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; its output is one text."""
    command = [str(each) for each in words]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=LIMIT_S, check=False, **how
    )


def output_of(*words: object, **how: Any) -> str:
    found = done(*words, **how)
    assert found.returncode == 0, found.stdout[-5000:]
    return found.stdout


@contextmanager
def container(image: str) -> Iterator[str]:
    name = output_of("buildah", "from", "--pull-never", image).strip()
    try:
        yield name
    finally:
        done("buildah", "rm", name)


def inside(name: str, *words: object, options: tuple[object, ...] = ()) -> list[str]:
    """The command line that runs words in a container, as the user of the image."""
    isolated = ("buildah", "run", "--isolation", "chroot", "--user", USER)
    return [str(each) for each in (*isolated, *options, name, "--", *words)]


def config(image: str) -> dict[str, Any]:
    return json.loads(output_of("podman", "image", "inspect", image))[0]


def write_wheel(folder: Path, name: str, requires: str) -> Path:
    """A wheel with one empty module."""
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Dist: {requires}\n"
        file.writestr(f"{name}-1.dist-info/METADATA", metadata)
        file.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}-1.dist-info/RECORD", "")
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian as its slim images are; made once on a machine."""
    if done("podman", "image", "exists", BASE).returncode == 0:
        return BASE
    root = tmp_path_factory.mktemp("debian") / "root"
    output_of("debootstrap", "--variant=minbase", "bookworm", root)
    rules = "".join(f"path-exclude {each}\n" for each in WITHOUT)
    (root / "etc" / "dpkg" / "dpkg.cfg.d" / "docker").write_text(rules, encoding="utf-8")
    for each in (*WITHOUT, "/var/cache/apt/archives/*.deb", "/var/lib/apt/lists/*"):
        for path in root.glob(each.lstrip("/")):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    name = output_of("buildah", "from", "scratch").strip()
    output_of("buildah", "add", "--quiet", name, root, "/")
    output_of("buildah", "commit", "--quiet", "--rm", name, BASE)
    return BASE


def build(target: str, base: str, requirements: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Build as docs/operations/images.md says, with pip's settings of this machine."""
    command = ["podman", "build", "--file", "deploy/images/Dockerfile", "--target", target, "--format", "docker"]
    command += [
        "--tag",
        f"localhost/tritone-test/{target}",
        "--isolation",
        "chroot",
        "--build-arg",
        f"SLIM_BASE={base}",
    ]
    if requirements is not None:
        command += ["--build-context", f"requirements={requirements.parent}"]
        command += ["--build-arg", f"REQUIREMENTS={requirements.name}"]
    pip_conf = next((path for each in _settings() if (path := Path(each)).is_file()), None)
    ca_bundle = next((each for each in map(os.environ.get, ("PIP_CERT", "SSL_CERT_FILE")) if each), None)
    for name, source in (("pip-conf", pip_conf), ("ca-bundle", ca_bundle)):
        command += ["--secret", f"id={name},src={source}"] if source else []
    return done(*command, str(ROOT))


def _settings() -> list[str]:
    return [os.environ.get("PIP_CONFIG_FILE", ""), os.path.expanduser("~/.config/pip/pip.conf"), "/etc/pip.conf"]


@pytest.fixture(scope="module")
def server(base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image for CPUs, with a package of the user's that fits its numpy."""
    folder = tmp_path_factory.mktemp("mine")
    wheel = write_wheel(folder, "fits_well", "numpy<2")
    (folder / "mine.txt").write_text(f"/requirements/{wheel.name}\n", encoding="utf-8")
    found = build("server-slim", base, folder / "mine.txt")
    assert found.returncode == 0, found.stdout[-5000:]
    return "localhost/tritone-test/server-slim"


@pytest.fixture(scope="module")
def client(base: str) -> str:
    found = build("client", base)
    assert found.returncode == 0, found.stdout[-5000:]
    return "localhost/tritone-test/client"


def test_a_package_that_needs_another_numpy_ends_the_build(server: str, base: str, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "fits_badly", "numpy>=2")
    (tmp_path / "mine.txt").write_text(f"/requirements/{wheel.name}\n", encoding="utf-8")
    found = build("server-slim", base, tmp_path / "mine.txt")
    assert found.returncode != 0
    assert "numpy>=2" in found.stdout
    assert "constraint) numpy==1" in found.stdout


def test_images_are_small_and_say_what_they_are(server: str, client: str) -> None:
    sizes = {}
    for image, limit_mb in ((server, 1030), (client, 480)):
        found = config(image)
        sizes[image] = found["Size"] / 1e6
        assert sizes[image] <= limit_mb
        assert found["Config"]["User"] == USER
        assert found["Config"]["Labels"]["org.opencontainers.image.version"]
    print({image: f"{size:.0f} MB" for image, size in sizes.items()})  # noqa: T201
    found = config(server)
    assert "healthcheck.py" in " ".join(found["Healthcheck"]["Test"])
    assert sorted(found["Config"]["ExposedPorts"]) == ["8000/tcp", "8001/tcp", "8002/tcp"]


def test_the_demo_runs_in_the_image_and_writes_only_where_it_may(server: str) -> None:
    with container(server) as name:
        found = output_of(*inside(name, "tritone", "demo"))
        assert re.search(r"all \d+|demo-asr", found)
        assert "Tritone demo" in found
        root = Path(output_of("buildah", "mount", name).strip())
        written = output_of("find", root, "-xdev", "-user", USER.split(":")[0], "-type", "f").split()
        places = {Path(each).relative_to(root).parts[0] for each in written}
        assert places <= {"tmp", "cache"}
        there = [each for each in COMPILERS if any((root / folder / each).exists() for folder in ("usr/bin", "bin"))]
        assert there == []
        output_of(*inside(name, "python3", "-c", "import fits_well"))


def test_a_repository_is_served_by_the_entry_point_and_asked_from_the_client(
    server: str, client: str, tmp_path: Path
) -> None:
    build_repository(["demo-asr"], tmp_path / "repository", modes="offline")
    http, grpc, metrics = free_ports(3)
    clip = read_clips(SHIPPED_CLIPS)[0]
    health = f"http://127.0.0.1:{http}/v2/health/ready"
    ports = ("--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics)
    options = ("-v", f"{tmp_path / 'repository'}:/models:ro", "--env", "LISTEN=127.0.0.1")
    with container(server) as serving, container(client) as asking, open(tmp_path / "log", "wb") as log:
        command = inside(serving, *config(server)["Config"]["Entrypoint"], *ports, "--proxy", options=options)
        running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until_ready(health, running, tmp_path / "log")
            check = inside(serving, "python3", "/opt/tritone/healthcheck.py", options=("--env", f"HEALTH_URL={health}"))
            output_of(*check)
            mounted = ("-v", f"{clip.path.parent}:/data:ro")
            words = ("tritone", "transcribe", f"/data/{clip.path.name}", "--url", f"grpc://127.0.0.1:{grpc}")
            assert clip.reference in output_of(*inside(asking, *words, options=mounted))
            reaper = next(
                each for each in psutil.Process(running.pid).children(recursive=True) if each.name() == "tini"
            )
            reaper.send_signal(signal.SIGTERM)
            assert running.wait(LIMIT_S) == 0
        finally:
            kill_tree(running)


def wait_until_ready(url: str, running: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and running.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"the server was not ready: {log.read_text(encoding='utf-8')[-3000:]}")
