"""`tritone serve` in odd surroundings: it answers rightly in each, ends when it is told, and leaves nothing behind.

Where a case needs a mount namespace or another user, and the machine gives none, it is skipped with a word.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shlex import join, quote

import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import Ask, RawClient, descendants, kill_tree, left, ports, quiet_options, regions
from toy import toy_waveform
from tritone.families.generic.python import export_python
from tritone.repository import ModelOptions, build_repository
from tritone.server import ServerOptions

pytestmark = pytest.mark.slow

START_S = 180.0  # the machine may be busy
ROOT = Path(__file__).resolve().parents[2]
TRITONE = Path(sys.executable).with_name("tritone")  # as users start it; `python -c` would itself look where it stands
STRANGER = 12345  # a user without a name or a home
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# A function whose module reads a file of its own, as people write it; it tells what it read, with a word of each text.
READS = """
import json
from pathlib import Path

WORD = Path(__file__).with_name("wörter.txt").read_text()


def read(text: list[str]) -> list[str]:
    print("gelesen: ä")
    return [f"{WORD} {json.dumps(each)}" for each in text]
"""


@dataclass
class Case:
    """Surroundings of a server. `changes`: of the environment, None takes a variable away. `before`: what a shell does
    first; `within`: in a mount namespace. `python`: options of the interpreter."""

    changes: dict[str, str | None] = field(default_factory=dict)
    before: str = ""
    within: bool = False
    repository: str = "repository"
    python: tuple[str, ...] = ()
    clean: bool = False
    user: int | None = None
    redirected: str = ""


def temporary(folder: Path) -> Case:
    folder.mkdir()
    return Case({"TMPDIR": str(folder)})


def read_only(_: Path) -> Case:
    places = [quote(each) for each in sorted({str(ROOT / "src"), sys.prefix, sys.base_prefix, os.path.expanduser("~")})]
    before = "".join(f"mount --bind {each} {each}; mount -o remount,bind,ro {each}; " for each in places)
    before += "".join(f"if touch {each}/here 2>&-; then exit 3; fi; " for each in places)
    # The other user's server compiles its search, which nothing can be kept of there either; once is enough.
    return Case(before=before, within=True, repository="reads é")


def stranger(tmp: Path) -> Case:
    """Another user, who reaches the installation even where it lies in root's home, of which nothing else is seen."""
    home, base = quote(os.path.expanduser("~")), quote(sys.base_prefix)
    # Folders of tests are their user's alone, so they are shown at other places.
    before = f'chown {STRANGER} {quote(str(tmp))}; mount --bind {quote(str(tmp))} /mnt; mount --bind "$SERVED" /media; '
    if Path(sys.base_prefix).is_relative_to(os.path.expanduser("~")):
        before += f"mkdir /mnt/base; mount --bind {base} /mnt/base; mount -t tmpfs -o mode=755 tmpfs {home}; "
        before += f"mkdir -p {base}; mount --bind /mnt/base {base}; "
    changes = {"HOME": None, "TMPDIR": "/mnt"}
    return Case(changes, before=f"{before} cd /mnt", within=True, user=STRANGER, repository="/media/repository")


def without_programs(tmp: Path) -> Case:
    folder = tmp / "noexec"
    folder.mkdir()
    return Case({"TMPDIR": str(folder)}, before=f"mount -t tmpfs -o noexec tmpfs {quote(str(folder))}", within=True)


def deleted(tmp: Path) -> Case:
    gone = quote(str(tmp / "gone"))
    return Case(before=f"mkdir {gone}; cd {gone}; rmdir {gone}")


def downloads(tmp: Path, *names: str) -> None:
    """Modules of a stranger where one stands."""
    for name in names:
        (tmp / f"{name}.py").write_text("raise SystemExit(9)", encoding="utf-8")


def where_one_stands(tmp: Path) -> Case:
    downloads(tmp, "json", "numpy", "struct", "tritone", "reading", "triton_python_backend_utils")
    return Case(repository="reads é")


def relative_path_of_modules(tmp: Path) -> Case:
    downloads(tmp, "triton_python_backend_utils")  # the command itself does search what Python is told to
    return Case({"PYTHONPATH": ":.:"}, repository="reads é")


ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# Each is given a folder of its own. What has nothing to do with each other shares a server, whose start takes seconds.
CASES: dict[str, Callable[[Path], Case]] = {
    "proxies": lambda tmp: Case({**dict.fromkeys(PROXIES, "http://127.0.0.1:9"), "NO_PROXY": None, "no_proxy": None}),
    "nothing-in-the-environment-neither-home-nor-path": lambda tmp: Case(clean=True),
    "a-posix-locale": lambda tmp: Case(ASCII, repository="reads é"),
    "modules-where-one-stands": where_one_stands,
    "modules-where-one-stands-and-pythonpath-leads-there": relative_path_of_modules,
    "another-user": stranger,
    "a-read-only-installation-and-home": read_only,
    "16-mb-of-shared-memory": lambda tmp: Case(before="mount -t tmpfs -o size=16m tmpfs /dev/shm", within=True),
    "256-open-files-signals-of-children-ignored-and-python-without-asserts": lambda tmp: Case(
        before="ulimit -n 256; trap '' CHLD", python=("-O",)
    ),
    "umask-077-and-a-repository-with-blanks-and-an-accent": lambda tmp: Case(
        before="umask 077", repository="my models é"
    ),
    "closed-stdin-and-stdout": lambda tmp: Case(redirected="<&- >&-"),
    "no-open-file-at-all": lambda tmp: Case(redirected="<&- >&- 2>&-"),
    "a-deleted-folder": deleted,
    "a-temporary-folder-of-140-characters-with-a-blank-and-an-accent": lambda tmp: temporary(tmp / ("t é" + "t" * 137)),
    "a-temporary-folder-without-programs": without_programs,
    "a-temporary-folder-that-is-not-there": lambda tmp: Case({"TMPDIR": str(tmp / "absent")}),
}


