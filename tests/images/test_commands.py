"""The command lines of docker and podman, and a user's packages against the versions of an image."""

import os
import shlex
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tritone.cli.main import app
from tritone.errors import InputError
from tritone.images import ImageBuild, ServerRun, check_requirements, read_pins, shown
from tritone.images.build import find_checkout

ROOT = Path(__file__).parents[2]
PINS = {"numpy": ["1.26.4"], "scipy": ["1.16.0"]}


def value_of(option: str, command: list[str]) -> list[str]:
    return [value for name, value in pairwise(command) if name == option]


def test_a_build_names_target_tag_base_and_packages() -> None:
    options = ImageBuild(base="debian@sha256:1", extras="torch", packages="ffmpeg sox")
    command = options.command("podman", "server-slim", ROOT, ["--no-cache"])
    assert command[:2] == ["podman", "build"]
    assert value_of("--target", command) == ["server-slim"]
    assert value_of("--tag", command) == ["tritone/server-slim:0.2.0"]
    assert value_of("--format", command) == ["docker"]  # OCI's own has no health check
    assert {"SLIM_BASE=debian@sha256:1", "EXTRAS=torch", "PACKAGES=ffmpeg sox"} <= set(value_of("--build-arg", command))
    assert command[-2:] == ["--no-cache", str(ROOT)]


