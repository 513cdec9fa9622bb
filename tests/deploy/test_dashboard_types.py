"""The dashboard against Grafana's own types, by TypeScript: fields that Grafana does not know are errors."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "monitoring" / "grafana" / "tritone.json"
PACKAGES = ROOT / ".venv" / "node_modules"
TYPES = Path(__file__).with_name("dashboard.ts")
STRICT = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")


def check(dashboard: Any, folder: Path) -> str:
    """What TypeScript finds wrong with a dashboard."""
    compiler = PACKAGES / "typescript" / "bin" / "tsc"
    if not compiler.exists() or not (PACKAGES / "@grafana" / "schema").exists():
        pytest.skip("@grafana/schema and typescript are not installed: make test-all installs them where npm is")
    (folder / "node_modules").symlink_to(PACKAGES)
    text = json.dumps(dashboard, ensure_ascii=False, indent=1)
    source = folder / "dashboard.ts"
    source.write_text(f"{TYPES.read_text(encoding='utf-8')}export const dashboard: Ours = {text};\n", encoding="utf-8")
    command = ["node", compiler, *STRICT, source]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode == 0) == (not done.stdout), done.stdout + done.stderr
    return done.stdout


def test_the_dashboard_has_the_types_of_grafana(tmp_path: Path) -> None:
    assert check(json.loads(DASHBOARD.read_text(encoding="utf-8")), tmp_path) == ""


def test_a_field_that_grafana_does_not_know_is_found(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panel = next(each for each in dashboard["panels"] if each["type"] == "timeseries")
    panel["options"]["legend"]["placment"] = "bottom"
    panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] = "heap"
    del dashboard["templating"]["list"][0]["type"]
    found = check(dashboard, tmp_path)
    assert "placment" in found
    assert '"heap"' in found
    assert "'type' is missing" in found


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    cells = [
        (x, y)
        for each in panels
        for at in [each["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