@pytest.fixture(scope="module")
def repositories(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repositories with the toy model, one of them at an odd path, and one with a function that reads UTF-8."""
    place = tmp_path_factory.mktemp("repositories")
    build_repository([toy_bundle], place / "repository", modes="offline")
    shutil.copytree(place / "repository", place / "my models é")
    source = place / "source"
    source.mkdir()
    (source / "reading.py").write_text(READS, encoding="utf-8")
    (source / "wörter.txt").write_text("Größe", encoding="utf-8")
    export_python(target="reading:read", folder=source, output=place / "bundle", include=[source / "wörter.txt"])
    build_repository([place / "bundle"], place / "reads é", names=["reads"], options=ModelOptions(runtime="python"))
    place.chmod(0o755)  # another user reads it
    return place


@pytest.fixture
def start(tmp_path: Path, repositories: Path) -> Iterator[Callable[[Case, ServerOptions], "subprocess.Popen[str]"]]:
    """Start a server in the surroundings of a case; its stderr goes to a file `log`."""
    started: list[subprocess.Popen[str]] = []

    def begin(case: Case, options: ServerOptions) -> "subprocess.Popen[str]":
        if case.within and not can_mount():
            pytest.skip("no mount namespace can be made here")
        serve = ["serve", str(repositories / case.repository), *ports(options), "--drain-s", "0"]
        command = [sys.executable, "-u", *case.python, str(TRITONE), *serve]
        if case.user is not None:
            command = ["/usr/bin/setpriv", f"--reuid={case.user}", f"--regid={case.user}", "--clear-groups", *command]
        script = (
            f"SERVED={quote(str(repositories))}; set -e; {case.before or ':'}\nexec {join(command)} {case.redirected}"
        )
        whole = [*(("/usr/bin/unshare", "-m") if case.within else ()), "/bin/sh", "-c", script]
        environment = {name: value for name, value in os.environ.items() if not case.clean}
        for name, value in case.changes.items():
            environment.pop(name, None)
            environment |= {} if value is None else {name: value}
        with (tmp_path / "log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    whole,
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    encoding="utf-8",
                )
            )
        return started[-1]

    yield begin
    for process in started:
        kill_tree(process)


@cache
def can_mount() -> bool:
    command = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


def await_ready(process: "subprocess.Popen[str]", options: ServerOptions, case: Case, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_S
    while True:
        said = log.read_text(encoding="utf-8")
        assert process.poll() is None, f"it ended with {process.returncode}: {said}"
        assert time.monotonic() < deadline, f"not ready after {START_S:g} s: {said}"
        if "Serving on" in said:
            return
        if case.redirected:
            with suppress(OSError):
                opener.open(f"http://{options.address('http')}/v2/health/ready", timeout=5).close()
                return
        time.sleep(0.05)


def answer(options: ServerOptions, repository: str) -> str:
    raw = RawClient(options.address("grpc"))
    if not repository.startswith("reads"):
        return raw.ask(Ask(model="toy", wav=toy_waveform("up")))
    given = triton.InferInput("text", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([["é".encode()]], np.object_))
    return raw.grpc.infer("reads", [given]).as_numpy("output").ravel()[0].decode()


@pytest.mark.parametrize("name", CASES)
def test_a_server_answers_and_ends_in_odd_surroundings(
    name: str,
    start: Callable[[Case, ServerOptions], "subprocess.Popen[str]"],
    tmp_path: Path,
) -> None:
    case, options = CASES[name](tmp_path), quiet_options()
    process = start(case, options)
    await_ready(process, options, case, tmp_path / "log")
    reads = case.repository.startswith("reads")
    assert answer(options, case.repository) == ('Größe "\\u00e9"' if reads else "up")
    below = descendants(process.pid)
    assert {"tritonserver", "triton_python_b"} <= {each.name()[:15] for each in below}
    process.send_signal(signal.SIGTERM)
    # Without an output nobody knows the moment from which a signal is no longer one that came while it started.
    fine = (0, 128 + signal.SIGTERM) if case.redirected else (0,)
    assert process.wait(START_S) in fine, (tmp_path / "log").read_text(encoding="utf-8")
    assert left(below) == []
    assert not regions(process.pid)
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert "Traceback" not in said
    if reads:
        assert "gelesen: ä" in said