def test_settings_of_pip_are_secrets_of_the_build(tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://anna:secret@packages.example/\n", encoding="utf-8")
    command = ImageBuild(pip_conf=settings).command("docker", "client", ROOT)
    assert value_of("--secret", command) == [f"id=pip-conf,src={settings}"]
    with pytest.raises(InputError, match="there is no file"):
        ImageBuild(ca_bundle=tmp_path / "none.pem").command("docker", "client", ROOT)


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("sever", ImageBuild(), "server, server-slim, client, gateway, export"),
        ("gateway", ImageBuild(extras="torch"), "gateway has its own"),
        ("client", ImageBuild(extras="torch"), "client has its own"),
        ("server", ImageBuild(tensorrt="tensorrt"), "for the target export"),
    ],
)
def test_what_does_not_fit_a_target_is_refused(target: str, options: ImageBuild, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        options.command("docker", target, ROOT)


def test_a_users_packages_reach_the_build_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(
        "# ours\nnumpy>=1.25  # any of these\nmy-package==3\n./local.whl\n--pre\n", encoding="utf-8"
    )
    command = ImageBuild(requirements=tmp_path / "mine.txt").command("docker", "server", ROOT)
    assert value_of("--build-context", command) == [f"requirements={tmp_path}"]
    assert "REQUIREMENTS=mine.txt" in value_of("--build-arg", command)


def test_another_numpy_than_the_engines_is_refused_before_the_build(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("scipy==1.15\n", encoding="utf-8")
    (tmp_path / "mine.txt").write_text("requests\n-r more.txt\nnumpy==2.3.5 \\\n  --hash=sha256:00\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        check_requirements(tmp_path / "mine.txt", PINS)
    told = str(caught.value)
    assert "mine.txt:4: numpy==2.3.5, but the image has numpy 1.26.4" in told
    assert "more.txt:1: scipy==1.15, but the image has scipy 1.16.0" in told
    (tmp_path / "mine.txt").write_text("numpy==2.3.5; python_version < '3'\nnumpy\nscipy>1\n", encoding="utf-8")
    check_requirements(tmp_path / "mine.txt", PINS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-r ../outside.txt", "outside of"),
        ("scipy==", "is no requirement"),
        ("-r missing.txt", "cannot read"),
    ],
)
def test_lists_that_cannot_be_used_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=reason):
        check_requirements(tmp_path / "folder" / "mine.txt", PINS)


def test_lists_that_include_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("-r a.txt\nnumpy\n", encoding="utf-8")
    check_requirements(tmp_path / "a.txt", PINS)


def test_a_server_runs_read_only_and_on_this_machine_alone(tmp_path: Path) -> None:
    command = ServerRun(drain_s=60).command("docker", tmp_path, ["--poll-s", "30"], {})
    assert "--read-only" in command
    assert value_of("--cap-drop", command) == ["ALL"]
    assert value_of("--publish", command) == ["127.0.0.1:8000:8000", "127.0.0.1:8001:8001", "127.0.0.1:8002:8002"]
    assert value_of("--mount", command) == [f"type=bind,source={tmp_path},target=/models,readonly"]
    assert value_of("--stop-timeout", command) == ["70"]  # longer than the drain
    assert value_of("--shm-size", command) == ["1g"]
    assert value_of("--ulimit", command) == ["memlock=-1", "stack=67108864"]
    assert command[-5:] == ["tritone/server-slim:0.2.0", "--drain-s", "60", "--poll-s", "30"]


def test_gpus_are_named_as_each_engine_wants_them(tmp_path: Path) -> None:
    docker = ServerRun(gpus="0,1").command("docker", tmp_path, (), {})
    assert value_of("--gpus", docker) == ['"device=0,1"']
    assert "tritone/server:0.2.0" in docker
    podman = ServerRun(gpus="0,1").command("podman", tmp_path, (), {})
    assert value_of("--device", podman) == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    assert value_of("--gpus", ServerRun(gpus="all").command("docker", tmp_path, (), {})) == ["all"]
    with pytest.raises(ValueError, match="none, all, or numbers"):
        ServerRun(gpus="two")


def test_secrets_of_storage_are_passed_by_name() -> None:
    known = {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_CA_BUNDLE": "/of/this/machine.pem", "HOME": "/root"}
    command = ServerRun().command("docker", "s3://models/production", (), known)
    assert value_of("--env", command) == ["MODELS=s3://models/production", "AWS_SECRET_ACCESS_KEY"]
    assert "--mount" not in command


def test_a_network_of_the_host_has_its_ports_in_the_server(tmp_path: Path) -> None:
    command = ServerRun(network="host", http_port=9000).command("docker", tmp_path, (), {})
    assert value_of("--publish", command) == []
    environment = value_of("--env", command)
    assert environment == ["LISTEN=127.0.0.1", "HEALTH_URL=http://127.0.0.1:9000/v2/health/ready"]
    assert command[-2:] == ["--http-port", "9000"]


def test_folders_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tritone build"):
        ServerRun().command("docker", tmp_path / "none", (), {})
    (tmp_path / "a,b").mkdir()
    with pytest.raises(InputError, match="comma"):
        ServerRun().command("docker", tmp_path / "a,b", (), {})


def test_what_is_shown_is_the_same_command_for_a_shell(tmp_path: Path) -> None:
    command = ServerRun(gpus="0,1", volumes=["/a b:/c"]).command("docker", tmp_path, (), {})
    assert shlex.split(shown(command).replace("\\\n", "")) == command


def test_a_dry_run_prints_the_line_and_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["image", "build", "client", "--dry-run"])
    assert (done.exit_code, shlex.split(done.stdout)[:2]) == (0, ["docker", "build"])
    done = CliRunner().invoke(app, ["image", "build", "client"])
    assert done.exit_code == 1
    assert "neither docker nor podman is on PATH" in done.stderr
    done = CliRunner().invoke(app, ["image", "build", "sever", "--dry-run"])
    assert (done.exit_code, "no target 'sever'" in done.stderr) == (2, True)


def test_the_engine_takes_the_place_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text(
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:3])\nsys.exit(7)\n", encoding="utf-8"
    )
    (tmp_path / "podman").chmod(stat.S_IRWXU)
    code = "from tritone.cli.main import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", code, "image", "run", str(tmp_path), "--engine", "podman"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "['run', '--rm']\n")
    assert done.stderr.startswith("podman run --rm --name tritone")


def test_sources_are_found_or_asked_for(tmp_path: Path) -> None:
    assert find_checkout() == ROOT
    with pytest.raises(InputError, match="--context"):
        find_checkout(tmp_path)


def test_pins_are_names_with_versions(tmp_path: Path) -> None:
    lines = [
        "# of make lock",
        "My_Package==1.0",
        "a==1 ; python_version < '3.12'",
        "a==2 ; python_version >= '3.12'",
        "b==1 ; python_version >= '3.13'",
    ]
    (tmp_path / "versions.txt").write_text("\n".join(lines), encoding="utf-8")
    assert read_pins(tmp_path / "versions.txt") == {"my-package": ["1.0"], "a": ["1", "2"]}
    (tmp_path / "versions.txt").write_text("numpy>=1\n", encoding="utf-8")
    with pytest.raises(InputError, match="no name==version"):
        read_pins(tmp_path / "versions.txt")
