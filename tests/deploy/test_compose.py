"""deploy/compose against the schema of compose files, promtool, and the images that it uses."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from deploy.test_image_files import TARGETS
from tritone.cli.main import app

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
FILES = ("compose.yaml", "compose.gpu.yaml")
VARIABLE = re.compile(r"\$\{(\w+)(:[^}]*)?\}")
OURS = ("models", "server", "gateway", "client")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_schema_of_compose_allows(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE / name]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_our_containers_cannot_write_and_have_no_rights(services: dict[str, dict[str, Any]]) -> None:
    for name in OURS:
        service = services[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "user" not in service  # that of the image, which is not root
        image, _, tag = service["image"].partition(":")
        assert image.removeprefix("tritone/") in TARGETS
        assert tag == f"${{VERSION:-{version('tritone')}}}"


def test_all_are_on_one_network_and_published_on_this_machine_alone(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["networks"] == ["tritone"]
        assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []


def test_a_drain_may_end_before_the_container_is_killed(services: dict[str, dict[str, Any]]) -> None:
    for name in ("server", "gateway"):
        command = services[name]["command"]
        drain = int(command[command.index("--drain-s") + 1])
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > drain


def test_the_gateways_arguments_are_those_of_its_command(services: dict[str, dict[str, Any]]) -> None:
    commands: Any = typer.main.get_command(app)
    command = commands.get_command(None, "gateway")
    command.make_context("gateway", list(services["gateway"]["command"]))
    assert services["gateway"]["environment"] == {"TRITON": "http://server:8000"}


def test_every_variable_is_in_the_example_and_secrets_have_no_default() -> None:
    told = {
        line.split("=")[0] for line in (COMPOSE / "env.example").read_text(encoding="utf-8").splitlines() if "=" in line
    }
    text = "".join((COMPOSE / name).read_text(encoding="utf-8") for name in FILES)
    used = VARIABLE.findall(text)
    assert {name for name, _ in used} == told
    assert all(default.startswith(":?") for name, default in used if name != "VERSION")


def test_files_that_are_mounted_exist(services: dict[str, dict[str, Any]]) -> None:
    mounted = [volume.split(":")[0] for each in services.values() for volume in each.get("volumes", [])]
    paths = [each for each in mounted if each.startswith(".")]
    assert len(paths) >= 5
    assert [each for each in paths if not (COMPOSE / each).exists()] == []


def test_prometheus_scrapes_the_server_with_our_alerts(tmp_path: Path) -> None:
    ours = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))
    general = yaml.safe_load((ROOT / "deploy" / "monitoring" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [each.pop("static_configs")[0]["targets"] for each in ours["scrape_configs"]]
    assert targets == [["server:8002"], ["gateway:9000"]]
    for each in general["scrape_configs"]:
        each.pop("static_configs")
    assert ours == general
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    shutil.copy(COMPOSE / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "monitoring" / "alerts.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
