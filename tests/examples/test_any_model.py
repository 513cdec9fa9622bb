"""docs/start/any-model.md, followed by a reader who copies its commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import kill_tree
from tritone.server import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "any-model.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
READY = 'for _ in $(seq 600); do curl -sf localhost:8000/v2/health/ready && break; kill -0 "$server"; sleep 0.2; done'


def script() -> str:
    """The page's commands as one script; its server is the only one that stays, in the background."""
    lines = ["set -euo pipefail"]
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("tritone serve "):
                lines += [f"{line} --http-port 8000 --grpc-port 8001 --metrics-port 8002 &", "server=$!", READY]
            else:
                lines.append(line)
    return "\n".join([*lines, 'kill "$server"', 'wait "$server" || true', "echo the end"])


@pytest.mark.slow
def test_the_page_leads_from_a_model_to_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = script()
    assert text.count("&\nserver=$!") == 1
    for name, port in zip(("8000", "8001", "8002"), free_ports(3), strict=True):
        text = re.sub(rf"(localhost:|port ){name}\b", rf"\g<1>{port}", text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", text],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        out, err = process.communicate(timeout=500)
    finally:
        kill_tree(process)
    assert process.returncode == 0, f"{out[-3000:]}\n{err[-3000:]}"
    assert out.rstrip().endswith("the end")
    for told in ("output  logits          FP32   3     3 labels", "int8-dynamic"):
        assert told in out + err
    first, second = (re.search(rf"^{text}: (.*)$", out, re.MULTILINE) for text in ("a great film", "the plot was dull"))
    for answer in (first, second):
        assert answer is not None
        labels = [guess.split()[0] for guess in answer[1].split(", ")]
        assert sorted(labels) == ["negative", "neutral", "positive"]
    assert re.search(r'"data":\["[-\d.]+:\d:(negative|neutral|positive)"\]', out)
    assert "200 requests, 4 at once" in out
    counted = re.search(r'nv_inference_request_success\{model="sentiment",version="1"\} (\d+)', out)
    assert counted is not None
    assert int(counted[1]) >= 200
