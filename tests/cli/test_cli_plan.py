"""`tritone plan` with invented reports."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from load_reports import measured, report, streams
from tritone.cli.main import app

HPA = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
spec:
  maxReplicas: 4
  metrics:
    - type: Pods
      pods: {metric: {name: slots_used}, target: {type: AverageValue, averageValue: 700m}}
"""


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.replace("│", "").split())


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    """A replica that answers 10 utterances of 5 s a second, or holds 50 streams."""
    file = tmp_path / "report.json"
    report(measured(1), measured(2, utterances=100, audio_s=500.0), streams(25), streams(50), gpus=["A GPU"]).save(file)
    return file


def test_a_plan_of_requests_is_a_table_and_json(measurements: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    load = ("--utterances-per-hour", 36_000, "--growth", 50, "--gpu-price", 2)
    code, shown, said = run(measurements, *load, "--json", out)
    assert code == 0
    assert said == f"wrote {out}"
    assert "cost / audio h" in " ".join(shown.split()) or "audio h" in shown
    sizes = json.loads(out.read_text(encoding="utf-8"))["sizes"]
    assert [(each["needed"], each["replicas"], each["gpus"]) for each in sizes] == [
        (2, 3, 3),
        (3, 4, 4),
        (4, 5, 5),
        (5, 6, 6),
    ]
    assert sizes[0]["cost_per_audio_hour"] == pytest.approx(3 * 2 / 50)


def test_streams_under_an_autoscaler_are_simulated(measurements: Path, tmp_path: Path) -> None:
    (tmp_path / "hpa.yaml").write_text(HPA, encoding="utf-8")
    load = ("--streams", 60, "--lengths", 1800, "--hpa", tmp_path / "hpa.yaml")
    code, shown, _ = run(measurements, *load, "--metric", "slots_used=occupied", "--output", tmp_path / "out")
    assert code == 0
    assert "fixed" in shown
    assert "hpa" in shown
    found = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))
    assert found["load"]["streams"] == pytest.approx(60)
    # 60 of 50 slots a replica, 70 % of them wanted: never fewer than two replicas once they are there
    assert min(found["days"][1]["replicas_ready"][12:]) >= 2
    assert (tmp_path / "out" / "plan.html").is_file()


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        ((), 2, "give the load: --streams (live streams at once) or --utterances-per-hour"),
        (("--streams", 5, "--utterances-per-hour", 5), 2, "give the load"),
        (("--streams", 5), 2, "say how long utterances are: --lengths 5"),
        (("--streams", 5, "--lengths", 5, "--max-queued-s", 9), 2, "--max-queued-s is for whole utterances"),
        (("--utterances-per-hour", 5, "--utilisation", 0), 2, "utilisation is a share above 0"),
        (("--utterances-per-hour", 5, "--metric", "a=b"), 2, "name the manifest too"),
        (("--utterances-per-hour", 5, "--metric", "a=b", "--hpa", "x"), 2, "'b' is not one of open, occupied"),
        (("--utterances-per-hour", 5, "--series", "none"), 1, "no series 'none' of requests; name one"),
        (("--utterances-per-hour", 5, "--latency-limit-ms", 1), 1, "does not keep p95 <= 1 ms"),
        (("--utterances-per-hour", 5, "--day", "night"), 1, "'night' is not one of flat, office and no file"),
    ],
)
def test_what_does_not_fit_is_said(measurements: Path, options: tuple[object, ...], code: int, complaint: str) -> None:
    found, shown, said = run(measurements, *options)
    assert (found, shown) == (code, "")
    assert complaint in said
