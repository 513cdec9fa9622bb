"""The configurations of deploy/routing as far as they can be checked without a balancer that runs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.measure import ROOT
from benchmarks.routing.fleet import FILES, Kind, executable

from tritone.net.routing import STREAM_HEADER

FOLDER = ROOT / "deploy" / "routing"


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_the_balancers_take_their_configurations(kind: Kind, tmp_path: Path) -> None:
    program = executable(kind)
    if program is None:
        pytest.skip(f"there is no {kind} here: apt-get install {kind}")
    command = [program, "-c", "-L", "tritone-balancer", "-f", str(FOLDER / FILES[kind])]
    if kind == "nginx":
        paths = "".join(f"{each}_temp_path {tmp_path}/{each};" for each in ("client_body", "proxy", "fastcgi"))
        paths += f"uwsgi_temp_path {tmp_path}/uwsgi; scgi_temp_path {tmp_path}/scgi;"
        text = (FOLDER / FILES[kind]).read_text(encoding="utf-8").replace("http {", "http {" + paths, 1)
        (tmp_path / "nginx.conf").write_text(text, encoding="utf-8")
        log = str(tmp_path / "log")
        command = [program, "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", log]
        command += ["-g", f"pid {tmp_path}/pid;"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("warn", done.stderr, re.IGNORECASE), done.stderr


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*[!d]")), ids=lambda path: path.name)
def test_all_of_them_route_by_the_header_of_our_client(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert STREAM_HEADER in text or "$http_" + STREAM_HEADER.replace("-", "_") in text


def test_every_route_of_envoy_leads_to_a_cluster_that_there_is() -> None:
    found = yaml.safe_load((FOLDER / "envoy.yaml").read_text(encoding="utf-8"))["static_resources"]

    def named(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(named, value))
        if isinstance(value, dict):
            own = {value["cluster"]} if isinstance(value.get("cluster"), str) else set()
            return own.union(*map(named, value.values()))
        return set()

    clusters = {each["name"]: each["lb_policy"] for each in found["clusters"]}
    assert named(found["listeners"]) == set(clusters)
    assert {name for name, policy in clusters.items() if policy == "RING_HASH"} == {"http_streams", "grpc_streams"}


def test_the_ingress_fits_the_schema_of_kubernetes() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for each in yaml.safe_load_all((FOLDER / "ingress-nginx.yaml").read_text(encoding="utf-8")):
        kubernetes.validate(each, kubernetes.latest_version(), strict=True)
